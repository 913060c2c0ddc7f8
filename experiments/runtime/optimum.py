"""The best step of the experiment's runs by arithmetic: one layer a stage, recomputed early."""

from repro.harness.results import Run
from repro.harness.statistics import interval
from repro.paper import theory
from repro.report.rounds import Spread
from repro.report.style import PARTS


def optimal_step(run: Run) -> float:
    """Seconds of the step: (M+K-1)F + M(R+B) + (K-1)B, where R takes as long as F."""
    args = run.spec.model_args
    F, B = args["forward_s"], args["backward_s"]
    return theory.step_time(run.K, run.M, "early", F, F, B)


def optimal_shares(run: Run) -> dict[str, float]:
    """Shares of K x step; those that arithmetic does not have are 0."""
    args, step = run.spec.model_args, optimal_step(run)
    F, B = args["forward_s"], args["backward_s"]
    return dict.fromkeys(PARTS, 0.0) | {
        "computation": run.M * (F + B) / step,
        "recompute": run.M * F / step,
        "bubble": theory.bubble(run.K, run.M, "early", F, F, B),
    }


def overhead(run: Run) -> Spread:
    """The step over the optimum, minus 1, in percent: median over rounds and interval."""
    best = optimal_step(run)
    return interval([100 * (round_.step_s / best - 1) for round_ in run.rounds])
