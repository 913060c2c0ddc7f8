"""A device that is fitted to seconds of layers predicts those of other micro-batches."""

from functools import partial
from typing import Any

import pytest

from predictions import curve
from repro.costs.device import Device
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.predict import Roofline
from repro.models import build

MODEL = build("transformer", L=2, d=64, H=128, heads=2, V=64, T=16)
LINK = LinkSpeed(bytes_per_second=1e9)
TEXTS: dict[str, Any] = {"title": "x", "precision": "float32", "date": "2026-11-26", "memory": 1e9}


def seconds(of: Device, sizes: tuple[int, ...]) -> list[float]:
    source = Roofline(of, MODEL)
    tables = [source.layers(n, "always") for n in sizes]
    return [each for table in tables for each in (*table.forward, *table.backward)]


def test_the_curve_of_a_known_device_is_found():
    numbers = {"matmul_flops": 1e11, "other_flops": 1e9, "bytes_per_second": 1e10}
    numbers |= dict.fromkeys(curve.HALVES, 1e5) | {"launch_s": 1e-6, "host_s": 1e-5}
    real = curve.measured("a test", LINK, name="real", **TEXTS, **numbers)
    predict = partial(seconds, sizes=(1, 4, 16, 64))
    found = curve.of_layers("a test", LINK, predict, predict(real), name="found", **TEXTS)
    others = seconds(real, (2, 32))
    assert seconds(found, (2, 32)) == pytest.approx(others, rel=0.1)
