"""The program in docs/training.md, as the page shows it."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image

from repro.gpipe import launch, whole_state_dict

PAGE = Path(__file__).parents[2] / "docs/training.md"


@pytest.mark.slow
@pytest.mark.timeout(180)  # starts processes three times
def test_a_training_that_goes_on_with_other_stages_has_the_same_bits(tmp_path, monkeypatch):
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    (tmp_path / "page.py").write_text(source, encoding="utf-8")
    for number, name in enumerate(["red", "green", "blue"]):
        (tmp_path / "images" / name).mkdir(parents=True)
        for n in range(9):
            colour = [20 * n] * 3
            colour[number] = 255
            Image.new("RGB", (10, 9), tuple(colour)).save(tmp_path / f"images/{name}/{n}.png")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    page = import_module("page")
    resumed, in_one_go = tmp_path / "resumed", tmp_path / "in_one_go"
    for folder, epochs, stages in ((resumed, 1, 1), (resumed, 3, 2), (in_one_go, 3, 1)):
        launch(page.train, "images", folder, epochs, stages=stages)
    one, other = whole_state_dict(resumed), whole_state_dict(in_one_go)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
