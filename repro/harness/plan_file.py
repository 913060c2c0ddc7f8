"""The plan that `repro advise --save` writes and `repro run --plan` measures."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from repro.harness.catalog import Source, of_runs
from repro.harness.machine import Machine
from repro.harness.outside import consent, read
from repro.harness.spec import Frozen, RunSpec


class PlanFile(Frozen):
    # What each device is: the name of a profile, or what `repro calibrate` calls this machine.
    device: str = Field(min_length=1, max_length=400)
    predicted_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # of a step, simulated
    spec: RunSpec  # the run that measures the plan

    def save(self, path: Path) -> None:
        text = json.dumps(self.model_dump(mode="json", exclude_none=True), indent=1)
        path.write_text(text + "\n", encoding="utf-8")


def planned(path: Path, here: Machine, *, trusted: bool = False) -> Source:
    """An experiment of the one run that measures a plan for these devices; see `consent`."""
    try:
        plan = read(path, PlanFile)
    except ValueError as error:
        raise ValueError(f"--plan {error}") from None
    spec = plan.spec
    notice = consent(f"--plan {path}", spec.model, trusted=trusted)
    is_here = plan.device.startswith(here.kind) or here.has_profile(plan.device)
    if not is_here or spec.devices > here.count:
        raise ValueError(
            f"--plan {path}: is for {spec.devices} x {plan.device}, this machine has "
            f"{here.count} x {here.kind}; measure it there, or ask `repro advise` for a plan for "
            "this machine"
        )
    title = f"{spec.model}, K = {spec.K}, D = {spec.D}, M = {spec.M}, as advised"
    question = (
        f"A step was predicted to take {1e3 * plan.predicted_s:,.1f} ms (simulated): how long does "
        "it take?"
    )
    return of_runs("planned", title, question, (spec,), notice)
