"""What a pipeline does beside training: evaluation, timelines, clocks, refusals."""

import socket
import time
from itertools import accumulate

import pytest
import torch.distributed as dist
from compare import launch_all
from examples import batch, linear
from torch import nn

from repro.gpipe import Pipeline, PipelineConfig, launch
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.runtime.launch import StageError

MSE = nn.functional.mse_loss
KINDS = ("gpipe", "1f1b")


def foreign_clock() -> float:
    """The offset that the last stage finds when it believes that it is on another host."""
    if dist.get_rank():
        socket.gethostname = lambda: "elsewhere"
        here = time.perf_counter
        time.perf_counter = lambda: here() - 1000.0
    return ControlChannel(2, dist.get_rank()).clock_offset()


def everything() -> tuple:
    """An evaluation on two ranks, and their clocks."""
    pipe = Pipeline([linear, lambda: nn.Dropout(0.5), linear], 2, 4, device="cpu")
    result = pipe.evaluate(*batch(), MSE)
    pipe.close()
    return result.loss, result.outputs, foreign_clock()


def fail(rank: int) -> None:
    if dist.get_rank() == rank:
        raise RuntimeError(f"stage {rank} cannot")
    dist.barrier()


def test_results_are_on_every_rank_outputs_on_the_last_and_clocks_of_two_hosts_aligned():
    (loss, outputs, clock), (other_loss, other_outputs, other_clock) = launch(everything, stages=2)
    assert (loss, outputs) == (other_loss, None)
    assert other_outputs.shape == batch()[1].shape
    # A stage whose clock is 1000 s behind finds that out, to within the time of one exchange.
    assert clock == 0.0
    assert other_clock == pytest.approx(1000.0, abs=0.05)


def test_timelines_have_every_span_in_schedule_order():
    """With 1F1B at most K - j micro-batches are between F and B on stage j; with GPipe's all M."""
    cases = [("nested", PipelineConfig(3, 4, balance="uniform", schedule=s)) for s in KINDS]
    for (_, config), found in launch_all(cases).items():
        timeline = found.timeline
        assert timeline is not None
        for j in range(3):
            spans = timeline.on(j)
            kinds = [f"{s.kind}{s.micro_batch}" for s in spans if s.kind in "FRB"]
            if config.schedule == "gpipe":
                assert kinds == "F0 F1 F2 F3 R3 B3 R2 B2 R1 B1 R0 B0".split()
            assert spans[-1].kind == "U"
            live = accumulate({"F": 1, "R": 0, "B": -1}[kind[0]] for kind in kinds)
            assert max(live) == (3 - j if config.schedule == "1f1b" else 4)
        ends = {(s.kind, s.stage, s.micro_batch): s for s in timeline.spans}
        for (kind, j, i), span in ends.items():
            if kind == "F" and j:
                assert span.start >= ends["F", j - 1, i].end
            if kind == "B" and j < 2:
                assert span.start >= ends["B", j + 1, i].end


def test_a_failing_stage_is_named_with_its_traceback():
    """The stage that raised, not the neighbours that lost their connection a moment later."""
    with pytest.raises(
        StageError,
        match=r"(?s)rank 1, before its first step: RuntimeError: stage 1 cannot\n"
        "Traceback.*in fail",
    ):
        launch(fail, 1, stages=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 2}, "only 1 process"),
        ({"balance": "tim"}, "did you mean 'time'"),
        ({"balance": "time"}, "needs sample="),
        ({"balance": [1, 1]}, r"needs 1 positive numbers that sum to the model's 2 layers"),
        ({"checkpoint": "alway"}, "did you mean 'always'"),
        ({"schedule": "1b1f"}, "choose one of gpipe"),
        ({"micro_batches": 0}, "at least 1"),
        ({"layers": 3}, "sequence of modules or factories"),
        ({"stages": "1"}, "stages='1': must be a whole number"),
        ({"replicas": 0}, "replicas=0: must be a whole number, at least 1"),
        ({"device": "tpu"}, "device='tpu': choose"),
    ],
)
def test_one_line_for_a_wrong_argument(change, words):
    arguments = {
        "layers": [linear, linear],
        "stages": 1,
        "micro_batches": 2,
        "device": "cpu",
    } | change
    with pytest.raises(ValueError, match=words) as caught:
        Pipeline(**arguments)
    assert "\n" not in str(caught.value)
