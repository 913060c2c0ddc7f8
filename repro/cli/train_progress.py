"""What the terminal shows during `repro train`.

On a terminal a live last line is rewritten at most once a second. Without one, plain lines say the
same every half minute. Evaluations are lines that stay.
"""

import sys
import time
from typing import IO

from repro.harness.text import duration, number
from repro.train.history import Evaluation, History

_RECENT = 20  # steps whose mean loss and speed are shown


class TrainingProgress:
    """Prints the course of a training; call it with the history after each step.

    Args:
        steps: at the end of the training.
        unit: of the throughput, such as "images/s".
        out: where to print; by default standard output.
    """

    def __init__(self, steps: int, unit: str, out: IO[str] | None = None) -> None:
        self._steps = steps
        self._unit = unit
        self._out = out or sys.stdout
        self._live = self._out.isatty()
        self._pause = 1.0 if self._live else 30.0
        self._printed_at = time.monotonic() if not self._live else 0.0
        self._evaluations: int | None = None

    def __call__(self, history: History) -> None:
        if self._evaluations is None:
            # Evaluations before a restart were printed before it.
            step = history.steps[-1].step
            self._evaluations = sum(each.step < step for each in history.evaluations)
        for evaluation in history.evaluations[self._evaluations :]:
            self._print(evaluation_line(evaluation), stays=True)
        self._evaluations = len(history.evaluations)
        is_last = history.steps[-1].step == self._steps
        if time.monotonic() - self._printed_at >= self._pause and not is_last:
            self._print(self._line(history), stays=not self._live)
            self._printed_at = time.monotonic()

    def _line(self, history: History) -> str:
        """`step 120 of 500 · loss 0.41 · accuracy 93.1 % · 812 images/s · 14 s left`."""
        recent = history.steps[-_RECENT:]
        step = recent[-1].step
        parts = [
            f"step {step} of {self._steps}",
            f"loss {sum(each.loss for each in recent) / len(recent):.3g}",
        ]
        if history.evaluations and "accuracy" in history.evaluations[-1].values:
            parts.append(f"accuracy {history.evaluations[-1].values['accuracy']:.1%}")
        parts.append(f"{number(history.throughput(_RECENT))} {self._unit}")
        seconds = sum(each.seconds for each in recent) / len(recent)
        parts.append(f"{duration(seconds * (self._steps - step))} left")
        return " · ".join(parts)

    def _print(self, text: str, *, stays: bool) -> None:
        if self._live:
            text = f"\r\x1b[2K{text}"  # in place of the live line
        self._out.write(text + ("\n" if stays else ""))
        self._out.flush()


def evaluation_line(evaluation: Evaluation) -> str:
    """`step 100: loss 0.41, accuracy 93.1%`, of the evaluation data."""
    values = [
        f"{name} {value:.1%}" if name == "accuracy" else f"{name} {value:.3g}"
        for name, value in evaluation.values.items()
    ]
    return f"step {evaluation.step}, evaluated: {', '.join(values)}"
