"""Mistakes in a call of `launch`: one line each, before any process starts."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from leftovers import MARK, none_within

from repro.gpipe import launch
from repro.gpipe.runtime.launch import StageError


def fine(*_: object) -> None:
    """Can be launched."""


class _Locked:
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def nested() -> Callable[[], None]:
    """A function inside a function."""

    def inside() -> None: ...

    return inside


def graph() -> torch.Tensor:
    """A tensor that knows how it was made."""
    return torch.ones(1, requires_grad=True) * 2


@pytest.mark.parametrize(
    ("fn", "args", "options", "words"),
    [
        (lambda: None, (), {}, "cannot be pickled .*<lambda>"),
        (nested(), (), {}, "cannot be pickled .*nested.<locals>.inside"),
        (fine, ({"key": [lambda: None]},), {}, "cannot be pickled .*<lambda>"),
        (fine, (1, _Locked()), {}, "cannot be pickled .*cannot pickle '_thread.lock' object"),
        (fine, (graph(),), {}, "cannot be pickled .*non-leaf tensor which requires_grad"),
        (
            fine(),
            (),
            {},
            r"fn=None: must be a function; write launch\(train, ...\), not "
            r"launch\(train\(...\), ...\)",
        ),
        (fine, (), {"stages": 0}, "stages=0: must be a whole number, at least 1"),
        (fine, (), {"stages": "2"}, "stages='2': must be a whole number, at least 1"),
        (fine, (), {"threads": 0}, "threads=0: must be a whole number, at least 1"),
    ],
)
def test_one_line_and_no_process(
    fn: Any,
    args: tuple[Any, ...],
    options: dict[str, Any],
    words: str,
):
    with pytest.raises(ValueError, match=words) as caught:
        launch(fn, *args, **{"stages": 2, **options})
    assert "\n" not in str(caught.value)


_TRAIN = "from repro.gpipe import launch\ndef train(): return 1\n"
_CALL = "launch(train, stages=2)\n"
_IMPORTED = (
    "from repro.gpipe import launch\nfrom steps import train\nprint(launch(train, stages=2))\n"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "program", "words"),
    [
        ("script", _TRAIN + _CALL, 'launch: called without `if __name__ == "__main__":`; each '),
        (
            "stdin",
            _TRAIN + "if __name__ == '__main__': " + _CALL,
            "launch: this program is <stdin>",
        ),
        ("notebook", _TRAIN + _CALL, "fn=train: defined in an interactive session, a notebook or"),
        ("notebook", _IMPORTED, ""),
    ],
)
def test_programs_whose_function_stages_can_import_or_not(
    tmp_path: Path, how: str, program: str, words: str
):
    """A script, standard input, and a notebook, whose cells run in a __main__ without a file."""
    script = tmp_path / "program.py"
    script.write_text(program)
    (tmp_path / "steps.py").write_text("def train(): return 'trained'\n")
    cell = f"exec(compile({program!r}, '<ipython-input-1>', 'exec'), vars(__import__('__main__')))"
    command = {"script": [str(script)], "stdin": ["-"], "notebook": ["-c", cell]}[how]
    more = {MARK: str(tmp_path), "OMP_NUM_THREADS": "1"}
    more["PYTHONPATH"] = os.pathsep.join(["", *sys.path])
    done = subprocess.run(
        [sys.executable, *command],
        input=program if how == "stdin" else "",
        env=os.environ | more,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if words:
        assert f"ValueError: {words}" in done.stderr, done.stderr
        assert done.stderr.count("Traceback") == done.stderr.count("Error: ") == 1, done.stderr
    else:
        assert done.stdout == "['trained', 'trained']\n", done.stderr
    assert none_within(str(tmp_path), 10.0)


def unpicklable() -> object:
    """Cannot be sent back."""
    return _Locked()


@pytest.mark.slow
def test_what_a_stage_returns_must_be_picklable():
    with pytest.raises(
        StageError,
        match=r"what unpicklable returned on rank 0 cannot be pickled \(TypeError: cannot",
    ) as caught:
        launch(unpicklable, stages=1)
    assert "\n" not in caught.value.failure.text
