"""Losses whose terms are not the examples, against plain PyTorch on the whole mini-batch."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import Apply, Around, CountingLoss, refused
from torch import Tensor, nn
from torch.nn import functional

from repro.gpipe import Pipeline, RefusedError, Weighted, Whole, launch
from repro.gpipe.tree import map_leaves

# One launch trains with every loss.
pytestmark = pytest.mark.timeout(180)
N, CLASSES, TOKENS, PAD = 16, 4, 5, 0
SPLITS = [(1, 1, 1), (1, 4, 1), (2, 4, 1), (3, 2, 1), (1, 1, 2), (2, 2, 2)]  # K, M and D
REFUSED = "Weighted(loss_fn, lambda targets: number of terms)"
SPLIT = "M = D = 1 if it compares examples"
Loss = Callable[[Any, Any], Any]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*ignored: int) -> Tensor:
    """Classes, of which all micro-batches have other numbers; those ignored are -100."""
    found = torch.randint(CLASSES, (N,), generator=torch.Generator().manual_seed(1))
    found[[*ignored]] = -100
    return found


def tokens() -> Tensor:
    """Classes of TOKENS tokens each; sentences get shorter, and what follows is PAD."""
    found = torch.randint(1, CLASSES, (N, TOKENS), generator=torch.Generator().manual_seed(2))
    for n, length in enumerate(range(TOKENS * 2, 2, -1)):
        found[n * 2 : n * 2 + 2, max(1, length // 2) :] = PAD
    return found


WEIGHTS = torch.tensor([0.1, 1.0, 5.0, 2.0], dtype=torch.float64)
HARD, SOFT = labels(0, 1, 2, 5), torch.softmax(random(N, CLASSES, seed=3), 1)
SIGNS = (random(N, CLASSES, seed=4) > 0).double()
SOME = random(N, CLASSES, seed=5)


class Own(nn.Module):
    """Holds a loss of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss()

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.inner(outputs, targets)


