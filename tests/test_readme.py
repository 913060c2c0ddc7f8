"""The README and docs/ are run: programs, the commands that they show, the Slurm script; the
picture."""

import math
import re
import shlex
import subprocess
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
import torch
from repro.cli.advise import AdviseOptions
from repro.cli.calibrate import CalibrateOptions
from repro.cli.train import TrainOptions
from torch import nn
from torch.optim.swa_utils import update_bn

from repro.cli.main import main
from repro.cli.options import parse
from repro.gpipe import launch
from repro.train import checkpoints

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def programs(name: str) -> list[str]:
    """The Python on a page."""
    return re.findall(r"```python\n(.*?)```", page(name), flags=re.S)


TEXT = page("README.md")
COMMANDS = TEXT + page("docs/cli.md")
PLANS = re.findall(r"repro run ((?:sweep|table2 --)[^#\n]*)", COMMANDS)
# Commands of pages, each with the class of its options.
OPTIONS = {"advise": AdviseOptions, "calibrate": CalibrateOptions, "train": TrainOptions}
GIVEN = re.findall(
    rf"(?m)^    \.venv/bin/repro ({'|'.join(OPTIONS)}) (.*)$",
    page("docs/training.md") + page("docs/advise.md"),
)
# A command with its output: indented lines up to the next paragraph.
ADVICE = re.findall(
    r"(?m)^    \$ \.venv/bin/repro (advise .*)\n((?:    .*\n|\n)*)", page("docs/advise.md")
)
RECIPES = "clip() bfloat16() float16() accumulate() load() schedule(4) schedule(2)".split()
RECIPES += ["schedule(4, 'checkpoint')", "pretrained()", "evaluate()", "tied()"]
RECIPES += ["statistics()", "compared()"]


def updated_statistics(batches):
    """What the recipe for running statistics returns, by torch's own function."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 4))
    data = batches()
    update_bn([x for x, _ in data], model)
    return nn.functional.cross_entropy(model.eval()(data[0][0]), data[0][1]).item()


@pytest.mark.slow
def test_the_recipes_of_the_library_and_the_program_of_training_run(tmp_path, monkeypatch, capsys):
    """A recipe that stops half-way resumes exactly."""
    library, (training,) = programs("docs/library.md"), programs("docs/training.md")
    shown = re.findall(r"(?m)^def (\w+)", "".join(library[1:]))
    assert {call.partition("(")[0] for call in RECIPES} == set(shown)
    everything = f"\n\ndef everything():\n    return [{', '.join(RECIPES)}, repr(start()[0])]\n"
    program, _, last = training.partition('if __name__ == "__main__":\n')
    (tmp_path / "library_page.py").write_text("\n\n".join(library) + everything, encoding="utf-8")
    (tmp_path / "training_page.py").write_text(program, encoding="utf-8")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    page_of_library = import_module("library_page")
    first, second = launch(page_of_library.everything, stages=2)
    assert first[:-1] == second[:-1], "losses, norms, scales and rates are the same on every rank"
    *results, pipe = first
    assert pipe in page("docs/library.md")
    found = dict(zip(RECIPES, results, strict=True))
    for call, result in found.items():
        loss = result[0] if isinstance(result, list | tuple) else result
        assert math.isfinite(loss), call
        assert loss < 2, call
    assert found["schedule(4)"] == found["schedule(4, 'checkpoint')"] != found["schedule(2)"]
    assert [found["tied()"]] == launch(page_of_library.tied, stages=1)
    assert found["statistics()"] == pytest.approx(updated_statistics(page_of_library.batches))

    exec(textwrap.dedent(last), vars(import_module("training_page")))
    assert "step=100" in capsys.readouterr().out
    newest, _ = checkpoints.newest_usable(tmp_path / "runs/noise")
    assert newest is not None
    assert newest.name == "step-000100"


def test_the_orders_of_related_work_print_what_the_page_shows(capsys):
    (program,) = programs("docs/related.md")
    (shown,) = re.findall(r"```text\n(.*?)```", page("docs/related.md"), flags=re.S)
    exec(program, {})
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(("verb", "words"), GIVEN)
def test_a_command_is_understood(verb, words):
    parse(OPTIONS[verb], shlex.split(words), verb)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), ADVICE)
def test_advice_is_that_of_the_command(command, shown, capsys):
    """Where this fails because the cost model or its error changed, paste the new output."""
    assert main(shlex.split(command)) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    expected = [line.removeprefix("    ") for line in shown.rstrip().splitlines()]
    assert printed[: len(expected)] == expected
    assert printed[len(expected)] == "", "the whole table is shown"


@pytest.mark.parametrize("arguments", PLANS)
def test_its_runs_can_be_planned(arguments, tmp_path, monkeypatch, capsys):
    """Every `repro run` that it shows is accepted, as far as planning can tell."""
    monkeypatch.chdir(tmp_path)
    for path, source in re.findall(
        r"(?m)^    # ([\w/]+\.py)\n((?:    .*\n|\n)*?)(?=^\S)", COMMANDS
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(source), encoding="utf-8")
    words = re.sub(r"--wandb \w+|--scale node", "--scale smoke", arguments).split()
    assert main(["plan", *words]) == 0
    assert "to measure" in capsys.readouterr().out


def test_its_verbs_exist(capsys):
    main(["--help"])
    known = set(re.findall(r"repro (\w+)", capsys.readouterr().out))
    assert set(re.findall(r"\.venv/bin/repro (\w+)", COMMANDS)) <= known


def test_its_slurm_script_starts_torchrun_once_per_node(tmp_path):
    """With stand-ins for what a cluster has: the command that every node would run, as torchrun
    understands it."""
    from torch.distributed.run import get_args_parser

    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page("docs/cluster.md"), flags=re.S)
    for name, body in {"scontrol": "printf 'n1\\nn2\\n'", "srun": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **slurm}
    done = subprocess.run(
        ["bash", "-eu", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    kill, program, *words = done.stdout.splitlines()
    assert (kill, program) == ("--kill-on-bad-exit=1", ".venv/bin/torchrun")
    parsed = get_args_parser().parse_args(words)
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.rdzv_endpoint) == ("2", "gpu", "n1:29500")
    assert [parsed.training_script, *parsed.training_script_args][:3] == ["repro", "run", "table2"]
    assert all(
        re.fullmatch(r"#SBATCH --[\w-]+=\S+( +#.*)?", line)
        for line in script.splitlines()
        if "#SBATCH" in line
    )
