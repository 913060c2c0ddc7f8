"""Copies of runs in W&B, as its own reader of offline files shows them, and the workspace."""

import getpass
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import wandb
from fakes import SPEC_SIZES, FakeWorkers, experiment, measure, spec

from repro.cli.main import main
from repro.cli.run import RunOptions
from repro.harness import wandb as copies
from repro.harness.request import Request, Result, Status
from repro.harness.results import load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec, Training

pytestmark = [
    pytest.mark.usefixtures("own_home"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RESULTS = Path("results")
HOST, KEY = "heartofgold-7", "zq7" * 14
LOSSES = [1 / update for update in range(1, 100, 2)]  # of 100 updates every other
LEARN: dict[str, Any] = {"task": "learn", "loss": LOSSES, "digest": "0" * 64}
LEARN |= {"metrics": {"accuracy": 0.5, "bleu toy:alfa": 20.0}, "parameters": 10, "seconds": 1.0}
LEARN |= {"examples": 800, "balance": [2], "setup_s": 0.1, "unit": "examples/s", "labels": {}}
# What a template of jobs or an agent of W&B sets for one run.
OF_ONE_RUN = {"WANDB_RUN_ID": "theirs", "WANDB_RESUME": "must", "WANDB_LAUNCH": "true"}
OF_ONE_RUN |= {"WANDB_FORK_FROM": "theirs?_step=1", "WANDB_DIR": "/proc/theirs"}
_NAMES = ["NAME", "RUN_GROUP", "JOB_TYPE", "NOTES", "TAGS", "SWEEP_ID"]
OF_ONE_RUN |= {f"WANDB_{name}": "theirs" for name in _NAMES}


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without W&B credentials, and no memory of earlier trouble."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(copies, "_printed", set())
    monkeypatch.setattr(copies, "_unreachable", set())
    return home


class Teacher(FakeWorkers):
    """As `FakeWorkers`, and a training is recorded."""

    def measure(self, request: Request, deadline: float) -> Result | Status:
        if request.spec.task == "learn":
            return Result(round_record(LEARN))
        return super().measure(request, deadline)


def plan_of() -> Any:
    """Three measured runs, a simulated one, and a training."""
    simulated = spec(2, 8, fidelity="simulated", balance="uniform", profile="h100")
    args = {"L": 3, "D": 8, "image": 16, "num_classes": 5}
    fields: dict[str, Any] = {"model": "amoebanet-b", "model_args": args, "K": 1, "M": 1, "N": 8}
    training = Training(data=("digits",), recipe={"optimizer": "sgd", "lr": 0.01})
    learnt = RunSpec(**fields, task="learn", trace=False, training=training)
    plain = spec(1, 1, recompute="never")
    return experiment(plain, spec(1, 4), spec(2, 4), simulated, learnt, rounds=2)


class Copy:
    """One W&B run as it lies on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        records = [json.loads(line) for line in self._inspect().splitlines()]
        (self.run,) = [record["run"] for record in records if record["type"] == "run"]
        self.history = [each["history"]["item"] for each in records if each["type"] == "history"]
        about = json.loads(self._inspect("--summary"))
        self.config, self.summary = about["config"], about["summary"]

    def _inspect(self, *flags: str) -> str:
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *flags, self.path]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def rows(self, name: str) -> list[dict[str, Any]]:
        path = self.path.parent / "files" / self.summary[name]["path"]
        table = json.loads(path.read_text())
        return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user on a host with secrets and variables of W&B, with results."""
    project = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        wandb.teardown()  # so that the variables are read
        of_all = {"WANDB_PROJECT": "ours", "WANDB_ENTITY": "a-team", "WANDB_API_KEY": KEY}
        job = {"SM_TRAINING_ENV": '{"theirs": 1}', "TRAINING_JOB_NAME": "theirs"}
        for name, value in {**OF_ONE_RUN, **of_all, **job}.items():
            patch.setenv(name, value)
        patch.setattr(socket, "gethostname", lambda: HOST)
        for _ in range(2):  # the second time nothing is measured, and nothing is copied again
            assert measure(RESULTS, Teacher(), plan_of(), session={"wandb": "offline"}) == 0
    return project


def copied(project: Path) -> dict[str, Copy]:
    """All copies by name; those of a run by its model, K and M."""
    runs = [Copy(path) for path in project.glob("results/wandb/offline-run-*/*.wandb")]
    named = {re.sub("-[0-9a-f]{6}$", "", each.run["display_name"]): each for each in runs}
    assert len(named) == len(runs)
    return named


@pytest.fixture(scope="module")
def logged(project: Path) -> dict[str, Copy]:
    return copied(project)


@pytest.fixture(autouse=True)
def in_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def test_a_measured_run_and_a_training(logged: dict[str, Copy]):
    copy, trained = logged["transformer-K2-M4"], logged["amoebanet-b-K1-M1"]
    place = {"experiment": "tiny", "machine": "test-cpu-2c", "scale": "smoke"}
    about = {"K": 2, "method": "gpipe", "recompute": "always", "balance": "[2, 2]"} | place
    about |= {"model_args/L": SPEC_SIZES["L"]}
    assert {name: copy.config[name] for name in about} == about
    assert copy.config.keys().isdisjoint({*copy.summary}), "a number has one name"
    values = [*copy.config.values(), *copy.summary.values()]
    assert not any(isinstance(value, dict | list) for value in values), "no nested keys"
    assert copy.summary["step_s"] == 0.75
    assert copy.summary["speedup_vs_k1"] == pytest.approx(1.25 / 0.75)
    assert "speedup_vs_k2m1_ci_low" not in copy.summary, "an unknown number is left out"
    assert (copy.run["run_group"], copy.run["host"]) == ("tiny", "anonymous")
    assert [point["idle_over_total"] for point in copy.history[:2]] == [0.25, 0.25]
    assert copy.history[0]["throughput"] == pytest.approx(8 / 0.75)
    assert copy.history[1]["peak_gib_of_stage/1"] == 1.0
    losses = {point["_step"]: point["train_loss"] for point in trained.history}
    assert losses == {update: 1 / update for update in range(1, 100, 2)}
    assert trained.summary["test/accuracy"] == 0.5


def test_timed_runs_are_runs_there_and_all_are_lines_of_a_table(logged: dict[str, Copy]):
    rows = logged["tiny, all runs"].rows("runs/tiny")
    transformers = {f"transformer-{sizes}" for sizes in ("K1-M1", "K1-M4", "K2-M4")}
    assert logged.keys() == transformers | {"amoebanet-b-K1-M1", "tiny, all runs"}
    assert [row["run"] for row in rows] == [run.id for run in load(RESULTS).runs]
    (simulated,) = [row for row in rows if row["fidelity"] == "simulated"]
    assert simulated["step_s"] == pytest.approx(1 / 2 + 1 / 8)
    assert simulated["speedup_vs_k1"] is None


def test_variables_of_one_run_are_left_out_which_is_one_line(
    logged: dict[str, Copy], monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    runs = [each.run for each in logged.values()]
    assert len({run["run_id"] for run in runs}) == len(runs)
    assert {(run["project"], run["entity"]) for run in runs} == {("ours", "a-team")}
    assert "theirs" not in json.dumps(runs)
    for name, value in OF_ONE_RUN.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        copies.settings(RESULTS)
    line = capsys.readouterr().err
    assert (line.count("\n"), re.findall(r"WANDB_\w+", line)) == (1, sorted(OF_ONE_RUN))
    assert os.environ.items() >= OF_ONE_RUN.items(), "which a user's own code may read"


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    wandb.teardown()
    monkeypatch.setenv("WANDB_HEARTBEAT_SECONDS", "often")
    results = load(RESULTS)
    for _ in range(2):  # the second time W&B would take the settings that it has read before
        assert copies.log_run("online", results, results.runs[0], Path("wrong")) is None
    line = capsys.readouterr().err
    assert (line.count("\n"), "heartbeat_seconds" in line, Path("wrong").exists()) == (1, True, 0)


def test_the_mode_of_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    for mode in ("disabled", "online"):
        monkeypatch.setenv("WANDB_MODE", mode)
        assert RunOptions().wandb == mode
    monkeypatch.setenv("WANDB_MODE", "of")
    assert main(["run", "table2"]) == 2
    assert "WANDB_MODE = 'of': allowed are offline" in capsys.readouterr().err


def test_nothing_private_is_copied_or_written_to_the_home(
    project: Path, logged: dict[str, Copy], own_home: Path
):
    private = {HOST, KEY, os.path.expanduser("~"), str(project), getpass.getuser()}  # noqa: PTH111
    sent = [path for path in project.glob("results/wandb/offline-run-*/**/*") if path.is_file()]
    sent += project.glob("results/wandb/data/**/tmp*")
    assert len(sent) > len(logged)
    for path in sent:
        content = path.read_bytes()
        assert [word for word in private - {"root"} if word.encode() in content] == [], path
    assert list(own_home.rglob("*")) == []


def test_a_table_whose_path_names_the_home_is_not_copied(own_home: Path, capsys: Any):
    wandb.teardown()
    results = load(RESULTS)
    copies.log_experiment("offline", results, results.runs[0].place, own_home)
    assert "no table: from here, its path names your home folder" in capsys.readouterr().err


@pytest.mark.parametrize("key", [None, "0" * 40])
def test_online_without_a_key_or_a_server_stays_offline(
    key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    wandb.teardown()
    init, results = copies._init, load(RESULTS)

    def refuse_online(mode: copies.Mode, *rest: Any) -> Any:
        if mode == "online":
            raise OSError("no route to host")
        return init(mode, *rest)

    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
        monkeypatch.setattr(copies, "_init", refuse_online)
    for number in range(2):
        assert len(list(tmp_path.glob("wandb/offline-run-*"))) == number
        assert copies.log_run("online", results, results.runs[0], tmp_path) is None
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert ("no route to host" if key else "wandb login") in err


def test_the_workspace_shows_what_is_copied_where_the_variables_say(
    logged: dict[str, Copy], monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    from wandb_workspaces.reports.v2 import CustomChart
    from wandb_workspaces.workspaces import Workspace

    made = copies.workspace(load(RESULTS), "", "")
    shown = made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
    assert set(re.findall(r'"(runs/\w+)"', shown)) == {"runs/tiny"}
    assert '"train_loss"' in shown, "as in the history of a training"
    rows = logged["tiny, all runs"].rows("runs/tiny")
    charts = [panel for panel in made.sections[0].panels if isinstance(panel, CustomChart)]
    assert len(charts) == 3
    for fields in (chart.chart_fields for chart in charts):
        assert any(row[fields["lineVal"]] for row in rows)
        assert {row[fields["step"]] for row in rows} == {1, 4, 8}
        assert "timed, gpipe, K = 2" in {row[fields["lineKey"]] for row in rows}

    wandb.teardown()
    for name in ("PROJECT", "ENTITY", "API_KEY"):
        monkeypatch.setenv(f"WANDB_{name}", f"a-{name}")
    monkeypatch.setattr(Workspace, "save", lambda _: None)
    monkeypatch.setattr(Workspace, "url", property(lambda it: f"{it.entity}/{it.project}"))
    assert main(["report", "--wandb"]) == 0
    assert "workspace: a-ENTITY/a-PROJECT\n" in capsys.readouterr().out
