import socket

import pytest

from repro.data import sources
from repro.data.registry import find


@pytest.mark.parametrize("network", [False, True])
def test_without_a_network_nothing_is_tried_again(monkeypatch, network):
    """`datasets` tries for half a minute unless it is in its offline mode."""
    import datasets
    from datasets import config
    from huggingface_hub import constants

    modes = []

    def load_dataset(*_arguments, **_keywords):
        modes.append((config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
        raise ConnectionError("Couldn't reach it")

    def look_up(*_arguments):
        if not network:
            raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(sources, "getproxies", dict)
    with pytest.raises(ValueError, match=r"Couldn't reach it.*; without a network try digits"):
        sources.open_rows(find("cars"), train=True)
    assert modes == [(not network, not network)]
    assert (config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE) == (False, False)
