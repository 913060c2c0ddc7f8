import json
from dataclasses import replace
from pathlib import Path

from fakes import MACHINE, experiment, metrics, spec

from repro.costs import device as devices
from repro.harness import catalog, plan
from repro.harness.request import Result
from repro.harness.spec import Experiment
from repro.harness.vary import compared


def make(results: Path, *only: str, of: Experiment | None = None, **options: object) -> plan.Plan:
    return plan.make(of or experiment(), "smoke", MACHINE, results, only, **options)  # pyright: ignore[reportArgumentType]


def record(made: plan.Plan, *points: tuple[int, int]) -> None:
    """One finished round of these (K, M)."""
    chosen = {
        run.id: Result(metrics(1.0, run.spec.K))
        for run in made.runs
        if (run.spec.K, run.spec.M) in points
    }
    times = ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:08+00:00")
    made.journal.commit("timed", chosen, MACHINE, times)


def members(made: plan.Plan) -> list[list[tuple[int, int]]]:
    return [[(run.spec.K, run.spec.M) for run in round_] for round_ in made.fresh_rounds("timed")]


ONE_F_ONE_B = {"schedule": "1f1b", "balance": "uniform"}


def test_capped_stages_share_a_gpu_if_it_has_room(tmp_path: Path):
    """Eight stages of 16 GiB: not on a GPU of 80 GB."""
    table1 = catalog.find("table1").build("gpu")
    for gigabytes, reasons in ((149, set()), (80, {"needs 133 GiB on each GPU, which has 75"})):
        gpu = replace(MACHINE, device="cuda", kind="NVIDIA H200", count=1, memory=gigabytes * 10**9)
        runs = plan.make(table1, "gpu", gpu, tmp_path).runs
        assert {run.obstacle for run in runs if run.obstacle} == reasons
    *_, shared = catalog.find("runtime").build("gpu").groups
    assert {plan.obstacle(run, gpu, shared=shared.shared) for run in shared.runs} == {""}


def test_only_adds_baselines_filters_are_alternatives_and_their_fields_go_together(tmp_path: Path):
    made = make(tmp_path, "K=2,M=4")
    assert members(made)[0] == [(1, 4), (2, 1), (2, 4)]
    assert [run.added for run in made.runs] == [True, True, False]
    assert members(make(tmp_path, "K=1,M=1", "k=1,M=4"))[0] == [(1, 1), (1, 4)]
    assert members(make(tmp_path, "K=1,K=2,M=1"))[0] == [(1, 1), (2, 1)]


def test_a_baseline_whose_own_was_not_asked_for_is_done_once(tmp_path: Path):
    """(2, 1) is divided by (1, 1), which nobody wants here and so never gets a round."""
    for _ in range(2):
        record(make(tmp_path, "K=2,M=4"), (1, 4), (2, 1), (2, 4))
    made = make(tmp_path, "K=2,M=4")
    assert members(made) == []
    assert [str(run.status) for run in made.runs] == ["done"] * 3
    assert members(make(tmp_path)) == [[(1, 1), (2, 1)]] * 2


def test_a_baseline_is_cut_by_the_same_rule_but_for_one_stage(tmp_path: Path):
    share = {"balance": "flops", "partitioner": "cumulative-share"}
    cuts = ({}, share, {"balance": (5, 3)})
    specs = [spec(1, 4), *(spec(2, M, **cut) for cut in cuts for M in (1, 4))]
    runs = make(tmp_path, of=experiment(*specs)).runs
    one, by_time, _, by_share, _, given, _ = (run.id for run in runs)
    assert [run.bases for run in runs if run.spec.M == 4] == [
        (),
        (one, by_time),
        (one, by_share),
        (one, given),
    ]
    # A list of four counts is none for K=2.
    assert compared(spec(4, 4, balance=(2, 2, 2, 2)), K=2) == compared(spec(2, 4))


def test_a_peer_brings_ours_over_both_transports_and_a_count_needs_one_round(tmp_path: Path):
    ours, peer = (spec(2, 4, library=library, trace=False) for library in ("repro", "torch"))
    gloo = spec(2, 4, transport="gloo", trace=False)
    of = experiment(ours, peer, gloo, spec(2, 4, trace=False, task="traffic"))
    made = make(tmp_path, "library=torch", of=of)
    assert [run.spec for run in made.runs if run.added] == [ours, gloo]
    second = make(tmp_path, of=of).fresh_rounds("timed")[1]
    assert [run.spec.task for run in second] == ["train"] * 3


def test_a_peer_needs_to_be_installed_and_some_take_all_processes(tmp_path: Path, monkeypatch):
    runs = [spec(K, 4, library="deepspeed", trace=False, **ONE_F_ONE_B) for K in (2, 4)]
    runs = [run.model_copy(update={"fidelity": "emulated"}) for run in runs]
    monkeypatch.setattr(plan, "find_spec", lambda _name: None)
    (reason,) = {run.obstacle for run in make(tmp_path, of=experiment(*runs)).runs}
    assert reason.startswith("deepspeed is not installed: .venv/bin/uv pip install")
    monkeypatch.setattr(plan, "find_spec", lambda _name: "there")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    reasons = [run.obstacle for run in make(tmp_path, of=experiment(*runs)).runs]
    assert reasons == ["deepspeed takes all processes: start torchrun with 2", ""]


def test_an_edited_device_profile_makes_another_run(tmp_path: Path):
    profile = tmp_path / "device.json"
    built_in = Path(devices.__file__).with_name("devices") / "v100.json"

    def planned(text: str) -> str:
        profile.write_text(text)
        run = spec(2, 4, fidelity="simulated", profile=str(profile))
        (found,) = make(tmp_path, of=experiment(run)).runs
        return found.id

    first = planned(built_in.read_text())
    reformatted = json.dumps(json.loads(built_in.read_text()), indent=7)
    assert planned(reformatted) == first
    assert planned(built_in.read_text().replace("V100", "V101")) != first
