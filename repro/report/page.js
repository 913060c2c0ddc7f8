// The contents mark the section that is read.
const links = new Map([...document.querySelectorAll(".toc a")].map((a) => [a.hash.slice(1), a]));

function mark(id) {
  const link = links.get(id);
  if (!link) return;
  for (const other of links.values()) other.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  const contents = link.parentElement;
  contents.scrollLeft = link.offsetLeft - contents.offsetLeft - 60;
}

// A line a little below the top of the window: what crosses it is read.
const crossing = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => mark(entry.target.id)),
  { rootMargin: "-15% 0px -84% 0px" },
);
document.querySelectorAll("main > [id]").forEach((section) => crossing.observe(section));