class Averaging(nn.Module):
    """Computes with a buffer that it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Any
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.scale.mul_(1.0)
        return functional.mse_loss(outputs * self.scale, targets)


# What torch divides by is found without a word from the user. name -> (loss, targets)
OF_TORCH: dict[str, tuple[Loss, Any]] = {
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHTS), labels()),
    "ignored labels": (nn.CrossEntropyLoss(), HARD),
    "a micro-batch of ignored labels": (nn.CrossEntropyLoss(), labels(0, 1, 2, 3)),
    "both": (nn.CrossEntropyLoss(weight=WEIGHTS, ignore_index=3), labels()),
    "smooth, weights": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), labels()),
    "smooth, ignored": (partial(functional.cross_entropy, label_smoothing=0.1), HARD),
    "probabilities": (nn.CrossEntropyLoss(weight=WEIGHTS), SOFT),
    "function": (functional.cross_entropy, HARD),
    "compiled": (torch.compile(nn.CrossEntropyLoss(), backend="eager"), HARD),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), HARD),
    "sum of squares": (partial(functional.mse_loss, reduction="sum"), SOME),
    "binary": (nn.BCEWithLogitsLoss(weight=WEIGHTS, pos_weight=WEIGHTS), SIGNS),
    "margins": (nn.MultiMarginLoss(weight=WEIGHTS), labels()),
}


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    each = functional.cross_entropy(outputs, targets, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def masked_mean(outputs: Tensor, targets: Tensor) -> Tensor:
    mask = targets != PAD
    return ((outputs.mean(1, keepdim=True) - targets) ** 2 * mask).sum() / mask.sum()


def info_nce(outputs: Tensor, targets: Tensor) -> Tensor:
    z = functional.normalize(outputs, dim=1)
    return functional.cross_entropy(z @ z.T / 0.1, torch.arange(len(z)))


def mixup(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    each = [functional.cross_entropy(outputs, target) for target in targets]
    return 0.3 * each[0] + 0.7 * each[1]


def scaled_in_place(outputs: Tensor, targets: Tensor) -> Tensor:
    targets /= 10
    return functional.mse_loss(outputs, targets)


# Of people's own: (loss, targets, whether it can be split into micro-batches).
OWN: dict[str, tuple[Loss, Any, bool]] = {
    "focal": (focal, labels(), True),
    "module with an average": (Averaging(), SOME, True),
    "focal, weighted": (Weighted(focal, len), labels(), True),
    "masked mean": (masked_mean, tokens(), False),
    "masked mean, weighted": (Weighted(masked_mean, lambda t: (t != PAD).sum()), tokens(), True),
    "wrongly weighted": (Weighted(nn.CrossEntropyLoss(), len), HARD, False),
    "InfoNCE": (info_nce, None, False),
    "module": (Own(), labels(), True),
    "mixup of ignored labels": (mixup, (HARD, HARD.roll(3)), False),
    "centred": (lambda o, t: functional.mse_loss(o - o.mean(0), t), SOME, False),
    "centred targets": (lambda o, t: functional.mse_loss(o, t - t.mean(0)), SOME, False),
    "times the examples": (lambda o, t: functional.cross_entropy(o, t) * len(t), HARD, False),
    "row by row": (lambda o, t: sum(each.square().sum() for each in o) / len(t), SOME, True),
    "targets in place": (scaled_in_place, SOME, True),
}
ALL = {name: case[:2] for name, case in (OF_TORCH | OWN).items()}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    f64: Any = {"dtype": torch.float64}
    layers = nn.Linear(8, 16, **f64), nn.GELU(), nn.Linear(16, CLASSES, **f64)
    return nn.Sequential(*layers)


def plain(name: str) -> tuple[list[float], dict[str, Tensor]]:
    loss_fn, targets = ALL[name]
    whole = model()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        outputs = whole(random(N, 8, seed=7))
        loss = loss_fn(outputs, map_leaves(Tensor, torch.clone, targets))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, whole.state_dict()


def piped(K: int, M: int, D: int, name: str) -> tuple[list[float], dict[str, Tensor]] | str:
    """The losses and this stage's weights, or the line of a refusal."""
    loss_fn, targets = ALL[name]
    pipe = Pipeline(model(), K, M, D, device="cpu", balance="uniform")
    x, y = map_leaves(Tensor, lambda t: t[pipe.replica :: D], (random(N, 8, seed=7), targets))
    optimizer = torch.optim.SGD([{"params": [*pipe.parameters()]}], lr=0.01)
    steps = range(3)
    try:
        losses = [pipe.train_step(x, y, loss_fn, optimizer).loss for _ in steps]
    except ValueError as error:
        return str(error)
    finally:
        pipe.close()
    return losses, {name: value.clone() for name, value in pipe.module.state_dict().items()}


def counted(K: int, replicas: int, loss_fns: Sequence[Loss]) -> list[Any]:
    """Metrics of a step and of an evaluation, with the losses of the replicas, and without any."""
    pipe = Pipeline(model(), K, 4, replicas, device="cpu")
    x, y = random(N, 8, seed=7), labels()
    loss_fn = loss_fns[pipe.replica]
    found = [call(x, y, loss_fn).metrics for call in (pipe.train_step, pipe.evaluate)]
    return [*found, pipe.train_step(x, y, nn.CrossEntropyLoss()).metrics]


def evaluated() -> list[Any]:
    """A refusal, and the loss of what follows."""
    pipe = Pipeline(model(), 2, 4, device="cpu")
    with pytest.raises(RefusedError) as caught:
        pipe.evaluate(random(N, 8), SOME, info_nce)
    return [str(caught.value), pipe.evaluate(random(N, 8), SOME, nn.MSELoss()).loss]


