"""Flags that verbs share: the model, and for `simulate` and `advise` where layer times are from."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.cli.answers import AnswerOptions
from repro.costs import device
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness import machine
from repro.harness.catalog import pairs
from repro.harness.outside import consent, read
from repro.harness.schema import CalibrationFile
from repro.harness.spec import Optimizer, assigned
from repro.io.redact import tilde_to_home
from repro.io.untrusted import LARGE, refuse_links

if TYPE_CHECKING:
    from repro.harness.predict import Source
    from repro.models import Model


ModelName = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    model: ModelName = ""
    """named first: transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=24"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(AnswerOptions, ModelOptions):
    device: str | None = None
    """such as v100 (a wrong name lists all), a .json file that `repro calibrate` wrote, or here:
    this machine as `repro calibrate` measured it"""
    calibration: Path | None = None
    """instead of a device: a file of `repro calibrate MODEL`, which names model and arguments"""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """allow --calibration to name code: its model is import:package.module:function"""
    optimizer: Optimizer = "sgd"
    """adds its update and its state; with a calibration only the state"""
    link: Literal["nvlink", "nvlink2", "pcie", "pcie-host"] | float | None = None
    """between devices, instead of their own: that of h100, v100, p40 or p100-pcie, or 10^9 bits per
    second without latency, such as 100"""

    @property
    def link_speed(self) -> LinkSpeed | None:
        """The link that the user gives; None for the device's own."""
        if self.link is None:
            return None
        if not isinstance(self.link, str):
            if not 1e-6 <= self.link <= 1e6:
                raise ValueError(f"--link {self.link:g}: allowed is 1e-06 to 1e+06, or a name")
            return LinkSpeed(0.0, 1e9 / 8 * self.link)
        return device.load(device.LINKS[self.link]).link


@dataclasses.dataclass(frozen=True)
class Chosen:
    """The model and the source of its layer times."""

    model: "Model"
    model_args: dict[str, Any]
    source: "Source"
    on: str  # the source of the times, for the user
    profile: str | None = None
    calibration: CalibrationFile | None = None

    @property
    def title(self) -> str:
        return f"{self.model.name} ({assigned(self.model_args) or 'its defaults'})"

    @property
    def waits(self) -> bool:
        """Whether a layer takes the same time for every micro-batch, whatever its size."""
        return self.profile is None and self.calibration is None

    @property
    def memory(self) -> int | None:
        return None if self.source.memory is None else int(self.source.memory)

    def warn(self, K: tuple[int, ...], examples: dict[int, int], optimizer: str) -> None:
        """Say on stderr what is predicted from other conditions than layers were timed in.

        `examples` are M -> examples in a micro-batch.
        """
        if self.calibration is None:
            return
        timed, times = self.calibration.K, self.calibration.calibration
        # One process alone was timed as well.
        others = ", ".join(str(count) for count in dict.fromkeys(K) if count not in (1, timed))
        outside = ", ".join(str(M) for M, n in examples.items() if not times.covers(n))
        lines = {
            f"layers were timed with K={timed} processes at once; with K={others} another number "
            "would share the memory bandwidth: calibrate with another --K": others,
            f"layers were timed for micro-batches of {times.sizes[0]} to {times.sizes[-1]} "
            f"examples; M={outside} is extrapolated: calibrate with another --N": outside,
            f"updates were timed with sgd; of {optimizer} only the memory of its state counts "
            "here": optimizer != "sgd",
        }
        for line in (line for line, applies in lines.items() if applies):
            print(f"warning: {line}", file=sys.stderr)


def chosen(options: SourceOptions, parts: int = 1) -> Chosen:
    """The source of the layer times; a one-line ValueError unless exactly one is given.

    `parts` are the devices over which matrices are divided.
    """
    if options.device is not None and options.calibration is not None:
        raise ValueError("--device, --calibration: both are given, needed is one; leave one out")
    name, args = options.model, pairs("model_args", options.model_args)
    link = options.link_speed
    if options.calibration is not None:
        if parts > 1:
            raise ValueError(
                f"--tensor-parallel {parts}: the layers of a calibration were timed whole; give a "
                "--device instead"
            )
        return _calibrated(options, options.calibration, name, args)
    if not name:
        raise ValueError("model: name one; try `repro simulate transformer --device v100`")
    from repro.harness.predict import Known, Roofline, waits
    from repro.models import build

    model = build(name, **tilde_to_home(args))
    if waits(model):
        if options.device is not None:
            raise ValueError(
                f"--device {options.device}: the layers of {name} have fixed times; leave it out"
            )
        return Chosen(model, args, Known(model, link=link, parts=parts), "layers with fixed times")
    if options.device is None:
        raise ValueError(
            "--device, --calibration: give one of the two: try --device v100, or make "
            "a file with `repro calibrate MODEL`"
        )
    path = _measured_here() if options.device == "here" else options.device
    profile = device.load(tilde_to_home(path))
    source = Roofline(profile, model, options.optimizer, link, parts=parts)
    counted = "" if source.stored == 1 else "; memory is counted in float32"
    return Chosen(model, args, source, f"{profile.title}, {profile.precision}{counted}", path)


def this_machine() -> machine.Machine:
    return machine.detect("node" if machine.gpus() else "laptop")


def _measured_here() -> str:
    """The path of the profile of this machine that `repro calibrate` writes by default."""
    path = Path("results") / this_machine().slug / "device.json"
    refuse_links(Path("results"), path)
    if not path.is_file():
        raise ValueError(
            f"--device here: {path} is not there; `repro calibrate` measures this machine and "
            "writes it"
        )
    return str(path)


def _calibrated(options: SourceOptions, path: Path, name: str, args: dict[str, Any]) -> Chosen:
    """The layer times in a file of `repro calibrate MODEL`.

    The file names its model and arguments; the user may name the same. A model that is code needs
    --trust even if the user names it, since the arguments are the file's.
    """
    from repro.harness.predict import Calibrated
    from repro.models import build

    try:
        file = read(Path(tilde_to_home(str(path))), CalibrationFile, LARGE)
    except ValueError as error:
        raise ValueError(f"--calibration {error}") from None
    if (name or file.model, args or file.model_args) != (file.model, file.model_args):
        raise ValueError(
            f"model = {name!r} with {assigned(args) or 'no arguments'}: {path} is a calibration of "
            f"{file.model!r} ({assigned(file.model_args)}); leave both out"
        )
    notice = consent(f"--calibration {path}", file.model, trusted=options.trust)
    if notice:
        print(notice, file=sys.stderr)
    how = "" if file.calibration.alone is None else " and in turn"
    on = f"layers timed on {file.date}, all processes at once{how}: {file.device}"
    model = build(file.model, **tilde_to_home(file.model_args))
    source = Calibrated(file.calibration, model, options.optimizer, options.link_speed)
    return Chosen(model, dict(file.model_args), source, on, calibration=file)
