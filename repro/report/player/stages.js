// The row of stages: what each computes at this moment, and what it keeps in memory.
//
// A micro-batch moves to the right through a box during its F and to the left during its B. Under
// it stands the memory: an empty square is a micro-batch of which only the stage's input is kept,
// a filled one has all activations of the stage's layers.

const NAME = 20; // px for the name of a box
const MEMORY = 62; // px for the squares
const COUNT = 20; // px for the count below

// Where things are in the row of stages.
function stages_layout(step, width, timeline_left, M) {
  const { K, v } = step;
  const gap = Math.max(3, Math.min(26, (0.16 * width) / K));
  const rail = timeline_left - gap; // where the mini-batch waits; boxes start below the timeline's
  const box = (width - rail - K * gap - 1) / K;
  const lane = v > 1 ? 28 : 36;
  const top = NAME;
  const memory_top = top + v * lane + 6;
  const most_kept = Math.max(...step.peaks);
  return {
    width, rail, gap, box, lane, top, memory_top,
    height: memory_top + MEMORY + COUNT,
    x: (rank) => rail + gap + rank * (box + gap),
    square: square_size(most_kept, box - 6, MEMORY - 4, 24),
    rail_square: square_size(M, rail - 2, memory_top + MEMORY - top, 14),
  };
}

// The greatest size at which so many squares fit.
function square_size(count, width, height, largest) {
  for (let size = largest; size > 2; size -= 0.5) {
    if (Math.floor(width / size) * Math.floor(height / size) >= count) return size;
  }
  return 2;
}

function draw_stages(pen, layout, step, palette, time, followed, still) {
  pen.clearRect(0, 0, layout.width, layout.height);
  draw_rail(pen, layout, step, palette, time, followed);
  if (layout.gap > 12) draw_links(pen, layout, step, palette);
  for (let rank = 0; rank < step.K; rank += 1) {
    draw_box(pen, layout, step, palette, time, rank);
    draw_memory(pen, layout, step, palette, time, rank, followed);
  }
  draw_waiting(pen, layout, step, palette, time, followed);
  for (let rank = 0; rank < step.K; rank += 1) {
    const span = at_moment(step.ranks[rank], time);
    if (span) draw_work(pen, layout, step, palette, time, rank, span, followed, still);
  }
}

// The micro-batches of the mini-batch that have not entered stage 0.
function draw_rail(pen, layout, step, palette, time, followed) {
  const size = layout.rail_square;
  const columns = Math.max(1, Math.floor((layout.rail - 2) / size));
  const inputs = step.waits.filter((wait) => wait.is_input);
  pen.font = `11px ${FONT}`;
  pen.fillStyle = palette.soft;
  const left = inputs.filter(({ to }) => time < to);
  if (left.length && layout.rail > 36) write(pen, "to do", 0, NAME / 2, "left");
  for (const { i } of left) {
    const x = (i % columns) * size;
    const y = layout.top + Math.floor(i / columns) * size;
    draw_square(pen, x, y, size, palette.soft, palette.paper, i, i === followed, palette, false);
  }
}

// Between two stages activations go to the right, gradients to the left.
function draw_links(pen, layout, step, palette) {
  pen.strokeStyle = palette.soft;
  pen.lineWidth = 1;
  for (let rank = 1; rank < step.K; rank += 1) {
    const from = layout.x(rank) - layout.gap + 4;
    const to = layout.x(rank) - 4;
    for (const [tail, head, share] of [[from, to, 0.3], [to, from, 0.7]]) {
      const y = layout.top + share * step.v * layout.lane;
      const back = 3.5 * Math.sign(tail - head);
      pen.beginPath();
      pen.moveTo(tail, y);
      pen.lineTo(head, y);
      pen.moveTo(head + back, y - 3);
      pen.lineTo(head, y);
      pen.lineTo(head + back, y + 3);
      pen.stroke();
    }
  }
}

function draw_box(pen, layout, step, palette, time, rank) {
  const { box, lane, top, memory_top } = layout;
  const x = layout.x(rank);
  pen.font = `12px ${FONT}`;
  pen.fillStyle = palette.soft;
  const name = step.v > 1 ? "rank" : "stage";
  write(pen, box > 52 ? `${name} ${rank}` : `${rank}`, x + box / 2, NAME / 2, "center");
  pen.fillStyle = palette.idle;
  pen.fillRect(x, top, box, step.v * lane);
  if (box > 40 && !at_moment(step.ranks[rank], time)) {
    pen.fillStyle = palette.soft;
    pen.font = `italic 12px ${FONT}`;
    write(pen, "idle", x + box / 2, top + (step.v * lane) / 2, "center");
  }
  pen.strokeStyle = palette.line;
  pen.lineWidth = 1;
  for (let n = 1; n < step.v; n += 1) {
    pen.beginPath();
    pen.moveTo(x, top + n * lane);
    pen.lineTo(x + box, top + n * lane);
    pen.stroke();
  }
  pen.strokeRect(x + 0.5, top + 0.5, box - 1, memory_top - top + MEMORY - 1);
}