def everything() -> dict[Any, Any]:
    rank = dist.get_rank()
    found: dict[Any, Any] = {
        (*way, name): piped(*way, name) for way in SPLITS if rank < way[0] * way[2] for name in ALL
    }
    of_replica = Weighted(Counting(), len)
    found["metrics"] = counted(2, 2, [of_replica] * 2)
    if rank < 2:
        found["metrics of one"] = counted(1, 2, [nn.CrossEntropyLoss(), of_replica])
        found["evaluated"] = evaluated()
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[Any, Any]]:
    return launch(everything, stages=4)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", ALL)
def test_a_loss_is_that_of_the_mini_batch_or_refused(name: str, found: Any):
    losses, weights = plain(name)
    for K, M, D in SPLITS:
        ranks = [found[rank][K, M, D, name] for rank in range(K * D)]
        must_be_refused = name in OWN and not OWN[name][2] and M * D > 1
        if must_be_refused and M == 1:  # replicas do not compare their losses
            continue
        if must_be_refused:
            assert all(REFUSED in line and "\n" not in line for line in ranks), (K, M, D, ranks)
            assert len(ranks[0]) <= 200
            continue
        for part in ranks:
            assert not isinstance(part, str), (K, M, D, part)
            assert part[0] == pytest.approx(losses, rel=1e-12)
            for key, value in part[1].items():
                torch.testing.assert_close(value, weights[key], rtol=1e-6, atol=1e-8)


def one_stage(M: int = 4, **options: Any) -> Pipeline:
    return Pipeline(model(), 1, M, device="cpu", **options)


class Counting:
    """A loss that counts its examples in every way there is, and returns them as metrics."""

    def __init__(self) -> None:
        self.number, self.tensor, self.list = 0, torch.zeros(()), []
        self.dict: dict[str, int] = {}

    def __call__(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Any]]:
        self.number += len(targets)
        self.tensor += len(targets)
        self.list += [0] * len(targets)
        self.dict["n"] = self.dict.get("n", 0) + len(targets)
        found = {"n": len(targets), "right": (outputs.argmax(1) == targets).sum()}
        # Whole numbers of few bits, which would wrap.
        found |= {"calls": torch.tensor(True), "bytes": torch.tensor(100, dtype=torch.uint8)}
        return functional.cross_entropy(outputs, targets), found


@pytest.mark.parametrize("recompute", ["always", "never", "except_last"])
def test_what_a_loss_counts_is_counted_once(recompute: str):
    counting, pipe = Counting(), one_stage(recompute=recompute)
    x, y = random(N, 8, seed=7), labels()
    in_closure = [0]

    def loss(outputs: Tensor, targets: Tensor) -> Any:
        in_closure[0] += len(targets)
        return counting(outputs, targets)

    outputs: Any = pipe.predict(x)
    right = int((outputs.argmax(1) == y).sum())
    results = [pipe.train_step(x, y, loss) for _ in range(3)]
    counts = [counting.number, int(counting.tensor), len(counting.list), counting.dict["n"]]
    assert [*counts, *in_closure] == [3 * N] * 5
    expected = {"n": N, "right": right, "calls": 4, "bytes": 400}
    assert [result.metrics for result in results] == [expected] * 3
    assert pipe.evaluate(x, y, loss).metrics == expected


def test_metrics_are_summed_over_replicas_and_known_on_every_rank(found: Any):
    for process in found:
        trained, evaluated, none = process["metrics"]
        assert trained == evaluated
        assert (trained["n"], none) == (2 * N, {})
    for process in found[:2]:  # with metrics of one replica alone
        trained, evaluated, _ = process["metrics of one"]
        assert trained["n"] == evaluated["n"] == N


def test_a_micro_batch_without_terms_has_metrics():
    loss_fn = Weighted(
        lambda o, t: (functional.cross_entropy(o, t), {"n": len(t)}), lambda t: (t >= 0).sum()
    )
    result = one_stage().train_step(random(N, 8), labels(0, 1, 2, 3), loss_fn)
    assert result.metrics == {"n": N}


def test_an_evaluation_is_refused_on_all_ranks_which_go_on(found: Any):
    refusal, loss = found[0]["evaluated"]
    assert found[1]["evaluated"] == [refusal, loss]
    assert SPLIT in refusal
    assert loss > 0


