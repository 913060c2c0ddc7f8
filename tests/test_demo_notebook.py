"""The notebook docs/two_gpu_demo.ipynb: its cells run in order."""

import json
import re
import shutil
from pathlib import Path

import matplotlib
import pytest

from repro.cli.main import main
from repro.cli.plan import choose
from repro.cli.run import RunOptions

ROOT = Path(__file__).parent.parent
CELLS = json.loads((ROOT / "docs/two_gpu_demo.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
PLACE = "intel-xeon-2c/laptop/two_gpu_demo"
SOURCES = ["".join(cell["source"]) for cell in CODE]


def test_it_is_plain_text_without_outputs_and_asks_for_an_address_outside(tmp_path, monkeypatch):
    for cell, source in zip(CODE, SOURCES, strict=True):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
        # No magic: a cell is Python, which any kernel and this test can run.
        assert not re.search(r"^\s*[!%]", source, flags=re.M)
    assert CODE[0]["metadata"]["tags"] == ["parameters"]
    monkeypatch.chdir(tmp_path)
    given: dict = {}
    exec(SOURCES[0], given)
    with pytest.raises(ValueError, match=r"^REPOSITORY is empty: "):
        exec(SOURCES[1], given)


@pytest.mark.parametrize("scale", re.findall(r'"(\w+)"', SOURCES[0]))
def test_every_scale_that_it_offers_has_examples_for_batch_norm(scale):
    """Behind the last convolutions, a micro-batch of one small image has no variance."""
    requests = []

    def planned(_python: Path, *words: object, folder: Path) -> int:
        requests.append(choose(RunOptions, "run", [str(word) for word in words[3:]]))
        return 0

    given = {"SCALE": scale, "FOLDER": "", "K": 2, "M": [], "run": planned}
    exec(SOURCES[2], given | {"Path": Path, "ROOT": ROOT, "PYTHON": ROOT})
    (request,) = requests
    assert request.scale == scale
    groups = request.chosen[0].build(scale).groups
    assert all(run.M <= run.N // 2 for group in groups for run in group.runs)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # open pictures
def test_its_cells_run(tmp_path, monkeypatch):
    """The notebook's command is understood; what it would measure is taken from the records."""
    if not (ROOT / ".venv/bin/repro").exists():
        pytest.skip("the notebook would install .venv first")

    def measured(_python: Path, *words: object, folder: Path) -> int:
        flag, module, verb, *arguments = map(str, words)
        assert (flag, module, verb, folder) == ("-m", "repro", "run", ROOT)
        options = choose(RunOptions, "run", arguments).options
        shutil.copytree(ROOT / "results/reference" / PLACE, options.results / PLACE)
        return main(["report", "--results", str(options.results), "--plots", str(options.plots)])

    matplotlib.use("agg")
    monkeypatch.chdir(ROOT)
    names: dict = {}
    changed = f"SCALE, FOLDER = 'smoke', {str(tmp_path)!r}"
    for source in (SOURCES[0], changed, SOURCES[1]):
        exec(source, names)
    names["run"] = measured
    for source in SOURCES[2:]:
        exec(source, names)
    assert set(names["table"]["M"]) == {1, 4, 16, 32}
    assert len(names["axes"].get_lines()) == 3
