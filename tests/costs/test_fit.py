"""The largest model that fits, and the command that looks for it."""

import json
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from repro.cli.main import main
from repro.costs.fit import Count, Search, Step
from repro.costs.size_ladder import Sizes, size_ladders
from repro.costs.units import parse_bytes
from repro.gpipe.core.config import PipelineConfig
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.models import Model, build

GIB = 2**30
SMALL = {"d": 64, "H": 256, "heads": 4, "V": 256, "T": 64}


def transformer(L: int):
    return build("transformer", L=L, **SMALL)


@pytest.fixture(scope="module")
def search() -> Search:
    config = PipelineConfig(stages=4, micro_batches=8)
    step = Step(config, batch=8, optimizer=OPTIMIZERS["rmsprop-momentum"])
    return Search(transformer, step, 4 * 2**20)


SIZES = [{"L": L} for L in range(1, 500)]


def test_the_largest_fits_and_the_next_does_not(search: Search):
    fit = search.largest([SIZES])
    assert fit.best is not None
    assert fit.above is not None
    assert fit.best.fullest <= 4 * 2**20 < fit.above.fullest
    assert fit.above.args["L"] == fit.best.args["L"] + 1
    assert sum(fit.best.balance) == fit.best.args["L"] + 2
    assert fit.best.parameters == sum(
        p.numel() for layer in transformer(**fit.best.args).layers for p in layer().parameters()
    )


def test_no_cut_is_more_even(search: Search):
    """Moving a layer over any boundary makes the fullest stage no emptier."""
    cut = search.cut({"L": 9})
    assert cut is not None
    tasks = search._exact({"L": 9})
    ends = [0]
    for count in cut.balance:
        ends.append(ends[-1] + count)
    for boundary in (1, 2, 3):
        for moved in (-1, 1):
            other = [*ends]
            other[boundary] += moved
            if all(a < b for a, b in pairwise(other)):
                fullest = max(
                    tasks.memory(j, range(a, b)).total for j, (a, b) in enumerate(pairwise(other))
                )
                assert fullest >= 0.99 * cut.fullest


class Traced(Search):
    """Traces every size that it tries."""

    def _interpolated(self, sizes: Sizes) -> Count:
        return self._exact


def test_sizes_that_are_not_traced_come_out_the_same():
    """Interpolation between three traced sizes finds the same size as tracing every size."""
    ladder = [{"d": d} for d in range(8, 800, 8)]
    fits, traces = [], []
    for kind in (Search, Traced):
        wider = partial(build, "transformer", L=3, H=256, heads=4, V=256, T=64)
        search = kind(wider, Step(PipelineConfig(stages=2, micro_batches=4), batch=16), 16 * 10**6)
        fits.append(search.largest([ladder]))
        assert search._counter is not None
        traces.append(len(search._counter._passes))
    assert fits[0] == fits[1]
    assert fits[0].best is not None
    assert traces[0] < traces[1]


def test_a_model_too_shallow_for_the_stages_is_one_line_and_other_ladders_count():
    step = Step(PipelineConfig(stages=8, micro_batches=8), batch=8)
    with pytest.raises(
        ValueError, match="stages=8: the model has 5 layers; choose at most 5 stages"
    ):
        Search(transformer, step, GIB).largest([[{"L": 3}]])
    fit = Search(transformer, step, GIB).largest([[{"L": 3}], [{"L": 9}]])
    assert fit.best is not None
    assert fit.best.args == {"L": 9}


def test_a_layer_that_narrows_what_crosses_is_looked_for():
    """Expand, shrink, expand, shrink: one layer a stage takes more than two."""

    def wide(n: int) -> Model:
        pair = [partial(nn.Linear, 4, 20000), partial(nn.Linear, 20000, 4)]
        x = torch.zeros(1, 4)
        return Model("wide", pair * n, lambda N, seed: (x, x), nn.functional.mse_loss, "x/s")

    step = Step(PipelineConfig(stages=2, micro_batches=4), batch=64, optimizer=torch.optim.SGD)
    fit = Search(wide, step, 5_000_000).largest([[{"n": 2}]])
    assert fit.best is not None
    assert fit.best.balance == (2, 2)


