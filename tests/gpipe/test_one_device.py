"""K stages on one device train what one stage trains, and end as stages on their own devices do.

On the CPU this always runs. On a GPU the same code runs with messages through host memory.
"""

import time
from pathlib import Path

import pytest
import torch
from checkpoints import same
from one_device import halfway, killed, resumed, too_large, trained

from repro.gpipe import launch
from repro.gpipe.checkpoint.save_load import whole_state_dict
from repro.gpipe.runtime.launch import StageError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LIMIT = 2**28  # bytes; the wide layer's weights alone are more


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(device: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Weights of one stage after four steps."""
    folder = tmp_path_factory.mktemp("alone")
    launch(trained, 1, device, folder, stages=1)
    return whole_state_dict(folder)


@pytest.mark.parametrize(
    ("K", "checkpoint"), [(2, "always"), (4, "never"), (4, "except_last"), (8, "always")]
)
def test_weights_have_the_same_bits_for_every_k(
    device: str, alone: dict[str, torch.Tensor], tmp_path: Path, K: int, checkpoint: str
):
    launch(trained, K, device, tmp_path, checkpoint, stages=K)
    assert same(whole_state_dict(tmp_path), alone)


def test_a_checkpoint_of_one_k_goes_on_with_another(
    device: str, alone: dict[str, torch.Tensor], tmp_path: Path
):
    launch(halfway, 4, device, tmp_path / "half", stages=4)
    launch(resumed, 2, device, tmp_path / "half", tmp_path / "end", stages=2)
    assert same(whole_state_dict(tmp_path / "end"), alone)


def test_a_stage_that_runs_out_of_memory_is_named(device: str):
    with pytest.raises(StageError, match=r"stage 1\b.*are allowed"):
        launch(too_large, 2, device, LIMIT, stages=2)


def test_a_stage_that_is_killed_ends_the_others_soon(device: str):
    began = time.monotonic()
    with pytest.raises(StageError, match=r"stage 2\b.*SIGKILL"):
        launch(killed, 4, device, 2, stages=4)
    assert time.monotonic() - began < 60
