"""The asynchronous pipeline, held against its definition in one process."""

from typing import Any

import pytest
import torch
from asynchronous import of_three_stages, of_two_stages, one_process, trained

from repro.gpipe import launch

TWO = [(4, "never", "auto"), (1, "always", "gloo")]
# With M=1 stage 0 has more micro-batches in flight than a step has.
THREE = [(4, "always", "auto"), (1, "never", "gloo")]


@pytest.fixture(scope="module")
def two_stages():
    return launch(of_two_stages, TWO, stages=2)


@pytest.fixture(scope="module")
def three_stages():
    return launch(of_three_stages, THREE, stages=3)


def compare(results: list[dict[str, Any]], M: int) -> None:
    """Results of all stages against the definition."""
    K = len(results)
    losses, weights = one_process(K, M)
    for result in results:
        assert result["losses"] == pytest.approx(losses, rel=1e-6)
        assert result["weights"].keys() == weights.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=1e-5, atol=1e-6)
        assert result["staleness"] == [K - 1 - j for j in range(K)]
        sizes = result["sizes"]
        assert result["stashed"] == [(K - 1 - j) * sizes[j] for j in range(K)]
        assert result["evaluated"] == results[0]["evaluated"]
        assert [sum(counts.values()) for counts in result["counted"]] == result["sent"]
        assert ["activations" in counts for counts in result["counted"]] == [True] * (K - 1) + [
            False
        ]


def test_one_stage_is_plain_training_with_small_mini_batches():
    compare([trained(1, 3, "always")], 3)


@pytest.mark.parametrize("case", range(2))
def test_each_micro_batch_updates_with_the_weights_of_its_forward(two_stages, three_stages, case):
    compare([results[case] for results, _ in two_stages], TWO[case][0])
    compare([results[case] for results in three_stages], THREE[case][0])


def test_without_an_optimizer_the_gradients_are_those_of_the_unsplit_model(two_stages):
    _, checks = two_stages[0]
    for name in ("gradients", "evaluation", "dropout", "unequal micro-batches"):
        assert checks[name].verdict == "ok", checks[name]
    # Each micro-batch is a mini-batch of its own, counted once although it is recomputed.
    assert "num_batches_tracked is 4" in checks["batch norm"].evidence
