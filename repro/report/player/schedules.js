// The order in which each rank computes: the same as repro/gpipe/schedule/kinds.py, which
// tests/report/test_player.py compares with this file for a few hundred cases.
//
// An action is {kind, stage, i}: F forward, R recompute, B backward, or its parts I (gradient of
// the inputs) and W (gradient of the weights), of micro-batch i. Rank r of K holds the stages r,
// r + K, r + 2K, ...; all schedules but interleaved 1F1B have one stage a rank.

function action(kind, stage, i) {
  return { kind, stage, i };
}

function micro_batches(M) {
  return Array.from({ length: M }, (_, i) => i);
}

// One micro-batch at a time goes forth and back (Figure 2 (b)).
function naive_order(rank, K, M) {
  return micro_batches(M).flatMap((i) => [action("F", rank, i), action("B", rank, i)]);
}

// All forwards, then all backwards in reverse order (Figure 2 (c)).
function gpipe_order(rank, K, M) {
  const order = micro_batches(M);
  const forwards = order.map((i) => action("F", rank, i));
  const backwards = [...order].reverse().map((i) => action("B", rank, i));
  return [...forwards, ...backwards];
}

// Fill the pipe with forwards, then one backward for each forward.
function one_f_one_b_order(rank, K, M) {
  const forwards = micro_batches(M).map((i) => action("F", rank, i));
  const backwards = micro_batches(M).map((i) => action("B", rank, i));
  return alternate(forwards, backwards, K - rank);
}

// 1F1B with v stages on each rank, in groups of K micro-batches. The last group takes the rest,
// up to 2K - 1 of them: a smaller group at the end would deadlock.
function interleaved_order(rank, K, M, v) {
  const stages = Array.from({ length: v }, (_, n) => rank + n * K);
  const groups = [];
  for (let start = 0; start === 0 || start + K <= M; start += K) {
    const is_last = start + 2 * K > M;
    groups.push(micro_batches(M).slice(start, is_last ? M : start + K));
  }
  const all_of = (kind, order, group) =>
    order.flatMap((stage) => group.map((i) => action(kind, stage, i)));
  const forwards = groups.flatMap((group) => all_of("F", stages, group));
  const backwards = groups.flatMap((group) => all_of("B", [...stages].reverse(), group));
  const largest = Math.max(...groups.map((group) => group.length));
  return alternate(forwards, backwards, 2 * (K - 1 - rank) + (v - 1) * largest + 1);
}

// `ahead` forwards, then backwards and forwards in turn, then the remaining backwards.
function alternate(forwards, backwards, ahead) {
  const order = forwards.slice(0, ahead);
  backwards.forEach((backward, n) => {
    order.push(backward, ...forwards.slice(ahead + n, ahead + n + 1));
  });
  return order;
}

// ZB-H1: I comes as early as B in 1F1B; W stays `rank` micro-batches behind and fills the waits.
function zb_h1_order(rank, K, M) {
  const ahead = K - rank;
  const order = micro_batches(Math.min(ahead, M)).map((i) => action("F", rank, i));
  for (let i = 0; i < M; i += 1) {
    order.push(action("I", rank, i));
    if (i >= rank) order.push(action("W", rank, i - rank));
    if (i + ahead < M) order.push(action("F", rank, i + ahead));
  }
  for (let i = Math.max(0, M - rank); i < M; i += 1) order.push(action("W", rank, i));
  return order;
}

// late: R waits for the gradient from the next stage, and does not start before it arrives.
const SCHEDULES = {
  naive: { order: naive_order, late: true },
  gpipe: { order: gpipe_order },
  "1f1b": { order: one_f_one_b_order },
  "interleaved-1f1b": { order: interleaved_order, interleaved: true },
  "zb-h1": { order: zb_h1_order },
};

// Put R(i) before B(i) or I(i). "except_last" leaves it out where that directly follows F(i).
function with_recompute(order, checkpoint) {
  const result = [];
  for (const work of order) {
    if (["B", "I"].includes(work.kind) && checkpoint !== "never") {
      const last = result.at(-1);
      const follows = last?.kind === "F" && last.stage === work.stage && last.i === work.i;
      if (checkpoint === "always" || !follows) result.push(action("R", work.stage, work.i));
    }
    result.push(work);
  }
  return result;
}

// For each of K ranks its actions in order. v counts only where the schedule is interleaved.
function actions_of_ranks(name, K, M, checkpoint, v) {
  const { order } = SCHEDULES[name];
  return Array.from({ length: K }, (_, rank) =>
    with_recompute(order(rank, K, M, v), checkpoint),
  );
}
