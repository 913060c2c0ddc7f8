"""`repro gpus`: what one GPU cannot show, measured on two to eight, as one file to send back."""

import dataclasses
import os
from pathlib import Path

import tyro

from repro.cli import doctor, run
from repro.cli.options import parse
from repro.cli.pack import pack_results
from repro.harness import catalog, machine
from repro.harness.machine import Machine
from repro.harness.plan import make
from repro.harness.progress import summary

EXPERIMENTS = ("table2", "table3")
ONLY = "fidelity=measured"  # what is simulated or emulated needs no GPU
_DRY_RUN = "`repro gpus --dry-run` shows what would be measured"
_MOST = 8  # GPUs that Tables 2 and 3 have cells for


@dataclasses.dataclass(frozen=True)
class GpusOptions:
    """Check two to eight GPUs, measure Tables 2 and 3 on them, and pack the results."""

    results: Path = Path("results")
    """where measurements are recorded; what is there already is not measured again"""
    file: Path = Path("gpipe-results.zip")
    """the file to send back"""
    rounds: int | None = None
    """rounds of each run, by default five; intervals need five"""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """only say what would be done; needs no GPU, and plans for eight where there are none"""


def main(arguments: list[str]) -> int:
    """Check, measure and pack; 1 if a check or a run failed."""
    options = parse(GpusOptions, arguments, "repro gpus")
    if machine.torchrun_rank() is not None:
        raise ValueError(
            f"repro gpus with RANK={os.environ['RANK']}: it starts processes of its own; run it "
            "without torchrun, or see docs/cluster.md for several hosts"
        )
    if options.dry_run:
        _print_plans(options)
        return 0
    count = len(machine.gpus())
    if count < 2:
        usable = "torch can use one GPU here" if count else "torch can use no GPU here"
        trouble = doctor.trouble_here()
        raise ValueError(f"{usable}, needed are two to eight; {trouble or _DRY_RUN}")
    from repro.cli.doctor_check import print_checks  # imports torch

    if print_checks():
        print("\nA check failed, so nothing is measured. Please send the lines above.")
        return 1
    status = run.main(_run_arguments(options))
    # Runs that did not fit into memory are results too.
    pack_results(options.results, options.file)
    print(f"\nPlease send {options.file}, and the lines of the checks: see docs/cluster.md.")
    return status


def _run_arguments(options: GpusOptions) -> list[str]:
    rounds = [] if options.rounds is None else ["--rounds", str(options.rounds)]
    places = ["--results", str(options.results), "--wandb", "disabled"]
    return [*EXPERIMENTS, "--scale", "node", "--only", ONLY, *rounds, *places]


def _print_plans(options: GpusOptions) -> None:
    """Print what would be done on this machine's GPUs, or on eight where it has fewer than two."""
    count = min(len(machine.gpus()), _MOST)
    if count >= 2:
        devices = machine.detect("node")
    else:
        devices = Machine("cuda", "GPU", _MOST, "nccl", machine.installed("torch"))
        print(f"torch can use {count or 'no'} GPU here, so this is the plan for {_MOST}\n")
    print("1. repro doctor --check        half a minute: small pipelines over all GPUs")
    print(f"2. repro run {' '.join(_run_arguments(options))}")
    for name in EXPERIMENTS:
        experiment = catalog.find(name).build("node")
        plan = make(experiment, "node", devices, options.results, (ONLY,), options.rounds)
        print(f"   {name}: {summary(plan)}")
    print(f"3. repro pack --results {options.results} --file {options.file}")
