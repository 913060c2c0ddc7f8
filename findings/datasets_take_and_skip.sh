#!/usr/bin/env bash
# datasets 5.2.0: take(n) and skip(n), which cut a validation set off the beginning of a streamed dataset, do not stay apart.
# 1. The workers of a DataLoader divide n among them, and each skips its part of its own shard. So a loader with two workers skips
#    others than take(n) gives without workers, and half of the validation set is trained on.
# 2. If the stream was shuffled before it was cut, as the documentation advises, set_epoch shuffles it again below the cut. So
#    skip(n) leaves out others in each epoch, and what take(n) gave in epoch 0 is trained on.
# Nothing warns, and the numbers of examples are right.
# Seen with two shards of 100 and n=20: 10 of the 20 are trained on with two workers, and 10 in epoch 1. Without workers, and in
# epoch 0, none are.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 datasets==5.2.0
cd "$work"
cat >split.py <<'PY'
import os

os.environ["HF_HOME"] = os.getcwd()
from datasets import IterableDataset
from torch.utils.data import DataLoader

N = 20


def examples(shards: list[int]):
    for shard in shards:
        for i in range(100):
            yield {"number": 100 * shard + i}


def numbers(dataset: IterableDataset, workers: int = 0) -> set[int]:
    return {example["number"] for example in DataLoader(dataset, batch_size=None, num_workers=workers)}


stream = IterableDataset.from_generator(examples, gen_kwargs={"shards": [0, 1]})
held_out = numbers(stream.take(N))
for workers, seen in ((0, 0), (2, 10)):
    training = numbers(stream.skip(N), workers)
    print(f"{workers} workers: {len(training)} examples, {len(training & held_out)} of them held out")
    assert len(training) == 200 - N and len(training & held_out) == seen

stream = stream.shuffle(seed=0, buffer_size=50)
held_out, rest = numbers(stream.take(N)), stream.skip(N)
for epoch, seen in ((0, 0), (1, 10)):
    rest.set_epoch(epoch)
    training = numbers(rest)
    print(f"epoch {epoch}: {len(training)} examples, {len(training & held_out)} of them held out")
    assert len(training) == 200 - N and len(training & held_out) == seen
PY
"$work/venv/bin/python" split.py
