"""The program in docs/training.md, as the page shows it."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from leftovers import program, until
from PIL import Image

from repro.gpipe import launch, whole_state_dict
from repro.gpipe.checkpoint.files import INDEX, read_index

PAGE = Path(__file__).parents[2] / "docs/training.md"


@pytest.mark.slow
@pytest.mark.timeout(180)  # starts processes three times
def test_a_killed_training_ends_with_the_same_bits_as_one_that_was_not(tmp_path, monkeypatch):
    """With other numbers of stages, too."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    endless = source.replace('"checkpoint", 20,', '"checkpoint", 10**6,')
    assert endless != source
    (tmp_path / "page.py").write_text(endless, encoding="utf-8")
    for number, name in enumerate(["red", "green", "blue"]):
        (tmp_path / "images" / name).mkdir(parents=True)
        for n in range(9):
            colour = [20 * n] * 3
            colour[number] = 255
            Image.new("RGB", (10, 9), tuple(colour)).save(tmp_path / f"images/{name}/{n}.png")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    killed, whole = tmp_path / "checkpoint", tmp_path / "whole"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "page.py"]
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with program(killed, command, env=environment, **output) as process:
        until(lambda: (killed / INDEX).exists(), 100)
        process.kill()
    epochs = read_index(killed).extra["epochs"] + 2
    page = import_module("page")
    launch(page.train, "images", killed, epochs, stages=1)
    launch(page.train, "images", whole, epochs, stages=2)
    one, other = whole_state_dict(killed), whole_state_dict(whole)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())
