"""The README and docs/ are run: programs, the commands that they show, the Slurm script."""

import math
import re
import shlex
import subprocess
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from repro.cli.main import main
from repro.cli.options import parse
from repro.cli.predict import PredictOptions
from repro.cli.report import ReportOptions
from repro.gpipe import launch

ROOT = Path(__file__).parent.parent


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def programs(name: str) -> list[str]:
    """The Python on a page."""
    return re.findall(r"```python\n(.*?)```", page(name), flags=re.S)


COMMANDS = "\n".join(
    page(path.relative_to(ROOT).as_posix())
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")))
)
PLANS = re.findall(r"repro run ((?:sweep|table2 --)[^#\n`]*)", COMMANDS)
# Commands of pages, each with the class of its options.
OPTIONS = {"predict": PredictOptions, "report": ReportOptions}
GIVEN = re.findall(rf"repro ({'|'.join(OPTIONS)}) ([^#\n`]*)", COMMANDS)
# A command with lines of its output; a line `...` stands for others.
PREDICTED = re.findall(
    r"(?m)^    \$ \.venv/bin/repro (predict .*)\n((?:    .*\n)*)", page("docs/predict.md")
)
RECIPES = "clip() float16() accumulate() load() schedule(4) schedule(2)".split()
RESUMED, DONE = "schedule(4, 'checkpoint')", "schedule(4, resume='checkpoint')"
RECIPES += [RESUMED, DONE, "pretrained()", "evaluate()", "tied()", "compared()"]


@pytest.mark.slow
def test_the_recipes_of_the_library_run(tmp_path, monkeypatch):
    """A recipe that stops half-way resumes exactly."""
    library = programs("docs/library.md")
    shown = re.findall(r"(?m)^def (\w+)", "".join(library[1:]))
    assert {call.partition("(")[0] for call in RECIPES} == set(shown)
    everything = f"\n\ndef everything():\n    return [{', '.join(RECIPES)}, repr(start()[0])]\n"
    (tmp_path / "library_page.py").write_text("\n\n".join(library) + everything, encoding="utf-8")
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
    assert found["schedule(4)"] == found[RESUMED] == found[DONE] != found["schedule(2)"]
    assert [found["tied()"]] == launch(page_of_library.tied, stages=1)


def test_the_orders_of_related_work_print_what_the_page_shows(capsys):
    (program,) = programs("docs/related.md")
    (shown,) = re.findall(r"```text\n(.*?)```", page("docs/related.md"), flags=re.S)
    exec(program, {})
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(("verb", "words"), GIVEN)
def test_a_command_is_understood(verb, words):
    parse(OPTIONS[verb], shlex.split(words), verb)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), PREDICTED)
def test_a_prediction_is_that_of_the_command(command, shown, capsys):
    """Where this fails because the cost model or its error changed, paste the new output."""
    assert main(shlex.split(command)) == 0
    printed = iter([line.rstrip() for line in capsys.readouterr().out.splitlines()])
    expected = [line.removeprefix("    ") for line in shown.splitlines()]
    for line in expected:
        assert line == "..." or line in printed, "not printed, or not in this order"


@pytest.mark.parametrize("arguments", PLANS)
def test_its_runs_can_be_planned(arguments, tmp_path, monkeypatch, capsys):
    """Every `repro run` of a page is accepted, as far as planning can tell."""
    monkeypatch.chdir(tmp_path)
    for path, source in re.findall(
        r"(?m)^    # ([\w/]+\.py)\n((?:    .*\n|\n)*?)(?=^\S)", COMMANDS
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(textwrap.dedent(source), encoding="utf-8")
    words = re.sub(r"--wandb \w+|--scale node", "--scale smoke", arguments).split()
    assert main(["plan", *words]) == 0
    assert "to measure" in capsys.readouterr().out


def test_every_verb_on_a_page_exists_and_has_a_command_there(capsys):
    main(["--help"])
    known = set(re.findall(r"(?m)^  repro (\w+)", capsys.readouterr().out))
    assert set(re.findall(r"(?:\.venv/bin/|`)repro ([a-z]+)", COMMANDS)) == known


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