def test_what_is_varied():
    assert [sizes[0] for sizes in size_ladders("amoebanet-d", {}, None)] == [
        {"L": L, "D": 16} for L in (18, 36, 72)
    ]
    assert size_ladders("amoebanet-d", {"D": 64}, None)[0][:2] == [
        {"D": 64, "L": 3},
        {"D": 64, "L": 6},
    ]
    assert size_ladders("transformer", {"T": 8}, None)[0][1] == {"T": 8, "L": 2}
    assert size_ladders("transformer", {"L": 8}, None) == [[{"L": 8}]]
    assert size_ladders("import:a:b", {"x": 1}, "width")[0][4] == {"x": 1, "width": 5}
    with pytest.raises(ValueError, match="vary = 'x'"):
        size_ladders("import:a:b", {"x": 1}, "x")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("8GB", 8 * 10**9),
        ("8GiB", 8 * GIB),
        ("1.5 gib", 3 * GIB // 2),
        ("512MiB", 2**29),
        ("100 B", 100),
        (".5kB", 500),
    ],
)
def test_units_are_decimal_or_binary(text: str, size: int):
    assert parse_bytes("memory", text)[0] == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8",
        "GB",
        "8G",
        "8 GBB",
        "-8GB",
        "1e3GB",
        "8GB ram",
        "0GB",
        "9" * 30 + "GB",
        "9" * 400 + "GB",
        "8Gb",
        "8Gib",
        "nanGB",
    ],
)
def test_other_units_are_one_line(text: str):
    with pytest.raises(ValueError, match=r"^memory = ") as caught:
        parse_bytes("memory", text)
    assert "\n" not in str(caught.value)


COMMAND = [
    "fit",
    "transformer",
    "--memory",
    "4MiB",
    "--stages",
    "4",
    "--batch",
    "8",
    "--micro-batches",
    "8",
]
COMMAND += ["--model-args", *(f"{name}={value}" for name, value in SMALL.items())]


def test_the_command_for_people(capsys: pytest.CaptureFixture[str]):
    assert main(COMMAND) == 0
    told = capsys.readouterr().out
    for words in (
        "4 stages of 4.00 MiB each",
        "counted",
        "largest: ",
        "L=",
        "boundary",
        "one size up",
        "% more than the memory",
    ):
        assert words in told


