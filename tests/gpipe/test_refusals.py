"""What a Pipeline is not made of and does not train is refused in one line that says what to do."""

import pickle
import weakref
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import timm.optim
import torch
from examples import WIDTH, batch, layer, linear, refused
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from repro.gpipe import LinkSpeed, NonFiniteError, Pipeline, Weighted
from repro.gpipe.core import optimizers
from repro.gpipe.core.loss import refuse_foreign_modules
from repro.gpipe.core.ownership import empty_foreign_layers
from repro.gpipe.errors import is_refusal
from repro.gpipe.tree import Whole

MSE = nn.functional.mse_loss


class Scaled(nn.Sequential):
    def forward(self, value: Any) -> Any:
        return 10 * super().forward(value)


TIED = linear()
TWO_STAGES = {"schedule": "interleaved-1f1b", "stages_per_rank": 2}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 2}, "only 1 process"),
        ({"stages": "1"}, "stages='1': must be a whole number"),
        ({"micro_batches": 0}, "at least 1"),
        ({"recompute": "alway"}, "did you mean 'always'"),
        ({"schedule": "1b1f"}, "choose one of gpipe"),
        ({"device": "tpu"}, "device='tpu': choose"),
        ({"balance": "tim"}, "balance='tim': choose one of .* did you mean 'time'"),
        ({"partitioner": "minimum-varience"}, "did you mean 'minimum-variance'"),
        ({"balance": "time", **TWO_STAGES}, "needs sample="),
        ({"balance": lambda _a, _b: -1, **TWO_STAGES}, "cost of a stage of layers 0 to 0 is -1"),
        ({"balance": None}, r"balance=\[None\]: needs 1 positive numbers"),
        *(
            ({"balance": balance}, r"balance=\[.*: needs 1 positive numbers that sum to the model")
            for balance in ([1, 1], [1], [0], [True], [2.0], [3, -1])
        ),
        *(
            ({"layers": layers}, "layers: expected an nn.Sequential or a sequence")
            for layers in (3, "layers", [], [linear, 3], {"a": linear})
        ),
        ({"layers": Scaled(linear())}, "Scaled has a forward of its own"),
        ({"layers": [TIED, nn.ReLU(), TIED], **TWO_STAGES}, "by stages 0 and 1; .*hand it on"),
        ({"layers": [torch.compile(nn.BatchNorm1d(4))]}, "a compiled or scripted layer that holds"),
        ({"without": ["NonFinit"]}, "without='NonFinit': choose one of .*you mean 'NonFinite'"),
        ({"without": "NonFinite"}, "without='NonFinite': must be a list of names"),
    ],
)
def test_a_pipeline_is_not_made(change: Any, words: str):
    arguments: Any = {"layers": [linear, linear], "stages": 1, "micro_batches": 2}
    caught = refused(words, Pipeline, **{**arguments, "device": "cpu", **change})
    # `refused`, and the call of the Pipeline.
    assert len(caught.traceback) == 2 or caught.value.__cause__ is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"latency": -1.0}, r"^latency=-1\.0: must be a number from 0 to 1e\+30"),
        ({"bytes_per_second": 0}, "^bytes_per_second=0: must be a number from 1e-30 to inf"),
        ({"overlap": 1}, "^overlap=1: must be True or False"),
    ],
)
def test_a_wrong_link(fields: Any, words: str):
    refused(words, LinkSpeed, **fields)


class Marked(torch.Tensor):
    pass


def attributed() -> torch.Tensor:
    tensor = torch.ones(4, 4)
    tensor.scale = 3.0  # pyright: ignore[reportAttributeAccessIssue]
    return tensor


