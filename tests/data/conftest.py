import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """`datasets` keeps what it read in a cache; give each test one of its own."""
    from datasets import config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))
