// The pipeline player: its controls, its clock, and the numbers that it shows.

const root = document.getElementById("pipeline-player");
const find = (name) => root.querySelector(`[data-player="${name}"]`);
const data = JSON.parse(find("data").textContent);
const FONT = getComputedStyle(root).fontFamily;

// The page opens in the midst of the step, where every stage has something to show.
const OPENS_AT = 0.46;

const state = {
  time: 0, // on the clock of the steps that are shown
  playing: false,
  touched: false, // whether the reader has moved the clock
  recompute: "always", // what the reader chose; not every schedule has a choice
  pointed: null, // the micro-batch under the mouse
};
const canvases = { timeline: find("timeline"), stages: find("stages") };
let shown = null; // what is drawn: steps, settings, layouts, layers, palette

// ---- Settings ------------------------------------------------------------------------------

function chosen(name) {
  return root.querySelector(`input[name="player-${name}"]:checked`).value;
}

function settings() {
  const measured = data.measured[find("measured").value];
  if (measured) return { ...measured, ...mean_lengths(measured), measured };
  const schedule = chosen("schedule");
  const { interleaved, order } = SCHEDULES[schedule];
  return {
    schedule,
    K: Number(find("K").value),
    M: Number(find("M").value),
    v: interleaved ? Number(find("v").value) : 1,
    recompute: !order && state.recompute === "except_last" ? "always" : state.recompute,
    F: Number(find("F").value),
    R: Number(find("R").value),
    B: Number(find("B").value),
    U: 0,
    measured: null,
  };
}

// ---- What is shown -------------------------------------------------------------------------

function rebuild() {
  const share = shown ? state.time / shown.duration : OPENS_AT;
  const now = settings();
  const steps = [simulated(now)];
  if (now.measured) steps.unshift(recorded(now.measured));
  shown = {
    settings: now,
    steps,
    unit: now.measured ? "ms" : "units",
    duration: Math.max(...steps.map((step) => step.duration)),
    moments: moments(steps),
  };
  state.time = share * shown.duration;
  show_controls();
  show_numbers();
  resize();
}

function resize() {
  const width = Math.max(240, find("stages-box").clientWidth);
  const scale = window.devicePixelRatio || 1;
  shown.palette = palette();
  const timeline = timeline_layout(shown.steps, width);
  const stages = stages_layout(shown.steps[0], width, timeline.left, shown.settings.M);
  const ground = layer(width, timeline.height, scale);
  const boxes = layer(width, timeline.height, scale);
  const unit = shown.unit === "ms" ? "ms" : "units of the sliders";
  draw_ground(ground.pen, timeline, shown.palette, title_of, unit);
  draw_boxes(boxes.pen, timeline, shown.palette);
  shown.timeline = {
    layout: timeline,
    layers: { ground, boxes },
    pen: sized(canvases.timeline, width, timeline.height, scale),
  };
  shown.stages = { layout: stages, pen: sized(canvases.stages, width, stages.height, scale) };
  draw();
}

// The colours of the page, which has a light and a dark scheme, and those of the kinds of work.
function palette() {
  const style = getComputedStyle(root);
  const of_page = (name) => style.getPropertyValue(name).trim();
  const on = {};
  for (const [kind, colour] of Object.entries(data.kinds)) on[kind] = readable_on(colour);
  return {
    ink: of_page("--ink"), soft: of_page("--soft"), line: of_page("--line"),
    paper: of_page("--paper"), accent: of_page("--accent"), idle: of_page("--player-idle"),
    later: Number(of_page("--player-later")),
    kinds: data.kinds, on,
  };
}

