"""What a pipeline does beside training: evaluation, timelines, memory, cuts, refusals."""

import socket
import time
from itertools import accumulate

import pytest
import torch
import torch.distributed as dist
from compare import launch_all
from examples import batch, linear
from torch import nn

from repro.gpipe import Pipeline, PipelineConfig, launch
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.runtime.launch import StageError

MSE = nn.functional.mse_loss


def evaluated() -> tuple:
    """The loss and the outputs of an evaluation."""
    pipe = Pipeline([linear, lambda: nn.Dropout(0.5), linear], 3, 4, device="cpu")
    result = pipe.evaluate(*batch(), MSE)
    pipe.close()
    return result.loss, result.outputs


def refusal() -> str:
    """What a rank says when the first stage's inputs are no good."""
    pipe = Pipeline([linear, linear, linear], 3, 4, device="cpu")
    x, y = batch()
    try:
        pipe.train_step(x[:3], y[:3], MSE)
    except ValueError as error:
        return str(error)
    finally:
        pipe.close()
    return "accepted"


def foreign_clock() -> float:
    """The offset that the last stage finds when it believes that it is on another host."""
    if dist.get_rank():
        socket.gethostname = lambda: "elsewhere"
        here = time.perf_counter
        time.perf_counter = lambda: here() - 1000.0
    return ControlChannel(2, dist.get_rank()).clock_offset()


def everything() -> dict:
    """On three ranks."""
    results = {
        "refused": refusal(),
        "evaluation": evaluated(),
    }
    if dist.get_rank() < 2:
        results["clock"] = foreign_clock()
    return results


def fail(rank: int) -> None:
    """Raise on one stage."""
    if dist.get_rank() == rank:
        raise RuntimeError(f"stage {rank} cannot")
    dist.barrier()


@pytest.fixture(scope="module")
def ran():
    """Everything that three stage processes did, rank by rank."""
    return launch(everything, stages=3)


def test_results_are_on_every_rank_and_outputs_on_the_last(ran):
    assert ran[0]["evaluation"] == ran[1]["evaluation"] == (ran[2]["evaluation"][0], None)
    assert ran[2]["evaluation"][1].shape == batch()[1].shape


def test_evaluation_uses_evaluation_mode_and_restores():
    pipe = Pipeline([nn.Linear(6, 6), nn.Dropout()], 1, 2, device="cpu")
    losses = [pipe.evaluate(*batch(), MSE).loss for _ in range(2)]
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(MSE(pipe.module[0](batch()[0]), batch()[1]).item(), rel=1e-5)
    assert all(m.training for m in pipe.module.modules())
    assert all(p.grad is None for p in pipe.parameters())


def test_timelines_have_every_span_in_schedule_order():
    """With 1F1B at most K - j micro-batches are between F and B on stage j; with GPipe's all M."""
    config = PipelineConfig(3, 4, balance="uniform")
    of_1f1b = PipelineConfig(3, 4, balance="uniform", schedule="1f1b")
    for name, found in zip(("gpipe", "1f1b"), launch_all("nested", [config, of_1f1b]), strict=True):
        timeline = found.timeline
        assert timeline is not None
        for j in range(3):
            spans = timeline.on(j)
            kinds = [f"{s.kind}{s.micro_batch}" for s in spans if s.kind in "FRB"]
            if name == "gpipe":
                assert kinds == "F0 F1 F2 F3 R3 B3 R2 B2 R1 B1 R0 B0".split()
            assert spans[-1].kind == "U"
            live = accumulate({"F": 1, "R": 0, "B": -1}[kind[0]] for kind in kinds)
            assert max(live) == (3 - j if name == "1f1b" else 4)
        ends = {(s.kind, s.stage, s.micro_batch): s for s in timeline.spans}
        for (kind, j, i), span in ends.items():
            if kind == "F" and j:
                assert span.start >= ends["F", j - 1, i].end
            if kind == "B" and j < 2:
                assert span.start >= ends["B", j + 1, i].end
        assert 0 < timeline.bubble_over_total < 1


def test_refused_inputs_reach_every_rank(ran):
    assert "micro_batches=4: the mini-batch has only 3 examples" in ran[0]["refused"]
    assert all(ran[rank]["refused"] == ran[0]["refused"] for rank in (1, 2))


def test_clocks_of_two_hosts_are_aligned(ran):
    """A stage whose clock is 1000 s behind finds that out, to within the time of one exchange."""
    assert ran[0]["clock"] == 0.0
    assert ran[1]["clock"] == pytest.approx(1000.0, abs=0.05)


def test_a_failing_stage_is_named_with_its_traceback():
    """The stage that raised, not the neighbours that lost their connection a moment later."""
    with pytest.raises(
        StageError,
        match=r"(?s)rank 1, before its first step: RuntimeError: stage 1 cannot\n"
        "Traceback.*in fail",
    ):
        launch(fail, 1, stages=2)


def test_gradients_without_an_optimizer_accumulate():
    pipe = Pipeline([linear, linear], 1, 2, device="cpu")
    pipe.train_step(*batch(), MSE)
    once = [p.grad.clone() for p in pipe.parameters() if p.grad is not None]
    pipe.train_step(*batch(), MSE)
    for p, g in zip(pipe.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g)


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
        ({"micro_batches": 2.0}, "micro_batches=2.0: must be a whole number"),
        ({"balance": [1.0]}, r"balance=\[1.0\]: needs"),
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
