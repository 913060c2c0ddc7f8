"""The notebook docs/two_gpu_demo.ipynb: its cells run in order, as a kernel would run them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs/two_gpu_demo.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
# A kernel names the backend of its own environment to every command that a cell starts.
KERNEL = """
import os
import matplotlib

matplotlib.use("agg")
os.environ["MPLBACKEND"] = "module://a_kernel_s_own_backend"
"""
AFTER = """
assert table["M"].tolist() == [2, 2], table
assert (table["examples/s GPipe"] > 0).all(), table
assert axes.get_lines()
"""


def source(cell: dict) -> str:
    return "".join(cell["source"])


def run_cells(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    """Execute these sources in one namespace, in a folder, as a kernel does."""
    script = folder / "cells.py"
    script.write_text("\n\n".join((KERNEL, *sources)), encoding="utf-8")
    return subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_it_is_plain_text_without_outputs():
    for cell in CODE:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        # No magic: a cell is Python, which any kernel and this test can run.
        compile(source(cell), NOTEBOOK.name, "exec")
        assert not re.search(r"^\s*[!%]", source(cell), flags=re.M)


def test_its_first_cell_holds_what_a_student_changes():
    assert CODE[0]["metadata"]["tags"] == ["parameters"]
    given: dict = {}
    exec(source(CODE[0]), given)
    assert (given["K"], given["M"]) == (2, [1, 2, 4, 8, 16, 32])
    assert {"SCALE", "REPOSITORY", "FOLDER"} <= given.keys()


@pytest.mark.slow
def test_its_cells_run(tmp_path):
    if not (ROOT / ".venv/bin/repro").exists():
        pytest.skip("the notebook would install .venv first")
    parameters, *others = [source(cell) for cell in CODE]
    changed = f"M, SCALE, FOLDER = [2], 'smoke', {str(tmp_path)!r}\nos.chdir({str(ROOT)!r})"
    done = run_cells(tmp_path, parameters, changed, *others, AFTER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report: " in done.stdout


def test_outside_of_the_repository_it_asks_for_an_address(tmp_path):
    parameters, setup, *_ = [source(cell) for cell in CODE]
    done = run_cells(tmp_path, parameters, setup)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ValueError: REPOSITORY is empty: ")