def moving(outputs: Tensor, targets: Tensor, seen: list[float] = [0.0]) -> Tensor:  # noqa: B006
    seen[0] += 1
    return functional.mse_loss(outputs, targets) * seen[0]


def of_nothing(outputs: Tensor, targets: Tensor) -> Tensor:
    """Uses a tensor of nobody's, and weighs nothing in the first micro-batch."""
    return functional.mse_loss(outputs, targets) * FOREIGN


FOREIGN = torch.ones((), dtype=torch.float64, requires_grad=True)
PARTLY_ZERO = SOME * (torch.arange(N) >= N // 4)[:, None]


@pytest.mark.parametrize(
    ("loss_fn", "targets", "words"),
    [
        (lambda o, t: focal(o.div_(2), t), labels(), "writes to outputs in place"),
        (lambda o, t: (focal(o, t), 1), labels(), "needed is one number, .* a dict of metrics"),
        (
            Weighted(of_nothing, lambda t: (t != 0).sum()),
            PARTLY_ZERO,
            "a layer or the loss uses a tensor of shape",
        ),
    ],
)
def test_losses_that_are_refused(loss_fn: Loss, targets: Tensor, words: str):
    refused(words, one_stage().train_step, random(N, 8), targets, loss_fn)


def test_unequal_terms_are_found_in_the_next_step_that_is_compared():
    pipe, x, equal = one_stage(), random(N, 8), tokens().clamp(min=1)
    for _ in range(3):
        pipe.train_step(x, equal, masked_mean)
    for call in (pipe.train_step, pipe.evaluate):  # the fourth one, also when it is called again
        refused("for the mini-batch, .* as the mean of its 4 parts", call, x, tokens(), masked_mean)
    one_stage(without=["LossCheck"]).train_step(x, tokens(), masked_mean)


def test_labels_that_are_ignored_from_a_later_step_on_are_found_at_once():
    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    pipe, x, labels = one_stage(), random(N, 8), torch.arange(N) % 4
    for _ in range(2):
        pipe.train_step(x, labels, own)
    ignored = labels.index_fill(0, torch.tensor([0]), -100)
    refused("for the mini-batch, .* as the mean of its", pipe.train_step, x, ignored, own)


def test_labels_of_few_bits_are_no_mask_of_class_weights():
    loss_fn, labels = (
        nn.CrossEntropyLoss(torch.rand(4).double()),
        (torch.arange(N) % 4).to(torch.uint8),
    )
    pipe, x = one_stage(), random(N, 8)
    with torch.no_grad():
        expected = float(loss_fn(pipe.module(x), labels))
    assert pipe.train_step(x, labels, loss_fn).loss == pytest.approx(expected)


class Doubled(nn.Module):
    def __init__(self, inner: Loss) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.inner(outputs, targets) * 2.0


def of_times(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets.T[..., None]) ** 2).mean() + outputs[0].abs().mean()


