"""Ten launches that Ctrl-C interrupts, each at a random moment before its first step."""

import os
import random
import signal
import sys
import threading
import time

import torch
from torch import nn

from repro.gpipe import Pipeline, launch


def train(seconds: float) -> None:
    pipe = Pipeline([nn.Linear(2, 2), nn.Linear(2, 2)], 2, 2, device="cpu")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    pipe.train_step(torch.ones(4, 2), torch.ones(4, 2), nn.functional.mse_loss, optimizer)
    time.sleep(seconds)


def interrupt_within(seconds: float) -> None:
    timer = threading.Timer(random.uniform(0, seconds), os.killpg, (0, signal.SIGINT))
    try:
        timer.start()  # the first moment is here
        launch(train, 1000.0, stages=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)


if __name__ == "__main__":
    random.seed(sys.argv[1])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt_within(3.0)  # while the server imports torch, from which later stages are forked
    launch(train, 0.0, stages=2)
    before = time.monotonic()
    launch(train, 0.0, stages=2)
    seconds = time.monotonic() - before
    for _ in range(9):
        interrupt_within(seconds)
