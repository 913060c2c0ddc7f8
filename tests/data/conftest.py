from dataclasses import replace

import pytest

from repro.data.registry import DATA


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Makes a folder of files stand for a data set on the Hugging Face Hub."""
    from datasets import config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def put(name, config="default", **splits):
        page = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            rows.to_parquet(tmp_path / name / f"{split}.parquet")
            page += [f"  - split: {split}", f"    path: {split}.parquet"]
        (tmp_path / name / "README.md").write_text("\n".join([*page, "---"]))
        entry = replace(DATA[name], hub=str(tmp_path / name), revision=None)
        monkeypatch.setitem(DATA, name, entry)

    return put
