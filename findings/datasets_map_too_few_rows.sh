#!/usr/bin/env bash
# datasets 5.2.0: map(batched=True, drop_last_batch=True) drops the rows behind the last full batch. If there is no full batch at
# all, it drops none: the dataset comes back as it was, with all rows, without the function, and with the columns that
# remove_columns names. With num_proc each process has a part of its own, so whether anything is mapped depends on the number of
# processes. Nothing warns. A streamed dataset gives no rows then.
# Seen with batches of 1000: 3000 rows are all mapped by 1 or 3 processes, 2000 by 2, and none by 4 or 8, which give 3000 rows as
# they were. A validation set of 500 rows comes back as it was, and streamed it is empty.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" datasets==5.2.0
cd "$work"
cat >map.py <<'PY'
import os

os.environ["HF_HOME"] = os.getcwd()
from datasets import Dataset, disable_progress_bars

disable_progress_bars()
OPTIONS = {"batched": True, "batch_size": 1000, "drop_last_batch": True, "remove_columns": ["raw"]}


def scaled(batch: dict[str, list[int]]) -> dict[str, list[float]]:
    return {"scaled": [raw / 255 for raw in batch["raw"]]}


if __name__ == "__main__":
    rows = Dataset.from_dict({"raw": list(range(3000))})
    for processes, count, column in (
        (1, 3000, "scaled"),
        (2, 2000, "scaled"),
        (3, 3000, "scaled"),
        (4, 3000, "raw"),
        (8, 3000, "raw"),
    ):
        mapped = rows.map(scaled, num_proc=processes, **OPTIONS)
        print(f"{processes} processes: {len(mapped)} rows of {mapped.column_names}")
        assert len(mapped) == count and mapped.column_names == [column]
    few = rows.select(range(500))
    mapped, streamed = few.map(scaled, **OPTIONS), list(few.to_iterable_dataset().map(scaled, **OPTIONS))
    print(f"500 rows: {len(mapped)} of {mapped.column_names}, streamed {len(streamed)}")
    assert len(mapped) == 500 and mapped.column_names == ["raw"] and streamed == []
PY
"$work/venv/bin/python" -W error::UserWarning map.py 2>log || { cat log; exit 1; }
