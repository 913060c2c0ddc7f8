"""What a pipeline does beside training: evaluation, timelines, memory, cuts, refusals."""

import socket
import time
from itertools import accumulate

import pytest
import torch
import torch.distributed as dist
from compare import launch_all
from examples import WIDTH, batch, linear
from torch import Tensor, nn

from repro.gpipe import Pipeline, PipelineConfig, Whole, launch
from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.runtime.launch import StageError

MSE = nn.functional.mse_loss


def peaks() -> dict:
    """Peak bytes with and without re-materialization."""
    layers = [lambda: nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))) for _ in range(3)]
    found = {}
    for checkpoint in ("always", "never"):
        pipe = Pipeline(layers, 3, 8, checkpoint=checkpoint, device="cpu")
        x = torch.ones(512, 64)
        pipe.train_step(x, x, MSE)
        found[checkpoint] = pipe.measure_memory(x, x, MSE)
        pipe.close()
    return found


class Masked(nn.Module):
    """Takes (x, mask) with a mask that has nothing to do with the batch."""

    def forward(self, value: tuple) -> Tensor:
        return value[0] @ value[1]


def whole() -> float:
    """A member that every micro-batch gets uncut."""
    pipe = Pipeline([Masked, linear, linear], 3, 5, device="cpu")
    x, y = batch()
    loss = pipe.train_step((x, Whole(torch.eye(WIDTH))), y, MSE).loss
    pipe.close()
    return loss


def by_time() -> tuple:
    """A cut by measured time: the same on every rank."""
    layers = [
        lambda: nn.Linear(8, 900),
        lambda: nn.Linear(900, 900),
        lambda: nn.Linear(900, 900),
        lambda: nn.Linear(900, 8),
    ]
    pipe = Pipeline(layers, 3, 2, balance="time", sample=torch.ones(64, 8), device="cpu")
    pipe.close()
    return pipe.balance, pipe.cut.imbalance


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
    return Wire(2, dist.get_rank()).clock_offset()


def everything() -> dict:
    """On three ranks."""
    results = {
        "memory": peaks(),
        "whole": whole(),
        "time": by_time(),
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


def test_recompute_saves_memory_on_every_stage(ran):
    peaks = ran[0]["memory"]
    assert peaks == ran[1]["memory"] == ran[2]["memory"]
    assert all(a < 0.75 * n for a, n in zip(peaks["always"], peaks["never"], strict=True))
    parameters = 8 * (64 * 64 + 64) * 4
    boundary = 512 * 64 * 4
    assert all(p > 2 * parameters + boundary for p in peaks["always"]), (
        "weights, gradients and kept inputs at least"
    )


def test_whole_members(ran):
    assert ran[0]["whole"] == ran[2]["whole"] > 0


def test_balance_by_time_agrees_and_is_sensible(ran):
    balance, imbalance = ran[0]["time"]
    assert ran[1]["time"] == ran[2]["time"] == (balance, imbalance)
    assert balance in ((2, 1, 1), (1, 1, 2)), (
        "the two heavy layers in the middle on stages of their own"
    )
    assert imbalance >= 0


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


def test_a_step_that_failed_taught_nothing():
    """An in-place first layer is found in the first good step, so R sees unspoilt inputs."""
    layers = [lambda: nn.LeakyReLU(0.1, inplace=True), linear]
    x, y = batch()
    expected = Pipeline(layers, 1, 2, device="cpu", checkpoint="never")
    expected.train_step(x.clone(), y, MSE)
    pipe = Pipeline(layers, 1, 2, device="cpu")

    def broken(outputs, targets):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pipe.train_step(x, y, broken)
    pipe.train_step(x, y, MSE)
    for ours, theirs in zip(pipe.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
