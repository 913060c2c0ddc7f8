"""Bytes that divided convolutions send: counted, and by processes that ran them."""

from pathlib import Path

import pytest

from repro.harness.results import Run, load
from repro.methods.counted import count
from repro.methods.named import COUNTED
from repro.models import build

REFERENCE = Path(__file__).parents[2] / "results/reference"
# Of a step on two processes, by each of them, when such steps could be run.
SENT = {
    "channels": 2 * [{"all-gather": 3659072, "all-reduce": 16138368}],
    "rows": [
        {"broadcast": 13464, "messages": 1270016, "all-reduce": 1529928},
        {"broadcast": 13464, "messages": 1245440, "all-reduce": 1529928},
    ],
}


@pytest.mark.parametrize("library", COUNTED)
def test_what_is_counted_was_sent(library):
    model = build("amoebanet-d", L=3, D=32, image=64, num_classes=10)
    found = count(library, model.layers, model.batch(4, 0)[0], 2, 4)
    for sent, counted in zip(SENT[library], found.sent, strict=True):
        assert sent == pytest.approx(counted, abs=4)  # rounded once or several times


@pytest.fixture(scope="module")
def recorded() -> list[Run]:
    """Counts at the paper's size on eight processes."""
    return [run for run in load(REFERENCE).runs if run.library in COUNTED and run.done]


@pytest.mark.parametrize("library", COUNTED)
def test_what_is_counted_is_as_recorded(recorded, library):
    runs = [run for run in recorded if run.library == library]
    assert runs
    for run in runs:
        model = build(run.model, **run.spec.arguments)
        inputs, _ = model.batch(run.N // run.M, 0)
        found = count(library, model.layers, inputs, run.spec.tensor_parallel, run.M)
        record = run.rounds[0].values
        for sent, counted in zip(record["sent_bytes"], found.sent, strict=True):
            assert sent == pytest.approx(counted, abs=4), run.id
        assert found.undivided == pytest.approx(record["undivided"])


def test_what_is_not_divided_is_computed_by_all():
    """With three processes no convolution of 8 filters has equal parts."""
    model = build("amoebanet-d", L=3, D=8, image=32)
    inputs, _ = model.batch(2, 0)
    sent, undivided = count("channels", model.layers, inputs, 3, 1)
    assert undivided == 1
    assert {size for of_process in sent for size in of_process.values()} == {0}
