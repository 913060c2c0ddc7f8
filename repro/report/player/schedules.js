// The order in which each rank computes: the same as kinds.py and ready.py in repro/gpipe/schedule,
// which tests/report/test_player.py compares with this file for a few hundred cases.
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

// A rule returns what a rank does next and when: {work, start}. It gets how many actions the rank has
// done (of all kinds and of each), when the rank is free, and when what an action needs arrives:
// Infinity if nobody has made it yet.

function in_order(actions) {
  return (done, free, arrival) => {
    const work = actions[done.all];
    return { work, start: work ? Math.max(free, arrival(work)) : Infinity };
  };
}

// Zero bubble: the next I if its gradient is here, else the next F if its input is here and few
// enough micro-batches are kept, else R for the next I, else the next W.
function what_is_ready(rank, K, M, recomputes) {
  return ({ F, R, I, W }, free, arrival) => {
    const awaited = [];
    if (I < F) awaited.push(action("I", rank, I));
    if (F < M && F - W < 2 * K && F - I <= K - rank) awaited.push(action("F", rank, F));
    const next_R = recomputes && R === I && I < F ? action("R", rank, R) : null;
    const filling = next_R ?? (W < I ? action("W", rank, W) : null);
    const start = filling ? free : Math.max(free, Math.min(...awaited.map(arrival)));
    const here = awaited.find((work) => arrival(work) <= start);
    if (!here) return { work: filling, start };
    return { work: here.kind === "I" && next_R ? next_R : here, start };
  };
}

// late: R waits for the gradient from the next stage, and does not start before it arrives.
const SCHEDULES = {
  naive: { order: naive_order, late: true },
  gpipe: { order: gpipe_order },
  "1f1b": { order: one_f_one_b_order },
  "interleaved-1f1b": { order: interleaved_order, interleaved: true },
  zb: {}, // no fixed order
};

// Put R(i) before B(i). "except_last" leaves it out where that directly follows F(i).
function with_recompute(order, recompute) {
  const result = [];
  for (const work of order) {
    if (work.kind === "B" && recompute !== "never") {
      const last = result.at(-1);
      const follows = last?.kind === "F" && last.stage === work.stage && last.i === work.i;
      if (recompute === "always" || !follows) result.push(action("R", work.stage, work.i));
    }
    result.push(work);
  }
  return result;
}

// For each of K ranks its rule. v counts only where the schedule is interleaved.
function rules_of_ranks(name, K, M, recompute, v) {
  const { order } = SCHEDULES[name];
  return Array.from({ length: K }, (_, rank) =>
    order
      ? in_order(with_recompute(order(rank, K, M, v), recompute))
      : what_is_ready(rank, K, M, recompute === "always"),
  );
}
