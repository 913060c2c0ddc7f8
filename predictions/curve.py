"""The numbers of a device, fitted to seconds that were measured of what the cost model predicts.

An operator attains more of its rate the more work it has (`repro.costs.roofline`). How much more is
seen where single layers are timed, in micro-batches of several sizes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from repro.costs.device import Amount, Device, Rate
from repro.gpipe.partition.layer_costs import LinkSpeed

RATES = ("matmul_flops", "other_flops", "bytes_per_second")
HALVES = {  # -> the rate at which this work is done
    "product_half": "matmul_flops",
    "convolution_half": "matmul_flops",
    "norm_half": "bytes_per_second",
    "elementwise_half": "bytes_per_second",
}
EACH = ("launch_s", "host_s")  # what an operator takes besides its work: on the device, on the host
FITTED = (*RATES, *HALVES, *EACH)
_ABOVE = 3.0  # the greatest rate over the most that a whole layer attains
Seconds = Callable[[Device], Sequence[float]]  # what the cost model predicts for a device


def measured(source: str, link: LinkSpeed, **values: str | float) -> Device:
    """A device whose numbers were all measured by `source`; each rate is its own peak.

    `values` are the other fields but `tile` and `setup_s`, each number as it was measured.
    """
    plain: dict[str, Any] = {
        "tile": {"value": 1, "source": "assumption: the rate has no matrix unit's tiles"},
        "setup_s": {"value": 0, "source": "assumption: a step begins with its actions"},
    }
    values["link_bytes_per_second"] = link.bytes_per_second
    values["link_latency_s"], values["link_overlap"] = link.latency, link.overlap
    for name, value in values.items():
        if isinstance(value, str):
            plain[name] = value
        elif Device.model_fields[name].annotation is Rate:
            rate = {"peak": value, "attainable": 1.0}
            plain[name] = rate | {"source": source, "attainable_source": source}
        else:
            plain[name] = {"value": value, "source": source}
    return Device.of(plain)


def where_free(device: Device) -> Device:
    """The device where no work takes any time."""
    update: dict[str, Any] = {}
    for name in Device.model_fields:
        number = getattr(device, name)
        if isinstance(number, Rate):
            update[name] = number.model_copy(update={"peak": 1e19, "attainable": 1.0})
        elif isinstance(number, Amount) and name not in ("memory", "element_bytes"):
            update[name] = number.model_copy(update={"value": 0.0})
    return device.model_copy(update=update)


def with_numbers(device: Device, fields: Sequence[str], values: Iterable[float]) -> Device:
    """The device with these values of the fields, in order; of a rate it is what is attained."""
    update: dict[str, Any] = {}
    for name, value in zip(fields, values, strict=True):
        number = getattr(device, name)
        field = "attainable" if isinstance(number, Rate) else "value"
        update[name] = number.model_copy(update={field: value})
    return device.model_copy(update=update)


def fit(
    device: Device, fields: Sequence[str], predict: Seconds, real: Sequence[float], near: float
) -> Device:
    """The fields that make the logarithms of seconds fit best; it begins with the device's own.

    Errors much larger than `near` count less. No rate is above its peak.
    """
    logs = np.log(real)

    def errors(values: np.ndarray) -> np.ndarray:
        return np.log(predict(with_numbers(device, fields, np.exp(values).tolist()))) - logs

    numbers = [getattr(device, name) for name in fields]
    start = [n.attainable if isinstance(n, Rate) else n.value for n in numbers]
    high = [0.0 if isinstance(number, Rate) else np.inf for number in numbers]
    found = least_squares(
        errors, np.log(start), bounds=(-np.inf, high), loss="soft_l1", f_scale=near, max_nfev=40
    )
    return with_numbers(device, fields, [float(f"{value:.4g}") for value in np.exp(found.x)])


def of_layers(
    source: str, link: LinkSpeed, predict: Seconds, real: Sequence[float], **texts: str | float
) -> Device:
    """A device made of the seconds of single layers alone; `texts` as for `measured`.

    The half of a class of which no layer has an operator stays where the fit begins.

    The fit begins where each rate is twice what any layer attains, and what an operator takes
    besides its work is the least for each operator of a layer.
    """
    numbers = dict.fromkeys(FITTED, 1.0)
    free = where_free(measured(source, link, **texts, **numbers))
    seconds = np.asarray(real)

    def work(name: str) -> np.ndarray:
        """Of each layer in the unit of one field, such as FLOPs."""
        number = getattr(free, name)
        field = "peak" if isinstance(number, Rate) else "value"
        one = free.model_copy(update={name: number.model_copy(update={field: 1.0})})
        return np.asarray(predict(one))

    operators = work("launch_s")
    timed = operators > 0.5  # others have views alone
    seconds = seconds[timed]
    each = float((seconds / operators[timed]).min())
    peaks = {name: _ABOVE * float((work(name)[timed] / seconds).max()) for name in RATES}
    start = {half: peaks[rate] * each for half, rate in HALVES.items()}
    start |= peaks | dict.fromkeys(EACH, each)
    begin = measured(source, link, **texts, **start)
    begin = with_numbers(begin, RATES, [2 / _ABOVE] * len(RATES))

    def of_timed(tried: Device) -> list[float]:
        return np.asarray(predict(tried))[timed].tolist()

    # Nothing would hold these back.
    begun = of_timed(begin)
    of_none = [half for half in HALVES if of_timed(with_numbers(begin, [half], [0.0])) == begun]
    fields = [name for name in FITTED if name not in of_none]
    fitted = fit(begin, fields, of_timed, seconds.tolist(), near=0.1)
    values = {name: float(f"{getattr(fitted, name).value:.4g}") for name in FITTED}
    values |= {name: round(values[name], 9) for name in EACH}  # less than a nanosecond is none
    return measured(source, link, **texts, **values)
