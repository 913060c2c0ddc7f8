"""The README is run: its example, the verbs and flags that it shows, its table, its pictures."""

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
PLANS = re.findall(r"repro run ((?:sweep|table2 --)[^#\n]*)", TEXT)


def test_the_example_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
    script = tmp_path / "example.py"
    script.write_text(block, encoding="utf-8")
    run = partial(subprocess.run, capture_output=True, text=True, timeout=110, check=False)
    done = run([sys.executable, script], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d\+\d layers by parameters .*predicted imbalance", done.stdout)
    assert re.search(r"loss \d\.\d+, bubble \d+%", done.stdout)
    assert re.search(r"stage 1 \|.*F0", done.stdout)
    assert re.search(r"evaluated after five more steps: \d\.\d+", done.stdout)


@pytest.mark.parametrize("arguments", PLANS)
def test_its_runs_can_be_planned(arguments, tmp_path, monkeypatch, capsys):
    """Every `repro run` that it shows is accepted, as far as planning can tell."""
    monkeypatch.chdir(tmp_path)
    (source,) = re.findall(r"(?m)^    # my_package/my_module.py\n((?:    .*\n|\n)*?)(?=^\S)", TEXT)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "my_module.py").write_text(textwrap.dedent(source), encoding="utf-8")
    words = re.sub(r"--wandb \w+|--scale node", "--scale smoke", arguments).split()
    assert main(["plan", *words]) == 0
    assert "to measure" in capsys.readouterr().out


def test_its_verbs_exist(capsys):
    main(["--help"])
    known = set(re.findall(r"repro (\w+)", capsys.readouterr().out))
    assert set(re.findall(r"\.venv/bin/repro (\w+)", TEXT)) <= known


SHOWN = re.findall(r"<!-- (\w+) -->", TEXT)


def test_it_shows_the_paper_s_tables_so_far():
    wanted = {"table1", "table2", "table2_beyond", "table3", "breakdown", "bubble_at_4k", "simulator", "peers_checks"}
    assert wanted <= set(SHOWN)


@pytest.mark.parametrize("table", SHOWN)
def test_its_tables_are_those_of_the_reference_report(table):
    (block,) = re.findall(rf"<!-- {table} -->\n(.*?)<!-- /{table} -->", TEXT, flags=re.S)
    assert block.strip() == (ROOT / f"plots/reference/{table}.md").read_text(encoding="utf-8").strip()


def test_what_it_says_of_table_1_is_in_the_reference():
    found = (ROOT / "plots/reference/table1_varied.md").read_text(encoding="utf-8")
    rows = {line.split("|")[2].strip(): line for line in found.splitlines() if line.startswith("| Transformer")}
    for setting, sizes in (("N=32, M=16", (13, 111, 447, 1791)), ("N=32, M=16, decimal GB", (103, 415, 1663))):
        assert all(f" L={size}:" in rows[setting] for size in sizes), setting
    assert "L=103, 415 and 1663" in " ".join(TEXT.split())
    assert "111, 447 and 1791" in TEXT


def test_its_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert target.startswith("https://") or (ROOT / target).exists(), target


@pytest.mark.slow
def test_the_first_picture_shows_what_its_caption_says():
    """The title is drawn into the picture and is the file's comment: both are what the record gives."""
    with Image.open(ROOT / "plots/reference/pipeline.gif") as picture:
        title = picture.info["comment"].decode()
    (table2,) = (ROOT / "results/reference").glob("*/laptop/table2")
    timeline, recorded = pictured_step(load(table2))
    assert title == recorded
    pattern = r"One (\w+) training step of (\S+) at (\w+) scale: K=(\d+) stages, M=(\d+) micro-batches"
    found = re.fullmatch(pattern, title)
    assert found, title
    fidelity, model, scale, K, M = found.groups()
    assert timeline.stages == int(K)
    (caption,) = re.findall(r"\(plots/reference/pipeline\.gif\)\n\n\*(.*?)\*\n", TEXT, flags=re.S)
    caption = " ".join(caption.split())
    assert f"(K={K}, M={M}, {model} at {scale} scale)" in caption
    assert set(re.findall(r"measured|emulated|simulated|counted", caption)) == {fidelity}


def test_its_slurm_script_starts_torchrun_once_per_node(tmp_path):
    """With stand-ins for what a cluster has: the command that every node would run, as torchrun understands it."""
    from torch.distributed.run import get_args_parser

    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", TEXT, flags=re.S)
    for name, body in {"scontrol": "printf 'n1\\nn2\\n'", "srun": 'printf "%s\\n" "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **slurm}
    done = subprocess.run(["bash", "-eu", "-c", script], env=environment, capture_output=True, text=True, check=True)
    kill, program, *words = done.stdout.splitlines()
    assert (kill, program) == ("--kill-on-bad-exit=1", ".venv/bin/torchrun")
    parsed = get_args_parser().parse_args(words)
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.rdzv_endpoint) == ("2", "gpu", "n1:29500")
    assert [parsed.training_script, *parsed.training_script_args][:3] == ["repro", "run", "table2"]
    assert all(re.fullmatch(r"#SBATCH --[\w-]+=\S+( +#.*)?", line) for line in script.splitlines() if "#SBATCH" in line)
