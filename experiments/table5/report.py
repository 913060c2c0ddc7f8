"""Table 5 (arXiv:1811.06965v5): BLEU and NLL for three batch sizes, and what a larger one gains."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from experiments.learned import metric
from experiments.table5.runs import NAME
from repro.claims.all_claims import verdict_on
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.harness.statistics import mean_interval
from repro.paper import BatchSize, table5
from repro.report.compare import beside_paper, matching, rows_of, where
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, amount, declared, estimate, place_column, plain, spread
from repro.report.table import Table

# Metric -> its name in the table, and whether a larger one is better.
METRICS = {"bleu": ("BLEU", True), "nll": ("NLL", False)}


@dataclass(frozen=True)
class Line:
    """One batch size at one place.

    Attributes:
        where: scale and machine.
        N: sentence pairs of a mini-batch.
        runs: one for each seed.
        smallest: of the smallest N, one for each seed.
        printed: the paper's batch of the same place; None where there is none.
    """

    where: str
    N: int
    runs: list[Run]
    smallest: list[Run]
    printed: BatchSize | None

    def values(self, name: str) -> list[float]:
        return [metric(run, name) for run in self.runs]

    def differences(self, name: str) -> list[float]:
        """A metric minus that of the smallest N, paired by seed."""
        at_smallest = {run.spec.seed: metric(run, name) for run in self.smallest}
        return [
            metric(run, name) - at_smallest[run.spec.seed]
            for run in self.runs
            if run.spec.seed in at_smallest
        ]


SHOWN = Shown(f"{NAME}_gains")


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [qualities(results), gains(results)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[f"{NAME}_gains"]
    return (
        "At as many sentence pairs the largest batch changes BLEU by "
        f"{table.text('measured difference', metric='BLEU')} beside the smallest, where the paper "
        f"has {table.text('quoted difference', metric='BLEU')}."
    )


def lines_of(results: Results) -> list[Line]:
    done = rows_of(results, experiment=NAME, status="done")
    printed = sorted(table5(), key=lambda size: size.batch_tokens)
    lines = []
    for place in dict.fromkeys(run.place for run in done):
        runs = matching(done, place=place)
        Ns = sorted({run.N for run in runs})
        smallest = matching(runs, N=Ns[0])
        for i, N in enumerate(Ns):
            quoted = printed[i] if len(Ns) == len(printed) else None
            lines.append(Line(where(results, runs[0]), N, matching(runs, N=N), smallest, quoted))
    return lines


def qualities(results: Results) -> Table:
    lines = lines_of(results)
    columns: list[Column[Line]] = [
        *place_column(lines, lambda line: line.where),
        Column("N", lambda line: plain(line.N)),
        Column("updates", lambda line: plain(line.runs[0].spec.steps)),
        Column("seeds", lambda line: plain(len(line.runs))),
    ]
    for name, (title, _) in METRICS.items():
        columns.append(
            spread(
                ("measured", title),
                lambda line, name=name: estimate(mean_interval(line.values(name))),
            )
        )
    if beside_paper(results, NAME):
        columns.append(Column(("quoted", "tokens, BLEU, NLL"), _quoted))
    note = (
        "Mean over seeds with a bootstrap 95 % interval from five seeds on; every training reads "
        "as many sentence pairs, so a larger N has fewer updates. A toy language and a model of "
        "0.3M parameters stand for the paper's: they show which way quality goes with N, and no "
        "BLEU of the paper."
    )
    title = "Translation quality for three batch sizes"
    return declared(NAME, title, note, lines, columns, NAME)


def _quoted(line: Line) -> Cell:
    if line.printed is None:
        return Cell()
    tokens = line.printed.batch_tokens
    rounded = f"{tokens / 1e6:.0f}M" if tokens >= 1e6 else f"{tokens / 1e3:.0f}K"
    return plain(f"{rounded}: {line.printed.bleu:.2f}, {line.printed.nll:.2f}")


@dataclass(frozen=True)
class Gain:
    """What the largest N gains over the smallest in one metric.

    Attributes:
        line: of the largest N.
    """

    line: Line
    name: str

    @property
    def better(self) -> list[float]:
        """Differences by seed, with the sign turned where a smaller metric is better."""
        _, larger_is_better = METRICS[self.name]
        sign = 1 if larger_is_better else -1
        return [sign * difference for difference in self.line.differences(self.name)]

    @property
    def claim(self) -> str:
        return cell_id(NAME, METRICS[self.name][0])

    @property
    def evidence(self) -> Evidence:
        """The mean difference, positive where the larger batch is better."""
        mean, low, high = mean_interval(self.better)
        runs = tuple(run.id for run in (*self.line.smallest, *self.line.runs))
        return Evidence(mean, "measured", runs, low, high)


def gains(results: Results) -> Table:
    """The largest batch minus the smallest, paired by seed, with a verdict."""
    largest = {line.where: line for line in lines_of(results)}
    lines = [Gain(line, name) for line in largest.values() for name in METRICS]
    quoting = beside_paper(results, NAME)

    def quoted(gain: Gain) -> Cell:
        first, *_, last = sorted(table5(), key=lambda size: size.batch_tokens)
        return amount(getattr(last, gain.name) - getattr(first, gain.name))

    columns: list[Column[Gain]] = [
        *place_column(lines, lambda gain: gain.line.where),
        Column("metric", lambda gain: plain(METRICS[gain.name][0])),
        Column("N", lambda gain: plain(f"{gain.line.N} minus {gain.line.smallest[0].N}")),
        Column("seeds", lambda gain: plain(len(gain.better))),
        spread(
            ("measured", "difference"),
            lambda gain: estimate(mean_interval(gain.line.differences(gain.name))),
        ),
    ]
    if quoting:
        columns.append(Column(("quoted", "difference"), quoted))
        columns.append(Column("verdict", lambda gain: plain(verdict_on(gain.claim, gain.evidence))))
    note = (
        "The largest batch minus the smallest, paired by seed, mean with a bootstrap 95 % interval "
        "from five seeds on; BLEU should rise and NLL fall."
    )
    if quoting:
        note += (
            " A trend needs an interval on the right side of 0, and even then it cannot show that "
            "the paper's sizes behave alike."
        )
    title = "What a larger batch gains at as many sentence pairs"
    return declared(f"{NAME}_gains", title, note, lines, columns, NAME)


def figures(_results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    """None: three batches are few numbers, and the table has them beside the paper's."""
    return iter(())
