"""The notebook docs/two_gpu_demo.ipynb: its cells run in order, and its outputs are committed."""

import json
import re
import sys
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import pytest

from repro.cli.plan import choose
from repro.cli.run import RunOptions

ROOT = Path(__file__).parent.parent
CELLS = json.loads((ROOT / "docs/two_gpu_demo.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
SETTINGS, SET_UP, MEASURE, *REST = ["".join(cell["source"]) for cell in CODE]


def test_its_cells_are_python_with_outputs():
    for cell in CODE:
        # No magic: a cell is Python, which any kernel and this test can run.
        assert not re.search(r"^\s*[!%]", "".join(cell["source"]), flags=re.M)
    # Without a scale, nothing before the table prints; each cell after that shows something.
    assert all(cell["outputs"] for cell in CODE[3:])
    assert not any(output["output_type"] == "error" for cell in CODE for output in cell["outputs"])
    assert CODE[0]["metadata"]["tags"] == ["parameters"]


def test_outside_of_the_repository_it_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="outside of the repository"):
        exec(SET_UP, {})


@pytest.mark.parametrize("scale", re.findall(r'"(\w+)"', SETTINGS))
def test_every_scale_that_it_offers_has_examples_for_batch_norm(scale, tmp_path, monkeypatch):
    """Behind the last convolutions, a micro-batch of one small image has no variance."""
    requests = []

    def planned(words: list[str]) -> int:
        requests.append(choose(RunOptions, words[0], words[1:]))
        return 0

    monkeypatch.setattr("repro.cli.main.main", planned)
    exec(
        MEASURE,
        {"Path": Path, "ROOT": ROOT, "SCALE": scale, "FOLDER": str(tmp_path), "K": 2, "M": []},
    )
    (request,) = requests
    assert (request.scale, request.options.results) == (scale, tmp_path)
    groups = request.chosen[0].build(scale).groups
    assert all(run.M <= run.N // 2 for group in groups for run in group.runs)


def test_its_cells_show_the_records(monkeypatch):
    matplotlib.use("agg")
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT)  # puts back what the set-up changes
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(version_info=(9, 0)))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str))
    names: dict = {}
    for source in (SETTINGS, SET_UP, MEASURE, *REST):
        exec(source, names)
    assert set(names["table"]["method"]) == {"single", "naive", "gpipe"}
    assert len(names["axes"].get_lines()) == 3
    # What is saved is what the cells show now. If not, run the notebook again.
    shown = eval(REST[0].splitlines()[-1], names)
    assert "".join(CODE[3]["outputs"][0]["data"]["text/html"]) == shown._repr_html_()
    saved = unescape("".join(CODE[-1]["outputs"][0]["data"]["text/html"]))
    steps = re.search(r'"measured":.*', names["page"])
    assert steps is not None
    assert steps[0] in saved