def test_the_command_for_programs(capsys: pytest.CaptureFixture[str], search: Search):
    assert main([*COMMAND, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    fit = search.largest([SIZES])
    assert fit.best is not None
    assert (told["memory"], told["K"], told["fidelity"]) == (4 * 2**20, 4, "counted")
    assert told["largest"]["parameters"] == fit.best.parameters
    assert [stage["total"] for stage in told["largest"]["stages"]] == [
        stage.total for stage in fit.best.stages
    ]
    assert told["next"]["args"]["L"] == fit.best.args["L"] + 1


@pytest.mark.parametrize(("optimizer", "slots"), [("rmsprop", 1), ("rmsprop-momentum", 2)])
def test_slots_of_rmsprop_take_4_bytes_each(optimizer: str, slots: int):
    step = Step(PipelineConfig(1, 8), batch=8, optimizer=OPTIMIZERS[optimizer])
    cut = Search(transformer, step, GIB).cut({"L": 2})
    assert cut is not None
    (stage,) = cut.stages
    assert stage.at != "U"  # where the update needs memory of its own
    steps = 4 * sum(1 for layer in transformer(2).layers for _ in layer().parameters())
    assert stage.by_kind["optimizer"] == 4 * slots * cut.parameters + steps


MINE = """
from torch import nn

def layers(width=8):
    pixels = 3 * 32 * 32
    hidden = [lambda: nn.Linear(pixels, pixels)] * width
    return [nn.Flatten, *hidden, lambda: nn.Linear(pixels, 10)]

def chooses(width=8):
    class Chooses(nn.Module):
        def forward(self, x):
            return x[x > 0]
    return [Chooses, nn.Flatten]
"""


def test_a_model_of_one_s_own(
    tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "mymodel_fit.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    mine = ["fit", "--model", "import:mymodel_fit:layers", "--memory", "900MB", "--json"]
    assert main([*mine, "--vary", "width"]) == 0
    assert json.loads(capsys.readouterr().out)["largest"]["args"]["width"] > 2
    assert main(mine) == 1  # eight layers of 9 million parameters
    assert json.loads(capsys.readouterr().out)["largest"] is None
    assert main(["fit", "import:mymodel_fit:chooses", "--memory", "1GB"]) == 2
    assert "layers[0] (Chooses) cannot be counted" in capsys.readouterr().err


REFUSING = """
from functools import partial
from torch import nn

def multiples(width=8):
    if width % 8:
        raise ValueError(f"width = {width}: must be a multiple of 8")
    return plain(width)

def heads(width=8):
    encoder = partial(nn.TransformerEncoderLayer, width, 12)  # an assertion, when it is built
    return [nn.Flatten, partial(nn.Linear, 3072, width), encoder, partial(nn.Linear, width, 10)]

class Split(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], 6, x.shape[1] // 6).flatten(1)  # shapes that do not fit

def shapes(width=6):
    return [nn.Flatten, partial(nn.Linear, 3072, width), Split, partial(nn.Linear, width, 10)]

def holes(width=8):
    if 500 <= width < 900:
        raise ValueError("no")
    return plain(width)

def never(width=8):
    raise ValueError("this model works at no size")

def later(width=8):
    if width > 20:
        raise KeyError("late")
    return plain(width)

def runtime(width=8):
    if width % 8:
        raise RuntimeError(f"{width} is not divisible by 8")
    return plain(width)

def typed(width=8):
    if width % 8:
        raise TypeError(f"no float: {width / 8}")
    return plain(width)

def ignores(width=8, activation="relu", bias=True):
    return plain(8)

def plain(width=8):
    return [nn.Flatten, partial(nn.Linear, 3072, width), nn.ReLU, partial(nn.Linear, width, 10)]
"""


@pytest.fixture
def refusing(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`repro fit` of one of these functions: (exit status, its JSON, its text)."""
    (tmp_path / "refusing_fit.py").write_text(REFUSING)
    monkeypatch.chdir(tmp_path)

    def go(
        name: str, memory: str = "30MB", *more: str, vary: str = "width"
    ) -> tuple[int, dict, str]:
        command = ["fit", f"import:refusing_fit:{name}", "--memory", memory, "--vary", vary, *more]
        status = main(command)
        told = capsys.readouterr()
        if status == 2:
            return status, {}, told.err
        main([*command, "--json"])
        return status, json.loads(capsys.readouterr().out), told.out

    return go


@pytest.mark.parametrize(
    ("name", "multiple", "reason"),
    [
        ("multiples", 8, "width=1: width = 1: must be a multiple of 8"),
        (
            "runtime",
            8,
            "width=1: model='import:refusing_fit:runtime' with width=1: the function raised "
            "RuntimeError",
        ),
        (
            "typed",
            8,
            "width=1: model='import:refusing_fit:typed' with width=1: the function raised "
            "TypeError",
        ),
        (
            "heads",
            12,
            "width=1: layers[2] (TransformerEncoderLayer) cannot be built without memory: "
            "AssertionError",
        ),
        ("shapes", 6, "width=1: layers[2] (Split) cannot be counted: RuntimeError"),
    ],
)
def test_sizes_that_a_model_refuses_are_left_out_and_told(
    refusing, name: str, multiple: int, reason: str
):
    status, found, told = refusing(name)
    best, above = found["largest"]["args"]["width"], found["next"]["args"]["width"]
    assert status == 0
    assert best % multiple == above % multiple == 0
    assert best < above <= best + 2 * multiple
    assert found["largest"]["fullest"] <= 30e6 < found["next"]["fullest"]
    assert {one["args"]["width"] % multiple for one in found["refused"]} == set(range(1, multiple))
    assert (
        f"{len(found['refused'])} sizes were left out, since the model refuses them; {reason}"
        in told
    )


def test_a_model_that_refuses_every_size_or_fails_is_one_line(refusing):
    for name, words in (
        ("never", "this model works at no size; nor is any other width up to "),
        ("later", "with width=32: the function raised KeyError: 'late' (refusing_fit.py, line "),
    ):
        status, _, told = refusing(name)
        assert status == 2
        assert words in told
        assert told.count("\n") == 1
    assert refusing("plain", vary="widht")[2].endswith("did you mean 'width'?\n")


def test_nothing_fits(capsys: pytest.CaptureFixture[str]):
    assert main([*COMMAND[:3], "100kB", *COMMAND[4:]]) == 1
    told = capsys.readouterr().out
    assert "nothing fits" in told
    assert "L=2" in told  # the first with a layer for each stage


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["transformer"], "--memory"),
        (["transformer", "--memory", "8"], "it has no unit"),
        (["transformr", "--memory", "8GB"], "did you mean 'transformer'"),
        (["--memory", "8GB"], "name it once"),
        (["transformer", "--model", "timed", "--memory", "8GB"], "name it once"),
        (
            ["transformer", "--memory", "8GB", "--micro-batches", "64"],
            "--micro-batches 64: allowed is 1 to",
        ),
        (["transformer", "--memory", "8GB", "--stages", "0"], "--stages 0: allowed is 1 to"),
        (["transformer", "--memory", "8GB", "--vary", "L", "--model-args", "L=3"], "vary = 'L'"),
        (["transformer", "--memory", "8GB", "--checkpoint", "maybe"], "checkpoint"),
        (["transformer", "--memory", "8GB", "--optimizer", "momentum"], "rmsprop-momentum"),
        (["transformer", "--memory", "8GB", "--up-to", "0"], "--up-to 0: allowed is 1 to 65536"),
        (
            ["amoebanet-d", "--memory", "8GB", "--up-to", "15"],
            "up_to = 15: allowed is 16 or more, the smallest D",
        ),
        (
            ["transformer", "--memory", "8GB", "--model-args", "Q=3"],
            "attention, attention_dropout\n",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["fit", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error


@pytest.mark.slow
def test_table_1_at_its_own_size():
    """The 83.9 billion parameters of Transformer-1663 on 128 stages of 16 GiB, and their memory."""
    cut = Search(partial(build, "transformer"), Step(PipelineConfig(128, 32), 32), 16 * GIB).cut(
        {"L": 1663}
    )
    assert cut is not None
    assert cut.parameters == 83_876_910_336
    assert cut.fullest < 16 * GIB
    assert sum(stage.by_kind["parameters"] for stage in cut.stages) == 4 * cut.parameters