// What a rank computes: a token on its way through the box, and the part that is done.
function draw_work(pen, layout, step, palette, time, rank, span, followed, still) {
  const { box, lane, top } = layout;
  const { kind, stage, i, start, end } = span;
  const is_update = kind === "U";
  const y = top + Math.floor(stage / step.K) * lane;
  const x = layout.x(rank);
  const done = (time - start) / (end - start);
  const leftwards = kind === "B" || kind === "I";
  pen.fillStyle = palette.kinds[kind];
  pen.globalAlpha = 0.35;
  if (leftwards) pen.fillRect(x + box * (1 - done), y, box * done, lane);
  else pen.fillRect(x, y, box * done, lane);
  pen.globalAlpha = 1;

  const height = lane - 10;
  const size = Math.min(15, 0.6 * height);
  let text_width = write_indexed(pen, kind, is_update ? "" : `${i}`, 0, 0, size, true);
  const has_kind = text_width + 8 < box;
  pen.font = `600 ${Math.min(12, 0.7 * box)}px ${FONT}`;
  if (!has_kind) text_width = pen.measureText(`${i}`).width;
  const width = Math.min(box, Math.max(text_width + 8, Math.min(height, box)));
  const progress = still || is_update || kind === "W" ? 0.5 : leftwards ? 1 - done : done;
  const left = x + progress * (box - width);
  pen.fillStyle = palette.kinds[kind];
  pen.beginPath();
  pen.roundRect(left, y + 5, width, height, 5);
  pen.fill();
  pen.strokeStyle = i === followed ? palette.accent : palette.ink;
  pen.lineWidth = i === followed ? 3 : 1;
  pen.stroke();
  pen.fillStyle = palette.on[kind];
  const centre = left + width / 2;
  if (has_kind) {
    write_indexed(pen, kind, is_update ? "" : `${i}`, centre, y + lane / 2 - 1, size);
  } else {
    write(pen, is_update ? kind : `${i}`, centre, y + lane / 2 + 0.5, "center");
  }
}

// Messages that have arrived and are not used yet, as squares in the gap beside the box; where
// there are more than fit, the last places are shared.
function draw_waiting(pen, layout, step, palette, time, followed) {
  const size = Math.min(12, layout.gap / 2 - 0.5);
  const places = Math.max(1, Math.floor(layout.lane / size));
  const standing = new Map(); // how many stand already at a side of a lane
  for (const { rank, lane, i, from, to, backward, is_input } of step.waits) {
    if (is_input || time < from || time >= to) continue;
    const side = `${rank} ${lane} ${backward}`;
    const n = standing.get(side) ?? 0;
    standing.set(side, n + 1);
    const x = backward ? layout.x(rank) + layout.box : layout.x(rank) - size;
    const y = layout.top + lane * layout.lane + Math.min(n, places - 1) * size;
    const colour = palette.kinds[backward ? step.gradient : "F"];
    draw_square(pen, x, y, size, colour, colour, i, i === followed, palette, true);
  }
}

function draw_memory(pen, layout, step, palette, time, rank, followed) {
  const { square, box, memory_top } = layout;
  const columns = Math.max(1, Math.floor((box - 6) / square));
  const left = layout.x(rank) + (box - columns * square) / 2;
  let count = 0;
  for (const { i, start, full, end, slot } of step.memory[rank]) {
    if (time < start || time >= end) continue;
    count += 1;
    const x = left + (slot % columns) * square;
    const y = memory_top + Math.floor(slot / columns) * square;
    const is_full = time >= full;
    const inside = is_full ? palette.soft : palette.paper;
    draw_square(pen, x, y, square, palette.soft, inside, i, i === followed, palette, is_full);
  }
  pen.fillStyle = palette.soft;
  pen.font = `${box > 36 ? 12 : 10}px ${FONT}`;
  const peak = step.peaks[rank];
  let text = `${count}`;
  if (box > 110) text = `keeps ${count} (peak ${peak})`;
  else if (box > 58) text = `${count}, peak ${peak}`;
  else if (box > 34) text = `${count} / ${peak}`;
  write(pen, text, layout.x(rank) + box / 2, memory_top + MEMORY + COUNT / 2 + 1, "center");
}

function draw_square(pen, x, y, size, edge, inside, i, is_followed, palette, is_full) {
  const inset = size > 6 ? 1.5 : 0.5;
  const side = size - 2 * inset;
  pen.fillStyle = inside;
  pen.fillRect(x + inset, y + inset, side, side);
  pen.strokeStyle = is_followed ? palette.accent : edge;
  pen.lineWidth = is_followed ? 2.5 : 1;
  pen.strokeRect(x + inset, y + inset, side, side);
  if (size < 12) return;
  pen.fillStyle = is_full ? palette.paper : palette.ink;
  pen.font = `${Math.min(10, 0.6 * size)}px ${FONT}`;
  write(pen, `${i}`, x + size / 2, y + size / 2 + 0.5, "center");
}
