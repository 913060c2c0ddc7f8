// The timeline: a row for each rank, stage 0 the lowest as in the paper's Figure 2.
//
// What does not move is drawn once, on two layers: the ground (rows, axis, titles) and the boxes.
// A frame shows the boxes before the playhead in full and the later ones paler.

const TITLE = 22; // px above the rows of a step
const AXIS = 34; // px below the last row

// A canvas that is not on the page; one unit of drawing is one CSS pixel.
function layer(width, height, scale) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return { canvas, pen };
}

// Set the size of a canvas on the page; returns its context.
function sized(canvas, width, height, scale) {
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return pen;
}

// Where things are on the timeline, for one step or two steps on one clock.
function timeline_layout(steps, width) {
  const K = steps[0].K;
  const narrow = width < 560;
  const row = K > 10 ? 18 : K > 6 ? 24 : steps.length > 1 ? 30 : 38;
  const left = narrow ? 24 : 64;
  const right = 10;
  const height = steps.length * (TITLE + K * row) + (steps.length - 1) * 12 + AXIS;
  const longest = Math.max(...steps.map((step) => step.duration));
  const panels = steps.map((step, n) => {
    const top = n * (TITLE + K * row + 12) + TITLE;
    return { step, top, y: (rank) => top + (K - 1 - rank) * row };
  });
  const per_time = (width - left - right) / longest;
  return {
    width, height, left, right, row, narrow, panels, longest, per_time,
    x: (time) => left + time * per_time,
    time: (x) => Math.min(longest, Math.max(0, (x - left) / per_time)),
    bottom: height - AXIS,
  };
}

// "F" with "0,3" lower and smaller beside it, centred; `measure_only` returns its width.
function write_indexed(pen, kind, index, x, y, size, measure_only = false) {
  pen.font = `600 ${size}px ${FONT}`;
  const kind_width = pen.measureText(kind).width;
  pen.font = `${0.72 * size}px ${FONT}`;
  const width = kind_width + pen.measureText(index).width + 1;
  if (measure_only) return width;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillText(index, x - width / 2 + kind_width + 1, y + 0.3 * size);
  pen.font = `600 ${size}px ${FONT}`;
  pen.fillText(kind, x - width / 2, y);
  return width;
}

// The longest label that fits every box of a kind: F_{j,i} as in Figure 2, or i, or none.
function label_of_kind(pen, step, kind, per_time, row) {
  const spans = step.ranks.flat().filter((span) => span.kind === kind);
  const lengths = spans.map((span) => span.end - span.start).sort((a, b) => a - b);
  const room = lengths[Math.floor(lengths.length / 4)] * per_time - 4;
  const last = Math.max(...spans.map((span) => span.i));
  const size = Math.min(15, 0.5 * row);
  if (last < 0) return "kind";
  const longest = `${step.K * step.v - 1},${last}`;
  if (row >= 24 && write_indexed(pen, kind, longest, 0, 0, size, true) < room) return "indexed";
  pen.font = `${Math.min(11, 0.6 * row)}px ${FONT}`;
  return pen.measureText(`${last}`).width < room ? "i" : "none";
}

function draw_boxes(pen, layout, palette) {
  const { row, per_time, x } = layout;
  for (const { step, y } of layout.panels) {
    const labels = new Map();
    for (const [rank, spans] of step.ranks.entries()) {
      for (const span of spans) {
        const { kind, stage, i, start, end } = span;
        if (!labels.has(kind)) labels.set(kind, label_of_kind(pen, step, kind, per_time, row));
        const width = Math.max(0.5, (end - start) * per_time);
        const gap = Math.min(1, 0.15 * width);
        pen.fillStyle = "#ffffff"; // shines through the paler ones
        pen.fillRect(x(start) + gap / 2, y(rank) + 1.5, width - gap, row - 3);
        pen.globalAlpha = opacity_of_stage(stage, step);
        pen.fillStyle = palette.kinds[kind];
        pen.fillRect(x(start) + gap / 2, y(rank) + 1.5, width - gap, row - 3);
        pen.globalAlpha = 1;
        pen.fillStyle = palette.on[kind];
        const centre = x(start) + width / 2;
        const middle = y(rank) + row / 2;
        const label = labels.get(kind);
        if (label === "indexed") {
          write_indexed(pen, kind, `${stage},${i}`, centre, middle - 1, Math.min(15, 0.5 * row));
        } else if (label !== "none") {
          const text = label === "kind" ? kind : `${i}`;
          pen.font = `${Math.min(11, 0.6 * row)}px ${FONT}`;
          if (pen.measureText(text).width < width) write(pen, text, centre, middle + 0.5, "center");
        }
      }
    }
  }
}

// Later stages of a rank are paler, so that the rounds of a micro-batch can be told apart.
function opacity_of_stage(stage, step) {
  if (step.v === 1) return 1;
  return 1 - (0.5 * Math.floor(stage / step.K)) / (step.v - 1);
}

function write(pen, text, x, y, align) {
  pen.textAlign = align;
  pen.textBaseline = "middle";
  pen.fillText(text, x, y);
}