X, Y = batch()
SPARSE = torch.eye(4).to_sparse()
SUM = partial(MSE, reduction="sum")


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (None, "holds no tensor that can be cut, but NoneType"),
        (X[:1], "micro_batches=2: the mini-batch has only 1 examples"),
        ((torch.zeros(4), torch.zeros(3, 2)), r".*\(4,\), \(3, 2\).*Whole"),
        ("nothing", "holds no tensor that can be cut, but str; make it a tensor"),
        ([], "holds no tensor that can be cut, but nothing"),
        (
            (X.numpy(), Whole(X)),
            r"holds no tensor that can be cut, but Whole, ndarray; .*from_numpy",
        ),
        ((X[:0], None), "the mini-batch has no examples"),
        (torch.tensor(1.0), r".*\(\)"),
        *(
            # Whole, they would go to each micro-batch, which has a part of the examples.
            ((X, beside), ".*of length 10, the mini-batch, is not cut")
            for beside in (list(range(10)), torch.arange(10).numpy())
        ),
        (SPARSE, "a sparse, nested, quantized or meta tensor"),
        (X.to("meta"), "a sparse, nested, quantized or meta tensor"),
        ((X, Whole([SPARSE])), "a sparse, nested"),
        (X.as_subclass(Marked), "holds a Marked, which would become a plain tensor"),
        (attributed(), "holds a tensor with an attribute 'scale'"),
        ({"x": defaultdict(int)}, "holds a defaultdict, which would become another type"),
    ],
)
def test_inputs_that_cannot_be_cut_or_sent(inputs: Any, words: str):
    pipe = Pipeline([linear], 1, 2, device="cpu")
    refused(f"^(inputs: )?{words}", pipe.train_step, inputs, Y, MSE)


@pytest.mark.parametrize(
    ("targets", "loss", "words"),
    [
        (Y[:5], MSE, "targets: 5 examples, but the inputs have 10"),
        (Y, Weighted(SUM, len), "for the mini-batch, .* the mean of its 2 parts; return the mean"),
        (Y, lambda outputs, _: outputs, "needed is one number"),
        (Y, lambda outputs, targets: MSE(outputs, targets).detach(), "has a gradient"),
        (Y, Weighted(MSE, lambda _: 0), r"its micro-batches weigh \[0.0, 0.0\]"),
        (Y, Weighted(MSE, lambda targets: -len(targets)), r"its micro-batches weigh \[-5.0, -5.0"),
        (Y, Weighted(MSE, lambda _: float("nan")), "its micro-batches weigh .*nan"),
    ],
)
def test_losses_that_are_no_mean_over_the_targets(targets: Any, loss: Any, words: str):
    refused(words, Pipeline([linear], 1, 2, device="cpu").train_step, X, targets, loss)


def test_a_loss_that_names_an_attribute_of_another_stage():
    other = nn.Linear(WIDTH, 1)
    block, alias = nn.Sequential(other), other.weight.detach()
    foreign = empty_foreign_layers([linear(), block], [1, 1], nn.Identity())
    words = "loss_fn: uses (Linear|Tensor) of the model, and other stages run layers of it"
    refused(words, refuse_foreign_modules, lambda *_: X.sum() * other.in_features, foreign)
    refused(words, refuse_foreign_modules, lambda *_: alias.sum(), foreign)
    refuse_foreign_modules(lambda *_: other(X).sum(), foreign)  # which raises by itself
    names: list[object] = []
    refuse_foreign_modules(lambda *_: names.append(block), foreign)


def test_a_loss_does_not_use_layers_of_an_earlier_stage_of_its_rank():
    layers: list[Any] = [linear(), linear()]
    early, late = layers
    pipe = Pipeline(layers, 1, 2, device="cpu", balance="uniform", **TWO_STAGES)
    words = "loss_fn: uses Linear of the model, and other stages run layers of it"
    refused(words, pipe.train_step, X, Y, lambda *both: MSE(*both) * early.in_features)
    refused(words, pipe.train_step, X, Y, lambda *both: MSE(*both) * layers[0].in_features)
    for own in (lambda: late.in_features, lambda: layers[1].weight.square().sum()):
        pipe.train_step(X, Y, lambda *both, own=own: MSE(*both) + own())


HELD = linear()


def test_a_scripted_norm():
    with pytest.warns(FutureWarning, match="torch.jit.script"):
        norm: Any = torch.jit.script(nn.BatchNorm1d(WIDTH))
    refused("a compiled or scripted layer that holds a norm", Pipeline, [norm], 1, 1, device="cpu")


