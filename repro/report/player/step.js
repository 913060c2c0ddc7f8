// One step, with all that is drawn and told of it.

// The step of these settings on the virtual clock. F, R and B are of all layers of a rank. I and W
// are half of B each where they are not measured, as in repro.simulate.
function simulated({ schedule, K, M, v, recompute, F, R, B, W = B / 2, U }) {
  // Each stage of a rank has 1/v of its layers.
  const seconds = { F: F / v, R: R / v, B: B / v, I: B - W, W };
  const rules = rules_of_ranks(schedule, K, M, recompute, v);
  const late = Boolean(SCHEDULES[schedule].late);
  const spans = replay(rules, K * v, (kind) => seconds[kind], late, U);
  return make_step("simulated", spans, K, v);
}

// A measured step in ms; its spans are [kind, stage, i, start, length] in microseconds.
function recorded({ K, v, spans }) {
  const in_ms = spans.map(([kind, stage, i, start, length]) => ({
    kind, stage, i, start: start / 1000, end: (start + length) / 1000,
  }));
  return make_step("measured", in_ms, K, v);
}

// Mean ms of each kind of action in a measured step.
function mean_lengths({ spans, v }) {
  const mean = (kind) => {
    const lengths = spans.filter((span) => span[0] === kind).map((span) => span[4]);
    return lengths.length ? lengths.reduce((sum, length) => sum + length, 0) / lengths.length : 0;
  };
  // A rank's F takes v times as long as that of each of its stages.
  const [F, R, B, I, W] = ["F", "R", "B", "I", "W"].map((kind) => (v * mean(kind)) / 1000);
  return { F, R, B: B + I + W, W, U: mean("U") / 1000 };
}

// fidelity: "simulated" or "measured"; spans: on K ranks that hold v stages each.
function make_step(fidelity, spans, K, v) {
  const origin = Math.min(...spans.map((span) => span.start));
  const ranks = Array.from({ length: K }, () => []);
  for (const span of spans) {
    const moved = { ...span, start: span.start - origin, end: span.end - origin };
    ranks[span.stage % K].push(moved);
  }
  for (const row of ranks) row.sort((a, b) => a.start - b.start || a.end - b.end);
  const all = ranks.flat();
  const memory = ranks.map((row) => in_slots(kept(row)));
  const duration = step_time(all);
  return {
    fidelity,
    K,
    v,
    ranks,
    memory,
    duration,
    bubble: bubble(all, K),
    peaks: memory.map((entries) => most(entries, (entry) => entry.start)),
    full_peaks: memory.map((entries) => most(entries, (entry) => entry.full)),
    waits: waits(all, K, v),
    routes: routes(all),
    gradient: all.some((span) => span.kind === "I") ? "I" : "B", // what the stage before waits for
  };
}

// Give each entry the lowest free place in memory, so that it stays where it is while it is kept.
function in_slots(entries) {
  const taken_until = [];
  for (const entry of entries) {
    const free = taken_until.findIndex((end) => end <= entry.start);
    entry.slot = free < 0 ? taken_until.length : free;
    taken_until[entry.slot] = entry.end;
  }
  return entries;
}

// What has arrived at a rank and waits there: activations on its left, gradients on its right.
// The micro-batches of the mini-batch wait on the left of rank 0.
function waits(spans, K, v) {
  const ends = new Map(spans.map(({ kind, stage, i, end }) => [`${kind} ${stage} ${i}`, end]));
  const waiting = [];
  for (const { kind, stage, i, start } of spans) {
    const backward = kind === "B" || kind === "I";
    if (kind !== "F" && !backward) continue;
    if (backward && stage + 1 === K * v) continue; // its own loss makes the gradient
    const from = backward ? ends.get(`${kind} ${stage + 1} ${i}`) : ends.get(`F ${stage - 1} ${i}`);
    const entry = { rank: stage % K, lane: Math.floor(stage / K), i, from: from ?? 0, to: start };
    waiting.push({ ...entry, backward, is_input: kind === "F" && stage === 0 });
  }
  return waiting;
}

// The moments at which something starts or ends, ascending; those that rounding parts are one.
function moments(steps) {
  const spans = steps.flatMap((step) => step.ranks.flat());
  const all = [0, ...spans.flatMap(({ start, end }) => [start, end])].sort((a, b) => a - b);
  const least = 1e-9 * all.at(-1);
  return all.filter((moment, n) => n === 0 || moment - all[n - 1] > least);
}

// For each micro-batch its forwards and backwards, in the order in which it comes through them.
function routes(spans) {
  const result = [];
  for (const span of spans) {
    if (span.i < 0 || !"FBI".includes(span.kind)) continue;
    (result[span.i] ??= []).push(span);
  }
  for (const route of result) route.sort((a, b) => a.start - b.start || a.end - b.end);
  return result;
}

// The span in which a rank is at a moment, or undefined where it is idle.
function at_moment(row, time) {
  return row.find((span) => span.start <= time && time < span.end && span.kind !== "setup");
}

function percent(share) {
  return `${(100 * share).toFixed(1)}\u00a0%`;
}