// Black or white, whichever has more contrast (WCAG 2.2, relative luminance).
function readable_on(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => {
    const value = parseInt(colour.slice(at, at + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return luminance > 0.179 ? "#101418" : "#ffffff";
}

function draw() {
  const { steps, timeline, stages } = shown;
  const followed = state.pointed ?? followed_choice();
  draw_timeline(
    timeline.pen, timeline.layout, timeline.layers, shown.palette, state.time, followed,
  );
  draw_stages(
    stages.pen, stages.layout, steps[0], shown.palette, state.time, followed, less_motion.matches,
  );
  find("scrubber").value = Math.round((1000 * state.time) / shown.duration);
  const clock = `${amount(state.time)} of ${amount(shown.duration)} ${shown.unit}`;
  find("clock").textContent = clock;
  find("scrubber").setAttribute("aria-valuetext", clock);
}

function followed_choice() {
  const choice = find("follow").value;
  return choice === "" ? null : Number(choice);
}

function amount(value) {
  return `${Number(shown.unit === "ms" ? value.toPrecision(4) : value.toFixed(2))}`;
}

function title_of(step) {
  return `${step.fidelity}: ${amount(step.duration)} ${shown.unit}, ${percent(step.bubble)} idle`;
}

function show_controls() {
  const { schedule, K, M, v, recompute, F, R, B, measured } = shown.settings;
  const { interleaved, order } = SCHEDULES[schedule];
  if (measured) {
    check("schedule", schedule);
    Object.entries({ K, M, v }).forEach(([name, value]) => (find(name).value = value));
  }
  Object.entries({ K, M, v }).forEach(([name, value]) => write_value(name, `${value}`));
  const lengths = { F, R, B };
  for (const [name, value] of Object.entries(lengths)) {
    write_value(name, measured ? `${amount(value)} ms` : `${value}`);
  }
  for (const input of root.querySelectorAll("[data-setting]")) input.disabled = Boolean(measured);
  for (const input of root.querySelectorAll('input[name="player-recompute"]')) {
    input.disabled = Boolean(measured) || (!order && input.value === "except_last");
  }
  check("recompute", recompute);
  find("R").disabled = Boolean(measured) || recompute === "never";
  find("grey").textContent = why_grey(measured, recompute, order);
  find("v-box").hidden = !interleaved;
  find("about").textContent = data.schedules[schedule].about;
  find("source").textContent = measured ? `Measured: ${measured.source}.` : "";
  fill_follow(M);
  for (const item of root.querySelectorAll("[data-kind]")) {
    const kind = item.dataset.kind;
    const spans = shown.steps.flatMap((step) => step.ranks.flat());
    item.hidden = kind !== "idle" && !spans.some((span) => span.kind === kind);
  }
}

// Why some controls cannot be moved; empty where all can.
function why_grey(measured, recompute, order) {
  if (measured) return "Grey controls show the settings of the measured step. Choose none to move them.";
  const never = recompute === "never" ? "R is grey: nothing is recomputed." : "";
  return order ? never : `${never} Except last is grey: this schedule has no fixed order.`;
}

function check(name, value) {
  root.querySelector(`input[name="player-${name}"][value="${value}"]`).checked = true;
}

function write_value(name, text) {
  find(`${name}-value`).textContent = text;
  find(name).setAttribute("aria-valuetext", text);
}

function fill_follow(M) {
  const select = find("follow");
  if (select.options.length === M + 1) return;
  const before = select.value;
  const numbers = micro_batches(M).map((i) => new Option(`${i}`, `${i}`));
  select.replaceChildren(new Option("none", ""), ...numbers);
  select.value = Number(before) < M ? before : "";
}

function show_numbers() {
  const { settings: now, steps, unit } = shown;
  const { K, M } = now;
  const theory = (K - 1) / (M + K - 1);
  show_each("step", (step) => `${amount(step.duration)} ${unit}`);
  show_each("bubble", (step) => percent(step.bubble));
  find("formula").textContent = ` = ${K - 1}/${M + K - 1} = ${percent(theory)}`;
  const [first] = steps;
  const { peaks, full_peaks } = first;
  find("peak").textContent = `${Math.max(...peaks)}`;
  find("peaks").textContent = peaks.join(" ");
  find("full-peaks").textContent = full_peaks.join(" ");
  tell(
    `${data.schedules[now.schedule].name}, K=${K}, M=${M}, recompute ${now.recompute}. ` +
      `${steps.map(title_of).join(". ")}. GPipe's formula gives ${percent(theory)}. ` +
      `Peak micro-batches kept by rank: ${peaks.join(", ")}.`,
  );
}

// One line for each step, which says whether it is measured or simulated.
function show_each(name, text_of) {
  const lines = shown.steps.map((step) => {
    const line = document.createElement("span");
    const word = document.createElement("small");
    word.textContent = step.fidelity;
    line.append(`${text_of(step)} `, word);
    return line;
  });
  find(name).replaceChildren(...lines);
}

// ---- For readers who do not see the picture ------------------------------------------------

let telling = null;

// Only when the reader has stopped for a moment, so that a slider does not speak at each value.
function tell(text) {
  clearTimeout(telling);
  telling = setTimeout(() => (find("told").textContent = text), 400);
}

function tell_moment() {
  const [step] = shown.steps;
  const name = step.v > 1 ? "rank" : "stage";
  const works = { F: "forward", R: "recompute", B: "backward", I: "gradient of inputs",
    W: "gradient of weights" };
  const parts = step.ranks.map((row, rank) => {
    const span = at_moment(row, state.time);
    if (!span) return `${name} ${rank} is idle`;
    if (span.kind === "U") return `${name} ${rank} updates`;
    return `${name} ${rank}: ${works[span.kind]} of micro-batch ${span.i}`;
  });
  tell(`At ${find("clock").textContent}: ${parts.join("; ")}.`);
}

// ---- The clock -----------------------------------------------------------------------------

const less_motion = matchMedia("(prefers-reduced-motion: reduce)");
let last_frame = null;
let stepped_at = 0;

function play(on) {
  if (on && (!state.touched || state.time >= shown.duration)) {
    state.time = 0;
    draw(); // the clock of the last moment would stay until the first frame
  }
  state.touched = true;
  state.playing = on;
  last_frame = null;
  find("play").textContent = on ? "Pause" : "Play";
  if (on) requestAnimationFrame(frame);
  else tell_moment();
}

// Units of the step for each second. The work of a rank takes 8 s at M = 4 and 32 s at M = 64; what
// the step takes longer is bubble, so that a schedule with a larger bubble takes longer here too.
function pace() {
  const [step] = shown.steps;
  const work = (1 - step.bubble) * step.duration;
  return (Number(find("speed").value) * work) / (4 * Math.sqrt(shown.settings.M));
}

function frame(now) {
  if (!state.playing) return;
  if (less_motion.matches) {
    // No smooth movement: from one event to the next.
    if (now - stepped_at > 700 / Number(find("speed").value)) {
      stepped_at = now;
      state.time = next_moment();
    }
  } else {
    // A frame that comes late, as after another tab was looked at, does not jump.
    const passed = last_frame === null ? 0 : Math.min(100, now - last_frame) / 1000;
    state.time = Math.min(shown.duration, state.time + passed * pace());
  }
  last_frame = now;
  draw();
  if (state.time >= shown.duration) play(false);
  else requestAnimationFrame(frame);
}

function go_to(time) {
  if (state.playing) play(false);
  state.touched = true;
  state.time = Math.min(shown.duration, Math.max(0, time));
  draw();
  tell_moment();
}

// The next and the previous start or end of anything.
function next_moment() {
  return shown.moments.find((moment) => moment > state.time) ?? shown.duration;
}

function previous_moment() {
  return shown.moments.findLast((moment) => moment < state.time) ?? 0;
}

// ---- Events --------------------------------------------------------------------------------

for (const input of root.querySelectorAll("[name=player-recompute]")) {
  input.addEventListener("input", () => (state.recompute = input.value));
}
for (const input of root.querySelectorAll("[data-setting], [name^=player-], [data-rebuild]")) {
  input.addEventListener("input", rebuild);
}
find("follow").addEventListener("input", draw);
find("play").addEventListener("click", () => play(!state.playing));
find("first").addEventListener("click", () => go_to(0));
find("back").addEventListener("click", () => go_to(previous_moment()));
find("forth").addEventListener("click", () => go_to(next_moment()));
find("scrubber").addEventListener("input", (event) => {
  go_to((shown.duration * Number(event.target.value)) / 1000);
});

// Space plays, arrows step, Home and End go to the ends: wherever the focus does not need the key.
root.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { target, key } = event;
  const is_scrubber = target === find("scrubber");
  const is_choice = target.matches("input:not([type=range]), select");
  const needs_space = is_choice || target.matches("button, summary, a");
  const needs_arrows = is_choice || (target.matches("input[type=range]") && !is_scrubber);
  const actions = {
    ArrowRight: () => go_to(next_moment()),
    ArrowLeft: () => go_to(previous_moment()),
    Home: () => go_to(0),
    End: () => go_to(shown.duration),
  };
  if (key === " " && !needs_space) play(!state.playing);
  else if (actions[key] && !needs_arrows) actions[key]();
  else return;
  event.preventDefault();
});

// Drag on the timeline to move the playhead; point at a box to see the way of its micro-batch.
canvases.timeline.addEventListener("pointerdown", (event) => {
  canvases.timeline.setPointerCapture(event.pointerId);
  move_playhead(event);
});
canvases.timeline.addEventListener("pointermove", (event) => {
  if (event.buttons) move_playhead(event);
  else point_at(event);
});
canvases.timeline.addEventListener("pointerleave", () => {
  state.pointed = null;
  draw();
});

function move_playhead(event) {
  go_to(shown.timeline.layout.time(event.offsetX));
}

function point_at(event) {
  const { layout } = shown.timeline;
  const time = layout.time(event.offsetX);
  let under = null;
  for (const { step, y } of layout.panels) {
    for (const [rank, row] of step.ranks.entries()) {
      const top = y(rank);
      if (event.offsetY < top || event.offsetY >= top + layout.row) continue;
      under = at_moment(row, time) ?? null;
    }
  }
  const pointed = under && under.i >= 0 ? under.i : null;
  if (pointed === state.pointed) return;
  state.pointed = pointed;
  draw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
let known_width = 0;
new ResizeObserver(([entry]) => {
  const width = Math.round(entry.contentRect.width);
  if (width === known_width) return;
  known_width = width;
  resize();
}).observe(find("stages-box"));

rebuild();
