"""Running statistics are updated once a mini-batch, as those of the unsplit model."""

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline

N, C, M = 10, 3, 4
MSE = nn.functional.mse_loss
SIZES = {1: (), 2: (5, 4), 3: (3, 2, 2)}  # the dimensions after channels


class Checked(nn.BatchNorm2d):
    """A subclass that normalises by torch's forward."""


NORMS = {
    "1d of sequences": (nn.BatchNorm1d, 1, {}),
    "2d": (nn.BatchNorm2d, 2, {}),
    "3d": (nn.BatchNorm3d, 3, {}),
    "cumulative": (nn.BatchNorm2d, 2, {"momentum": None}),
    "subclass": (Checked, 2, {}),
}


class Twice(nn.Module):
    """Uses one norm for two things."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(self.norm(x) * 2.0 + x)


def batch(dimensions, n=N, sequence=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, C, *SIZES[dimensions], *[7] * sequence, generator=generator)
    return x * 3.0 + 1.0, torch.randn(x.shape, generator=generator)


def pipeline(module, m=M, checkpoint="always", **options):
    return Pipeline([module], 1, m, checkpoint=checkpoint, device="cpu", **options)


def snapshot(module):
    return {name: buffer.clone() for name, buffer in module.named_buffers()}


def expected(inputs, before, momentum, step):
    """The running statistics after a step, from all that the norm saw in it."""
    seen = torch.cat([x.double().transpose(0, 1).flatten(1) for x in inputs], dim=1)
    factor = 1.0 / step if momentum is None else momentum
    mean, var = (before[k].double() for k in ("running_mean", "running_var"))
    return {
        "running_mean": (1 - factor) * mean + factor * seen.mean(1),
        "running_var": (1 - factor) * var + factor * seen.var(1, unbiased=True),
        "num_batches_tracked": torch.tensor(step),
    }


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("checkpoint", ["always", "except_last"])
@pytest.mark.parametrize("name", NORMS)
def test_the_mini_batch_is_seen_once(name, checkpoint, twice):
    """Against mean and unbiased variance over all that went into the norm, however M cuts it."""
    kind, dimensions, options = NORMS[name]
    norm = kind(C, **options)
    in_forward, again = [], []
    pipe = pipeline(Twice(norm) if twice else norm, checkpoint=checkpoint)

    def record(_module, args):
        statistics = pipe.held.statistics
        assert statistics is not None
        (in_forward if statistics.counting else again).append(args[0].detach().clone())

    for step in (1, 2, 3):
        before = snapshot(norm)
        x, y = batch(dimensions, sequence=name == "1d of sequences", seed=step)
        hook = norm.register_forward_pre_hook(record)
        pipe.train_step(x, y, MSE)
        hook.remove()
        uses = M * (1 + twice)
        assert len(in_forward) == uses
        if step > 1:  # the first step also tries what F does without a graph
            assert len(again) == uses - (1 + twice) * (checkpoint == "except_last")
        wanted = expected(in_forward, before, norm.momentum, step)
        assert snapshot(norm).keys() == wanted.keys() == kind(C, **options)._buffers.keys()
        for key, value in wanted.items():
            torch.testing.assert_close(getattr(norm, key), value.to(getattr(norm, key).dtype))
        in_forward.clear()
        again.clear()
        assert norm.momentum == options.get("momentum", 0.1)


@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("m", [1, M])
def test_instance_norm_as_the_unsplit_one(m, momentum):
    """Each example has its own statistics, so M changes nothing; torch counts no batches."""
    norm, vanilla = (
        nn.InstanceNorm2d(C, momentum=momentum, track_running_stats=True) for _ in range(2)
    )
    pipe = pipeline(norm, m=m)
    for seed in range(2):
        x, y = batch(2, seed=seed)
        pipe.train_step(x, y, MSE)
        vanilla(x)
    for key, value in snapshot(vanilla).items():
        torch.testing.assert_close(snapshot(norm)[key], value)


class Faulty(nn.Module):
    """Fails in a chosen call."""

    fails_at = -1
    calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("not today")
        return x


@pytest.mark.parametrize("fails_at", [3, 5], ids=["third F", "R"])
def test_a_step_that_fails_leaves_no_trace(fails_at):
    """Statistics and attributes are as before it; the next step is as if it had not been."""
    norm, faulty, plain = nn.BatchNorm2d(C), Faulty(), nn.BatchNorm2d(C)
    pipe = pipeline(nn.Sequential(norm, faulty))
    before = snapshot(norm)
    faulty.fails_at = fails_at
    with pytest.raises(RuntimeError, match="not today"):
        pipe.train_step(*batch(2), MSE)
    assert all(torch.equal(snapshot(norm)[key], value) for key, value in before.items())
    assert norm.momentum == 0.1
    assert not norm._forward_hooks
    faulty.fails_at = -1
    pipe.train_step(*batch(2), MSE)
    pipeline(plain).train_step(*batch(2), MSE)
    assert all(torch.equal(snapshot(norm)[key], value) for key, value in snapshot(plain).items())
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad, rtol=0, atol=0)


class Beside(nn.Module):
    """Adds what several norms make of the same input, each in its own type."""

    def __init__(self, norms):
        super().__init__()
        self.norms = nn.ModuleList(norms)

    def forward(self, x):
        return sum(norm(x.to(norm.running_mean.dtype)).float() for norm in self.norms)


def test_norms_of_every_kind_and_type_in_one_stage():
    """Each as if it were alone."""

    def made():
        instance = nn.InstanceNorm2d(C, track_running_stats=True)
        return [nn.BatchNorm2d(C), instance, nn.BatchNorm2d(C).double()]

    together, single = made(), made()
    for seed in range(2):
        x, y = batch(2, seed=seed)
        pipeline(Beside(together)).train_step(x, y, MSE)
        for norm in single:
            pipeline(Beside([norm])).train_step(x, y, MSE)
    for norm, alone in zip(together, single, strict=True):
        for key, value in snapshot(alone).items():
            assert torch.equal(snapshot(norm)[key], value)