def split_model() -> Any:
    """Two stages, of which this process holds the first: the second has layers of many kinds."""
    tied, weak, sharing = linear(), linear(), nn.Linear(WIDTH, WIDTH)
    sharing.weight = tied.get_parameter("weight")
    with pytest.warns(FutureWarning, match="torch.jit.script"):
        scripted: Any = torch.jit.script(linear())
    compiled: Any = torch.compile(linear())
    second = nn.Sequential(tied, tied, weak, scripted, compiled, nn.LSTM(WIDTH, WIDTH), sharing)
    third = nn.Sequential(nn.BatchNorm1d(WIDTH, affine=False), weight_norm(linear()))
    vars(tied.weight)["other"] = weak.weight, weakref.ref(weak.weight)
    model: Any = nn.Sequential(HELD, second, third, nn.Tanh())
    empty_foreign_layers(model, [1, 3], HELD)
    return model


USES: list[Callable[[Any], Any]] = [
    lambda model: model(X),
    lambda model: model.state_dict(),
    deepcopy,
    pickle.dumps,
    lambda model: model.to("cpu"),
    lambda model: model[1].load_state_dict(model[1].state_dict(keep_vars=True)),
    lambda model: model[1][0].weight.other[0].sum(),
    lambda model: nn.utils.parameters_to_vector(model[1].parameters()),
    lambda model: float(model[2][0].running_mean[0]),
    lambda model: Pipeline(model, 1, 1, device="cpu"),
    *(lambda model, n=n: model[1][n](X) for n in (0, 1, 2, 5)),
    *(lambda model, n=n: model[2][n](X) for n in range(2)),
]


@pytest.mark.parametrize("use", USES)
def test_what_another_stage_trains_has_no_values_here(use: Any):
    refused(r"^layers\[[12]\]: its weights are on stage 1", use, split_model())


@pytest.mark.parametrize("compiled", [3, 4])
def test_a_compiled_layer_of_another_stage_has_no_values_here(compiled: int):
    with pytest.raises(RuntimeError, match=r"ValueError: layers\[1\]: its weights are on stage 1"):
        split_model()[1][compiled](X)


def test_what_needs_no_values_still_works():
    model = split_model()
    assert sum(p.numel() for p in model.parameters()) == 600
    optimizer = torch.optim.AdamW(model.requires_grad_(True).train().parameters())
    model[0](X).sum().backward()
    optimizer.step()
    assert "LSTM" in repr(model)
    assert all(p.device.type == "meta" for p in model[1].parameters())


LEARNS = torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (
            lambda x: (x, {1}),
            lambda x: x[0],
            "what its last layer returns: holds a set; only tensors",
        ),
        (
            lambda x: (x, x[:, 1:3]),
            lambda pair: pair[0].mul_(2.0) + pair[1].sum(-1, keepdim=True),
            r"tensor 0 of what enters it, and another one there .*clone\(\)",
        ),
        (lambda x: x * LEARNS, lambda x: x, "requires a gradient and is no parameter"),
    ],
)
def test_layers_whose_step_is_refused(first: Any, second: Any, words: str):
    layers = [layer(first, linear_first=True), layer(second)]
    pipe = Pipeline(layers, 1, 2, device="cpu", balance="uniform", **TWO_STAGES)
    refused(words, pipe.train_step, X, Y, MSE)


class TooWideError(ValueError):
    pass


def test_an_error_of_a_layer_names_it_and_is_traced_to_its_line():
    def refuse(value: torch.Tensor) -> torch.Tensor:
        raise TooWideError(len(value))

    pipe = Pipeline([linear, layer(refuse)], 1, 2, device="cpu")
    for call in (pipe.train_step, pipe.evaluate):
        with pytest.raises(TooWideError) as caught:
            call(X, Y, MSE)
        assert caught.traceback[-1].name == "refuse"
        (note,) = caught.value.__notes__
        assert note == f"(in layers[1], a {type(layer(refuse)()).__name__})"


