// When each action starts and ends, and what follows from that: the same as
// repro/gpipe/schedule/replay.py with free messages, and repro/gpipe/schedule/timeline.py.
//
// A span is {kind, stage, i, start, end}.

// Run every action as early as the rule of its rank, and the results that it needs, allow.
//
// stages: of all ranks together; seconds(kind) is how long an action takes.
// late: whether R waits for the gradient. update: seconds of each rank's U, after all work.
function replay(rules, stages, seconds, late, update = 0) {
  const K = rules.length;
  const ends = new Map(); // "F 0 3" -> when F of micro-batch 3 on stage 0 ends
  const key = (kind, stage, i) => `${kind} ${stage} ${i}`;

  // The result that an action needs from another stage; null if it needs none.
  function needed({ kind, stage, i }) {
    if (kind === "F") return stage > 0 ? key("F", stage - 1, i) : null;
    const needs_gradient = kind === "B" || kind === "I" || (kind === "R" && late);
    if (!needs_gradient || stage + 1 === stages) return null;
    return key(kind === "I" ? "I" : "B", stage + 1, i);
  }

  function arrival(work) {
    const message = needed(work);
    return message === null ? 0 : ends.get(message) ?? Infinity;
  }

  const spans = [];
  const clock = Array(K).fill(0);
  const done = rules.map(() => ({ all: 0, F: 0, R: 0, B: 0, I: 0, W: 0 }));
  for (;;) {
    // The earliest first: what arrives until then is known.
    const found = rules.map((rule, rank) => rule(done[rank], clock[rank], arrival));
    const start = Math.min(...found.map((each) => each.start));
    if (start === Infinity) {
      if (found.some((each) => each.work)) throw new Error("the schedule deadlocks");
      break;
    }
    const rank = found.findIndex((each) => each.start === start);
    const { work } = found[rank];
    clock[rank] = start + seconds(work.kind);
    spans.push({ ...work, start, end: clock[rank] });
    ends.set(key(work.kind, work.stage, work.i), clock[rank]);
    done[rank][work.kind] += 1;
    done[rank].all += 1;
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