def decayed(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return ((outputs[0] - targets) ** 2).mean() + (outputs[1] ** 2).sum()


def entropy(outputs: Tensor, _: Tensor) -> Tensor:
    return -(outputs.softmax(1) * outputs.log_softmax(1)).sum(1).mean()


def masked_by_outputs(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    each = ((outputs[0] - targets) ** 2).mean(1)
    return (each * outputs[1]).sum() / outputs[1].sum()


def masked_by_targets(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    return masked_by_outputs((outputs[0], targets[1]), targets[0])


def first_times(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs[0].square().mean()


def centred_times(outputs: Tensor, _: Tensor) -> Tensor:
    return (outputs - outputs.mean(1, keepdim=True)).square().mean()


def policy(outputs: Tensor, advantages: Tensor) -> Tensor:
    return -((outputs[:, 0] - outputs[:, 0].detach()).exp() * advantages).mean()


def balanced(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """With a parameter that torch's functions have."""
    weight = (1 - targets).sum() / targets.sum()
    return functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weight)


class ByFrequency(nn.CrossEntropyLoss):
    """With the options of torch's loss, and metrics."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Any:
        weight = len(targets) / (torch.bincount(targets, minlength=CLASSES) + 1.0).double()
        return functional.cross_entropy(outputs, targets, weight=weight), {}


SCORE, SCORES = nn.Linear(8, 1).double(), nn.Linear(8, CLASSES).double()
# A sequence of two tokens for each example, with CLASSES numbers each.
TIME_FIRST = Apply(lambda x: x.unflatten(1, (2, CLASSES)).transpose(0, 1))
# A weight beside the outputs, with as many columns as a micro-batch has examples.
WITH_WEIGHT = Around(nn.Linear(4, 5).double(), lambda m, x: (x, m.weight))
# Two rows for each example, with as many columns as a micro-batch has examples.
TOKEN_ROWS = Apply(lambda x: x.reshape(-1, 4))
# A mask beside the outputs, which counts the terms of the loss.
MASKED = Apply(lambda x: (x[:, :CLASSES], x[:, 0] > 0))
ALL_KEPT = Apply(lambda x: (x[:, :CLASSES], torch.ones(len(x))))  # the same in all micro-batches
# A sequence of four tokens for each example, with two numbers each.
TIMES = Apply(lambda x: x.unflatten(1, (4, 2)).transpose(0, 1))
INPUTS = random(N, 8, seed=7)
# Those of each micro-batch add up to rounding.
OF_PARTS = random(4, N // 4, seed=4)
ADVANTAGES = (OF_PARTS - OF_PARTS.mean(1, keepdim=True)).flatten()


@pytest.mark.parametrize(
    ("layer", "examples", "M", "targets", "loss_fn"),
    [
        *((TIME_FIRST, n, M, random(n, 2, seed=1), of_times) for n, M in ((4, 4), (5, 2), (6, 2))),
        # 16 are as many as times, by four.
        *((TIMES, n, 4, None, Weighted(first_times, len)) for n in (8, 16)),
        (WITH_WEIGHT, N, 4, random(N, 8, seed=1), decayed),
        (TOKEN_ROWS, N, 4, None, entropy),
        (
            MASKED,
            N,
            4,
            (SOME, INPUTS[:, 0] > 0),
            Weighted(masked_by_targets, lambda targets: targets[1].sum()),
        ),
        (nn.Identity(), N, 4, ADVANTAGES, policy),  # its terms cancel
    ],
)
def test_outputs_of_any_form_have_the_loss_of_the_mini_batch(
    layer: nn.Module, examples: int, M: int, targets: Any, loss_fn: Any
):
    x = INPUTS[:examples]
    found = Pipeline([layer], 1, M, device="cpu").train_step(x, targets, loss_fn).loss
    assert found == pytest.approx(loss_fn(layer(x), targets).item(), rel=1e-12, abs=1e-15)


def test_what_is_left_where_micro_batches_cancel_is_rounding():
    pipe = Pipeline([nn.Identity()], 1, 4, device="cpu")
    pipe.train_step(INPUTS, 1e6 * (SOME[:, 0] - SOME[:, 0].mean()), policy)


@pytest.mark.parametrize(
    ("layer", "examples", "loss_fn", "words"),
    [
        (TIMES, N // 2, centred_times, "two dimensions of its outputs"),
        (TOKEN_ROWS, N, entropy, "two dimensions of its outputs"),
        (nn.Identity(), N, moving, "it holds state"),
    ],
)
def test_a_loss_that_cannot_be_compared_has_a_warning(
    layer: nn.Module, examples: int, loss_fn: Loss, words: str, caplog: Any
):
    x, targets = INPUTS[:examples], torch.zeros(examples, 8)
    Pipeline([layer], 1, 4, device="cpu").train_step(x, targets, loss_fn)
    assert words in caplog.text


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("layer", "targets", "loss_fn"),
    [
        (SCORE, {"y": random(N, seed=8)}, lambda o, t: functional.mse_loss(o, t["y"])),
        (SCORE, random(N, 1, seed=8), lambda o, t: functional.l1_loss(o.flatten(), t)),
        (SCORE, SOFT[:, 0], lambda o, t: functional.cross_entropy(o.view(1, -1), t.view(1, -1))),
        (SCORES, SIGNS, balanced),
        (SCORES, labels(), ByFrequency()),
        (MASKED, SOME, masked_by_outputs),
        (ALL_KEPT, SOME - SOME.mean(0), lambda o, t: masked_by_outputs(o, t - t.mean(0))),
        (TIME_FIRST, random(N, 2, seed=1), lambda o, t: of_times(o - o.mean(1, keepdim=True), t)),
        (
            TIME_FIRST,
            random(N, 2, CLASSES, seed=1).abs(),
            lambda o, t: functional.kl_div(o, t.transpose(0, 1), reduction="batchmean"),
        ),
    ],
)
def test_outputs_of_other_forms_that_cannot_be_split(layer: nn.Module, targets: Any, loss_fn: Loss):
    refused(SPLIT, Pipeline([layer], 1, 4, device="cpu").train_step, INPUTS, targets, loss_fn)


FORWARDS: list[int] = []


@pytest.mark.parametrize(
    "losses",
    [(Own(), Averaging()), (Averaging(), nn.MSELoss()), tuple(Averaging() for _ in range(8))],
)
def test_losses_that_take_turns_are_known_after_their_first_step(losses: Any):
    pipe = Pipeline([*model(), Apply(lambda x: FORWARDS.append(len(x)) or x)], 1, 4, device="cpu")
    of_class: dict[Any, Any] = {Own: labels()}
    counts = []
    for loss_fn in losses * 3:
        FORWARDS.clear()
        pipe.train_step(random(N, 8), of_class.get(type(loss_fn), SOME), loss_fn)
        counts.append(len(FORWARDS))
    turns = len(losses)
    assert counts[turns:] == [8] * 2 * turns  # F and R of each micro-batch
    assert max(counts[:turns]) > 8  # an average that begins to move is found once


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("loss_fn", [Own(), Doubled(nn.MSELoss()), CountingLoss()])
@pytest.mark.parametrize("recompute", ["always", "never"])
def test_a_compiled_loss_is_as_without_torch_compile(loss_fn: nn.Module, recompute: str):
    targets = labels() if isinstance(loss_fn, Own) else SOME
    losses = [deepcopy(loss_fn), torch.compile(deepcopy(loss_fn), backend="aot_eager")]
    found = []
    for each in losses:
        pipe = one_stage(recompute=recompute)
        found.append([pipe.train_step(random(N, 8), targets, each).loss for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_a_step_that_is_not_finite_is_no_comparison():
    pipe, x = one_stage(), random(N, 8)
    with pytest.raises(FloatingPointError):
        pipe.train_step(x * torch.nan, None, info_nce)
    refused(SPLIT, pipe.train_step, x, None, info_nce)


@pytest.mark.parametrize(
    "loss_fn",
    [
        lambda o, t: functional.mse_loss(o, t + torch.randn_like(t)),
        lambda o, t: functional.mse_loss(functional.dropout(o), t),
    ],
)
def test_a_loss_that_draws_is_not_compared_and_leaves_the_generator(loss_fn: Loss):
    state = torch.get_rng_state()
    one_stage().train_step(random(N, 8), SOME, loss_fn)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loss_gets_the_weights_that_its_targets_hold_whole():
    targets = labels(), Whole(WEIGHTS)
    x, weighted = INPUTS[:, :CLASSES], lambda o, t: functional.cross_entropy(o, t[0], weight=t[1])
    loss_fn = Weighted(weighted, lambda t: t[1][t[0]].sum())
    found = Pipeline([nn.Identity()], 1, 4, device="cpu").train_step(x, targets, loss_fn).loss
    assert found == pytest.approx(weighted(x, (targets[0], WEIGHTS)).item(), rel=1e-12)