def test_inputs_that_require_a_gradient():
    pipe, x = Pipeline([linear], 1, 2, device="cpu"), X.clone().requires_grad_()
    refused("^inputs: require a gradient, .* the first layer", pipe.train_step, x, Y, MSE)
    assert pipe.evaluate(x, Y, MSE).loss == pipe.evaluate(X, Y, MSE).loss


def test_optimizers_and_scalers_that_would_do_something_else():
    pipe = Pipeline([linear], 1, 2, device="cpu")
    lbfgs, foreign = torch.optim.LBFGS(pipe.parameters()), torch.amp.GradScaler("cpu")
    words = "optimizer: LBFGS needs the loss several times"
    refused(words, pipe.train_step, X, Y, MSE, lbfgs)
    words = r"scaler: GradScaler .* make it by pipe\.grad_scaler\(\)"
    refused(words, pipe.train_step, X, Y, MSE, scaler=foreign)
    with pytest.raises(NonFiniteError):
        pipe.train_step(torch.inf * X, Y, MSE, scaler=pipe.grad_scaler(enabled=False))
    pipe.train_step(X, Y, MSE)
    words = "optimizer: train_step would clear the gradients"
    refused(words, pipe.train_step, X, Y, MSE, torch.optim.SGD(pipe.parameters()))


def test_optimizers_that_need_the_gradients_of_all_stages():
    parameters = [nn.Parameter(torch.ones(3))]
    lamb, lbfgs = timm.optim.Lamb(parameters), torch.optim.LBFGS(parameters)
    words = r"^optimizer: Lamb with max_grad_norm=1\.0 would clip by the gradients of one stage; "
    refused(words, optimizers.refuse, lamb, None, stages=2)
    in_a_closure = partial(optimizers.refuse, None, None, stages=2)
    refused("^optimizer: LBFGS needs the loss several times", lbfgs.step, in_a_closure)
    in_a_closure()
    optimizers.refuse(lamb, None, stages=1)
    optimizers.refuse(timm.optim.Lamb(parameters, max_grad_norm=None), None, stages=2)


def test_an_optimizer_that_steps_in_backward():
    def steps(parameter: torch.Tensor) -> None:
        torch.optim.SGD([parameter], lr=0.1).step()
        parameter.grad = None

    layers = [linear(), nn.Tanh(), linear()]
    plain = deepcopy(layers)
    for M, recompute in ((1, "always"), (2, "always"), (2, "never")):
        pipe = Pipeline(deepcopy(layers), 1, M, device="cpu", recompute=recompute)
        for parameter in pipe.parameters():
            parameter.register_post_accumulate_grad_hook(steps)
        if M > 1:
            words = "^a hook changed parameters .* register_post_accumulate_grad_hook; give train"
            refused(words, pipe.train_step, X, Y, MSE)
            continue
        pipe.train_step(X, Y, MSE)
        expected = Pipeline(plain, 1, 1, device="cpu")
        expected.train_step(X, Y, MSE, torch.optim.SGD(expected.parameters(), lr=0.1))
        assert all(map(torch.equal, pipe.parameters(), expected.parameters()))


def test_no_step_after_close_or_without_gradients():
    pipe, inside = Pipeline([linear], 1, 2, device="cpu"), 0.0
    for mode in (torch.inference_mode(), torch.no_grad()):
        with mode:
            refused("^train_step inside torch.no_grad", pipe.train_step, X, Y, MSE)
            inside = pipe.evaluate(X, Y, MSE).loss
    assert inside == pipe.evaluate(X, Y, MSE).loss == pipe.train_step(X, Y, MSE).loss
    pipe.close()
    pipe.close()
    refused("this Pipeline is closed", pipe.train_step, X, Y, MSE)


def test_only_what_this_package_raises_is_a_refusal():
    source = "def refuse(value): raise ValueError(value)\ndef mistake(value): int(value)"
    found = []
    for module, name in (("repro.of", "refuse"), ("repro.of", "mistake"), ("of_users", "refuse")):
        names: dict[str, Any] = {"__name__": module}
        exec(source, names)
        with pytest.raises(ValueError, match="seven") as caught:
            names[name]("seven")
        found.append(is_refusal(caught.value))
    assert found == [True, False, False]
