"""Bytes that divided convolutions send: counted, and by recorded processes that ran them."""

from pathlib import Path

import pytest

from repro.harness.results import Run, load
from repro.methods.counted import count
from repro.methods.named import COUNTED
from repro.models import build

REFERENCE = Path(__file__).parents[2] / "results/reference"


@pytest.fixture(scope="module")
def recorded() -> list[Run]:
    """Steps that were measured on two processes, and the counts at the paper's size on eight."""
    return [run for run in load(REFERENCE).runs if run.library in COUNTED and run.done]


@pytest.mark.parametrize("task", ["train", "traffic"])
@pytest.mark.parametrize("library", COUNTED)
def test_what_is_counted_was_sent(recorded, library, task):
    runs = [run for run in recorded if (run.library, run.spec.task) == (library, task)]
    assert runs
    for run in runs:
        model = build(run.model, **run.spec.arguments)
        inputs, _ = model.batch(run.N // run.M, 0)
        found = count(library, model.layers, inputs, run.spec.tensor_parallel, run.M)
        record = run.rounds[0].values
        assert len(record["sent_bytes"]) == len(found.sent)
        for sent, counted in zip(record["sent_bytes"], found.sent, strict=True):
            assert sent == pytest.approx(counted, abs=4), run.id  # rounded once or several times
        if task == "traffic":
            assert found.undivided == pytest.approx(record["undivided"])


def test_what_is_not_divided_is_computed_by_all():
    """With three processes no convolution of 8 filters has equal parts."""
    model = build("amoebanet-d", L=3, D=8, image=32)
    inputs, _ = model.batch(2, 0)
    sent, undivided = count("channels", model.layers, inputs, 3, 1)
    assert undivided == 1
    assert {size for of_process in sent for size in of_process.values()} == {0}
