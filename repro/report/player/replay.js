// When each action starts and ends, and what follows from that: the same as
// repro/gpipe/schedule/replay.py with free messages, and repro/gpipe/schedule/timeline.py.
//
// A span is {kind, stage, i, start, end}.

// Run every action as early as the order of its rank, and the results that it needs, allow.
//
// ranks: for each rank its actions in order; seconds(kind) is how long an action takes.
// late: whether R waits for the gradient. update: seconds of each rank's U, after all work.
function replay(ranks, seconds, late, update = 0) {
  const K = ranks.length;
  const stages = Math.max(...ranks.flat().map((work) => work.stage)) + 1;
  const ends = new Map(); // "F 0 3" -> when F of micro-batch 3 on stage 0 ends
  const key = (kind, stage, i) => `${kind} ${stage} ${i}`;

  // The result that an action needs from another stage; null if it needs none.
  function needed({ kind, stage, i }) {
    if (kind === "F") return stage > 0 ? key("F", stage - 1, i) : null;
    const needs_gradient = kind === "B" || kind === "I" || (kind === "R" && late);
    if (!needs_gradient || stage + 1 === stages) return null;
    return key(kind === "I" ? "I" : "B", stage + 1, i);
  }

  const spans = [];
  const clock = Array(K).fill(0);
  const position = Array(K).fill(0); // of the next action of each rank
  let progress = true;
  while (progress) {
    progress = false;
    ranks.forEach((actions, rank) => {
      while (position[rank] < actions.length) {
        const work = actions[position[rank]];
        const message = needed(work);
        if (message !== null && !ends.has(message)) break;
        const start = message === null ? clock[rank] : Math.max(clock[rank], ends.get(message));
        const end = start + seconds(work.kind);
        spans.push({ ...work, start, end });
        ends.set(key(work.kind, work.stage, work.i), end);
        clock[rank] = end;
        position[rank] += 1;
        progress = true;
      }
    });
  }
  if (ranks.some((actions, rank) => position[rank] < actions.length)) {
    throw new Error("the schedule deadlocks");
  }
  if (update > 0) {
    const start = Math.max(...clock); // all ranks agree first that the step is finite
    for (let rank = 0; rank < K; rank += 1) {
      spans.push({ kind: "U", stage: rank, i: -1, start, end: start + update });
    }
  }
  return spans;
}

// From the first start to the last end.
function step_time(spans) {
  const start = Math.min(...spans.map((span) => span.start));
  return Math.max(...spans.map((span) => span.end)) - start;
}

// Idle / (K x step time). Set-up is no work.
function bubble(spans, K) {
  const work = spans.filter((span) => span.kind !== "setup");
  const busy = work.reduce((sum, span) => sum + (span.end - span.start), 0);
  return 1 - busy / (K * step_time(spans));
}

// What a rank keeps in memory: one entry for each micro-batch on each of its stages, from the
// start of its F to the end of its B (or W). `full` is when all activations of its layers are
// there: from F, or where it is recomputed from R; before, only the input of the stage is kept.
// `spans` are those of the rank, by start.
function kept(spans) {
  const entries = new Map();
  const split = spans.some((span) => span.kind === "W");
  for (const { kind, stage, i, start, end } of spans) {
    const key = `${stage} ${i}`;
    if (kind === "F") entries.set(key, { stage, i, start, full: start, end: Infinity });
    else if (kind === "R") entries.get(key).full = start;
    else if (kind === (split ? "W" : "B")) entries.get(key).end = end;
  }
  return [...entries.values()];
}

// The most entries at once. `begins` says from when an entry counts; at one moment, what ends goes
// before what begins.
function most(entries, begins) {
  const changes = entries.flatMap((entry) => [
    [begins(entry), 1],
    [entry.end, -1],
  ]);
  changes.sort(([at, change], [other, with_change]) => at - other || change - with_change);
  let now = 0;
  let peak = 0;
  for (const [, change] of changes) {
    now += change;
    peak = Math.max(peak, now);
  }
  return peak;
}
