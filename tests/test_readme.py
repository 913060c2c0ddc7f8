"""The README and docs/ are run: the example, the commands that they show, the Slurm script; the
picture."""

import re
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from repro.cli.main import main
from repro.harness.results import load
from repro.report.page import pictured_step

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = TEXT + (ROOT / "docs/cli.md").read_text(encoding="utf-8")
PLANS = re.findall(r"repro run ((?:sweep|table2 --)[^#\n]*)", COMMANDS)


def test_the_example_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
    script = tmp_path / "example.py"
    script.write_text(block, encoding="utf-8")
    run = partial(subprocess.run, capture_output=True, text=True, timeout=110, check=False)
    done = run([sys.executable, script], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"loss \d\.\d+, bubble \d+%", done.stdout)


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


@pytest.mark.slow
def test_the_first_picture_shows_what_its_caption_says():
    """The title is drawn into the picture and is the file's comment: both are what the record
    gives."""
    with Image.open(ROOT / "plots/reference/pipeline.gif") as picture:
        title = picture.info["comment"].decode()
    timeline, recorded = pictured_step(load(ROOT / "results/reference"))
    assert title == recorded
    pattern = (
        r"One (\w+) training step of (\S+) at (\w+) scale: K=(\d+) stages, M=(\d+) micro-batches"
    )
    found = re.fullmatch(pattern, title)
    assert found, title
    fidelity, model, scale, K, M = found.groups()
    assert timeline.stages == int(K)
    (caption,) = re.findall(r"\(plots/reference/pipeline\.gif\)\n\n\*(.*?)\*\n", TEXT, flags=re.S)
    caption = " ".join(caption.split())
    assert f"(K={K}, M={M}, {model} at {scale} scale)" in caption
    assert set(re.findall(r"measured|emulated|simulated|counted", caption)) == {fidelity}


def test_its_slurm_script_starts_torchrun_once_per_node(tmp_path):
    """With stand-ins for what a cluster has: the command that every node would run, as torchrun
    understands it."""
    from torch.distributed.run import get_args_parser

    page = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, flags=re.S)
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
