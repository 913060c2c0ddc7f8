"""The number of layers of each stage, the rule that chose it, and the predicted balance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.layers import Layer, parameter_counts
from repro.gpipe.errors import one_of
from repro.gpipe.partition.layer_costs import BALANCES, check_balance, stage_layers
from repro.gpipe.partition.partition import PARTITIONERS, Cost, additive, check_stages


@dataclass(frozen=True)
class Cut:
    """A model cut into K stages; its `str` is one line with all attributes.

    Attributes:
        counts: layers in each stage.
        chosen: how the cut was chosen, as text.
        costs: predicted cost of each stage; None if nothing was predicted.
        unit: of the costs: "s", "parameters", "layers", or "" for costs that the user gave.
    """

    counts: tuple[int, ...]
    chosen: str
    costs: tuple[float, ...] | None = None
    unit: str = ""

    def __str__(self) -> str:
        text = f"{'+'.join(map(str, self.counts))} layers {self.chosen}"
        if self.costs is None:
            return text
        costs = ", ".join(f"{cost:.4g}" for cost in self.costs)
        unit = f" {self.unit}" if self.unit else ""
        mean = fmean(self.costs)
        imbalance = max(self.costs) / mean - 1.0 if mean else 0.0
        return f"{text}: {costs}{unit}, predicted imbalance {imbalance:.1%}"


def choose(layers: Sequence[Layer], config: PipelineConfig, by_time: Callable[[], Cost]) -> Cut:
    """Cut the model; `by_time` measures what its stages cost in seconds."""
    stages, balance, partitioner = config.total_stages, config.balance, config.partitioner
    one_of("partitioner", partitioner, PARTITIONERS)
    check_stages(len(layers), stages)
    if callable(balance):
        cost, what, unit = balance, "given cost", ""
    elif not isinstance(balance, str):
        return Cut(tuple(check_balance(balance, len(layers), stages)), "as given")
    elif balance == "uniform" or (balance == "time" and stages == 1):  # which needs no cut
        cost, what, unit = additive([1] * len(layers)), "count", "layers"
    elif balance == "parameters":
        cost, what, unit = additive(parameter_counts(layers)), "parameters", "parameters"
    else:
        one_of("balance", balance, BALANCES)
        cost, what, unit = by_time(), "time", "s"
    counts = PARTITIONERS[partitioner](cost, len(layers), stages)
    costs = tuple(cost(own.start, own.stop) for own in stage_layers(counts))
    return Cut(tuple(counts), f"by {what} ({partitioner})", costs, unit)
