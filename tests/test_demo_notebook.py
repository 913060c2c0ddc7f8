"""The notebook docs/two_gpu_demo.ipynb: its cells run in order, as a kernel would run them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CELLS = json.loads((ROOT / "docs/two_gpu_demo.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
SOURCES = ["".join(cell["source"]) for cell in CODE]
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


def run_cells(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    """Execute these sources in one namespace, in a folder, as a kernel does."""
    (folder / "cells.py").write_text("\n\n".join((KERNEL, *sources)), encoding="utf-8")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "cells.py"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_it_is_plain_text_without_outputs_and_begins_with_what_a_student_changes():
    for cell, source in zip(CODE, SOURCES, strict=True):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        # No magic: a cell is Python, which any kernel and this test can run.
        assert not re.search(r"^\s*[!%]", source, flags=re.M)
    assert CODE[0]["metadata"]["tags"] == ["parameters"]
    given: dict = {}
    exec(SOURCES[0], given)
    assert (given["K"], given["M"]) == (2, [1, 2, 4, 8, 16, 32])
    assert {"SCALE", "REPOSITORY", "FOLDER"} <= given.keys()


@pytest.mark.slow
def test_its_cells_run(tmp_path):
    if not (ROOT / ".venv/bin/repro").exists():
        pytest.skip("the notebook would install .venv first")
    changed = f"M, SCALE, FOLDER = [2], 'smoke', {str(tmp_path)!r}\nos.chdir({str(ROOT)!r})"
    done = run_cells(tmp_path, SOURCES[0], changed, *SOURCES[1:], AFTER)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report: " in done.stdout


def test_outside_of_the_repository_it_asks_for_an_address(tmp_path):
    done = run_cells(tmp_path, *SOURCES[:2])
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ValueError: REPOSITORY is empty: ")
