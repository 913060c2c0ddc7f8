"""What the runtime costs at up to K=8: emulated steps of Table 2 against simulated ones."""

from dataclasses import dataclass
from statistics import median

from experiments.table2.recorded import MODELS, places, protocol, titled
from experiments.table2.runs import NAME
from repro.harness.results import Results, Run
from repro.harness.statistics import interval
from repro.report.grid import Cell, Column, amount, declared, plain
from repro.report.ratio import NO_INTERVAL
from repro.report.style import model_name
from repro.report.table import Table


@dataclass(frozen=True)
class Pair:
    """An emulated run, and the seconds of the same step simulated without set-up.

    Set-up is not emulated. It comes before all actions, so that a step without it is shorter by as
    much.
    """

    run: Run
    simulated: float

    @property
    def stretch(self) -> float:
        """How many times as long as the device its stages really waited."""
        return self.run.spec.stretch or 1.0

    @property
    def emulated(self) -> float:
        """Median seconds of a step over rounds."""
        return median(round_.step_s for round_ in self.run.rounds)

    @property
    def more(self) -> Cell:
        """Emulated over simulated, minus 1: median over rounds and its interval."""
        ratios = [round_.step_s / self.simulated - 1 for round_ in self.run.rounds]
        middle, low, high = interval(ratios)
        text = f"{_percent(middle)} %"
        if low == low:
            text += f" [{_percent(low)}, {_percent(high)}]"
        return Cell(middle, text, low, high)

    @property
    def lost(self) -> float:
        """Real seconds that a step took longer."""
        return self.stretch * (self.emulated - self.simulated)


def tables(results: Results) -> list[Table]:
    emulated = {model: protocol(results, model, "emulated") for model in MODELS}
    lines = []
    for model, runs in emulated.items():
        simulated = protocol(results, model, "controlled")
        for place in places(model):
            run, modelled = runs.run(*place), simulated.modelled(*place)
            if run and run.done and modelled and modelled.batch:
                setup = max(modelled.stages.setup, default=0.0)
                lines.append(Pair(run, simulated.step(*place) - setup))
    if not lines:
        return []
    columns: list[Column[Pair]] = [
        Column("model", lambda pair: Cell(pair.run.model, model_name(pair.run.model))),
        Column("K", lambda pair: plain(pair.run.K)),
        Column("M", lambda pair: plain(pair.run.M)),
        Column("N", lambda pair: plain(pair.run.N)),
        Column("", lambda pair: Cell(pair.stretch), "stretch"),
        Column("rounds", lambda pair: plain(len(pair.run.rounds))),
        Column("stretch", lambda pair: Cell(text=f"{pair.stretch:g}"), ""),
        Column("step simulated (s)", lambda pair: amount(pair.simulated, 3), "simulated"),
        Column("step emulated (s)", lambda pair: amount(pair.emulated, 3), "emulated"),
        Column("more", lambda pair: pair.more, ends=("low", "high")),
        Column("more, real ms a step", _lost, "lost"),
    ]
    note = (
        "K processes of the real engine, each of which waits stretch times as long as its stage is "
        "modelled to compute, against the same stage costs on a virtual clock. More: emulated "
        f"over simulated, minus 1, with its bootstrap 95 % interval, {NO_INTERVAL}; all processes "
        "share the cores of one machine."
    )
    title = titled(
        "Table 2 emulated against simulated: what the runtime costs",
        [found for found in emulated.values() if found],
    )
    return [declared("table2_emulated", title, note, lines, columns, NAME)]


def _lost(pair: Pair) -> Cell:
    return Cell(pair.lost, f"{1e3 * pair.lost:.1f}")


def _percent(share: float) -> str:
    digits = 1 if abs(share) < 1 else 0
    return f"{100 * share:+.{digits}f}"