function draw_ground(pen, layout, palette, title_of, unit) {
  const { row, left, x, bottom, longest } = layout;
  for (const { step, top, y } of layout.panels) {
    pen.fillStyle = palette.ink;
    pen.font = `600 13px ${FONT}`;
    write(pen, title_of(step), left, top - TITLE / 2 - 1, "left");
    for (let rank = 0; rank < step.K; rank += 1) {
      pen.fillStyle = palette.idle;
      pen.fillRect(left, y(rank) + 1.5, step.duration * layout.per_time, row - 3);
      pen.fillStyle = palette.soft;
      pen.font = `${Math.min(12, 0.65 * row)}px ${FONT}`;
      const name = layout.narrow ? `${rank}` : `${step.v > 1 ? "rank" : "stage"} ${rank}`;
      write(pen, name, left - 7, y(rank) + row / 2, "right");
    }
    name_the_bubble(pen, layout, step, y, palette);
  }
  pen.fillStyle = palette.soft;
  pen.strokeStyle = palette.line;
  pen.font = `11px ${FONT}`;
  const every = tick_distance(longest, layout.narrow ? 5 : 11);
  for (let n = 0; n * every <= longest * (1 + 1e-9); n += 1) {
    const at = x(n * every);
    pen.beginPath();
    pen.moveTo(at, bottom);
    pen.lineTo(at, bottom + 4);
    pen.stroke();
    write(pen, `${Number((n * every).toPrecision(6))}`, at, bottom + 12, "center");
  }
  write(pen, `time (${unit})`, layout.width - layout.right, bottom + 26, "right");
}

// "bubble" in the widest idle place of a step, if it is wide enough to read.
function name_the_bubble(pen, layout, step, y, palette) {
  let widest = { length: 0 };
  for (const [rank, spans] of step.ranks.entries()) {
    let free = 0;
    for (const { start, end } of [...spans, { start: step.duration, end: 0 }]) {
      if (start - free > widest.length) widest = { rank, from: free, length: start - free };
      free = end;
    }
  }
  if (widest.length * layout.per_time < 64 || layout.row < 18) return;
  pen.fillStyle = palette.soft;
  pen.font = `italic ${Math.min(13, 0.6 * layout.row)}px ${FONT}`;
  const centre = layout.x(widest.from + widest.length / 2);
  write(pen, "bubble", centre, y(widest.rank) + layout.row / 2, "center");
}

// A round distance that gives at most `count` ticks.
function tick_distance(longest, count) {
  const rough = longest / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((distance) => distance >= rough);
}

// One frame: both layers, the way of one micro-batch, and the playhead.
function draw_timeline(pen, layout, layers, palette, time, followed) {
  const { width, height, x, bottom } = layout;
  const { canvas: ground } = layers.ground;
  const { canvas: boxes } = layers.boxes;
  const scale = ground.width / width;
  const at = x(time);
  pen.clearRect(0, 0, width, height);
  pen.drawImage(ground, 0, 0, width, height);
  pen.globalAlpha = palette.later;
  pen.drawImage(boxes, at * scale, 0, boxes.width - at * scale, boxes.height,
    at, 0, width - at, height);
  pen.globalAlpha = 1;
  if (at > 0) {
    pen.drawImage(boxes, 0, 0, at * scale, boxes.height, 0, 0, at, height);
  }
  for (const panel of layout.panels) {
    draw_current(pen, layout, panel, palette, time);
    if (followed !== null) draw_route(pen, layout, panel, palette, followed);
  }
  pen.strokeStyle = palette.accent;
  pen.fillStyle = palette.accent;
  pen.lineWidth = 2;
  pen.beginPath();
  pen.moveTo(at, layout.panels[0].top - 4);
  pen.lineTo(at, bottom + 4);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(at, bottom + 2);
  pen.lineTo(at - 6, bottom + 11);
  pen.lineTo(at + 6, bottom + 11);
  pen.fill();
}

// Outlines of what is computed at this moment.
function draw_current(pen, layout, { step, y }, palette, time) {
  pen.strokeStyle = palette.ink;
  pen.lineWidth = 1.5;
  for (const [rank, row] of step.ranks.entries()) {
    const span = at_moment(row, time);
    if (!span) continue;
    const width = (span.end - span.start) * layout.per_time;
    pen.strokeRect(layout.x(span.start) + 0.75, y(rank) + 1.5, width - 1.5, layout.row - 3);
  }
}

// Frames round the forwards and backwards of one micro-batch, and a line from each to the next. It
// runs along the lower edge of the rows, where it hides no label.
function draw_route(pen, layout, { step, y }, palette, followed) {
  const route = step.routes[followed] ?? [];
  const points = route.flatMap((span) => {
    const low = y(span.stage % step.K) + layout.row - 4;
    return [[layout.x(span.start), low], [layout.x(span.end), low]];
  });
  for (const [colour, width] of [[palette.paper, 4.5], [palette.ink, 2]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.lineJoin = "round";
    pen.beginPath();
    points.forEach(([px, py], n) => (n ? pen.lineTo(px, py) : pen.moveTo(px, py)));
    pen.stroke();
  }
  for (const { stage, start, end } of route) {
    const width = Math.max(1, (end - start) * layout.per_time - 2);
    pen.strokeRect(layout.x(start) + 1, y(stage % step.K) + 2, width, layout.row - 4);
  }
}
