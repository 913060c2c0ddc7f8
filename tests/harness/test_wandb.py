"""What is mirrored to W&B, read back through `wandb leet inspect`, and the dashboard of it."""

import getpass
import json
import os
import re
import socket
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import wandb
from crew import Crew, experiment, measure, metrics, spec
from PIL import Image

from repro.cli.main import main
from repro.cli.run import RunOptions
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.harness import wandb_mirror, wandb_summary
from repro.harness.job import Job, Measured, Outcome
from repro.harness.results import Results, load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec, Training

pytestmark = [
    pytest.mark.usefixtures("own_home"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
RESULTS, PLOTS = Path("results"), Path("plots")
REFERENCE = Path(__file__).parents[2] / "plots/reference"
EXPERIMENTS = tuple(path.parent.name for path in REFERENCE.parents[1].glob("experiments/*/runs.py"))
HOST, KEY = "heartofgold-7", "zq7" * 14
LEARN: dict[str, Any] = {"task": "learn", "loss": [3.0, 2.0, 1.0], "digest": "0" * 64}
LEARN |= {"metrics": {"accuracy": 0.5, "bleu toy:alfa": 20.0}, "parameters": 10, "seconds": 1.0}
LEARN |= {"examples": 24, "balance": [2], "setup_s": 0.1, "unit": "examples/s", "labels": {}}
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
    monkeypatch.setattr(wandb_mirror, "_said", set())
    monkeypatch.setattr(wandb_mirror, "_refused", set())
    return home


class Teacher(Crew):
    """As `Crew`; trainings are trained, and simulated steps have one more bubble."""

    def measure(self, job: Job, deadline: float) -> Outcome:
        if job.spec.task == "learn":
            return Outcome("done", measured=Measured(round_record(LEARN), None))
        outcome = super().measure(job, deadline)
        if job.spec.fidelity == "simulated":
            record = metrics(1 / job.spec.K, job.spec.K, bubble_idle_over_total=[0.5])
            timeline = Timeline((Span("F", 0, 0, 0.0, 1.0),), job.spec.K)
            return Outcome("done", measured=Measured(record, timeline))
        return outcome


def plan_of() -> Any:
    """Two measured and four simulated runs, and a training."""
    waits: dict[str, Any] = {"model": "timed", "fidelity": "simulated", "balance": "uniform"}
    simulated = [
        RunSpec(**waits, model_args={"L": K, "forward_s": 0.01}, K=K, M=M, N=M)
        for K in (2, 4)
        for M in (1, 4)
    ]
    args = {"L": 3, "D": 8, "image": 16, "num_classes": 5}
    fields: dict[str, Any] = {"model": "amoebanet-b", "model_args": args, "K": 1, "M": 1, "N": 8}
    training = Training(data=("digits",), recipe={"optimizer": "sgd", "lr": 0.01})
    learnt = RunSpec(**fields, task="learn", trace=False, training=training)
    return experiment(spec(1, 4), spec(2, 4), *simulated, learnt, rounds=2)


class Mirrored:
    """One W&B run as it lies on the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = [json.loads(line) for line in self._inspect().splitlines()]
        (self.run,) = self.all("run")
        self.history = [each["item"] for each in self.all("history")]

    def _inspect(self, *flags: str) -> str:
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *flags, self.path]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @cached_property
    def about(self) -> dict[str, Any]:
        return json.loads(self._inspect("--summary"))

    @property
    def names(self) -> set[str]:
        """Everything that a panel can show."""
        updates = [each.get("update", {}) for each in self.all("summary")]
        # The parts of a table or a picture have names such as "plots/bars.path".
        names = {name.split(".")[0] for update in [*updates, *self.history] for name in update}
        return {name for name in names if not name.startswith("_")}

    def file(self, name: str) -> Path:
        """The file of a table, a picture or a page."""
        return self.path.parent / "files" / self.about["summary"][name]["path"]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [record[kind] for record in self.records if record["type"] == kind]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user on a host with secrets and variables of W&B: results and a report."""
    project = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        wandb.teardown()  # so that the variables are read
        of_all = {"WANDB_PROJECT": "ours", "WANDB_ENTITY": "a-team", "WANDB_API_KEY": KEY}
        job = {"SM_TRAINING_ENV": '{"theirs": 1}', "TRAINING_JOB_NAME": "theirs"}
        for name, value in {**OF_ONE_RUN, **of_all, **job}.items():
            patch.setenv(name, value)
        patch.setattr(socket, "gethostname", lambda: HOST)
        for _ in range(2):  # the second time nothing is measured, and nothing is mirrored again
            assert measure(RESULTS, Teacher(), plan_of(), session={"wandb": "offline"}) == 0
        PLOTS.mkdir()
        home = os.path.expanduser("~")  # noqa: PTH111
        claims = "id,verdict\na,reproduced\nb,not tested here\nc,reproduced\n"
        files = {
            "report.html": f"<html><body>made in {home}/x</body></html>",
            "tiny_speed.csv": "K,speedup,why\n1,1.0,\n2,1.9,nan\n",
            "tiny_secret.csv": f"why\n{KEY} on {HOST} in {home}\n",
            "verdicts.csv": claims,
            "salaries.csv": "name,salary\nme,1\n",  # what is not of the report stays here
        }
        for name, text in files.items():
            (PLOTS / name).write_text(text)
        for name in ("tiny_bars", "me"):
            Image.effect_noise((64, 64), 50).save(PLOTS / f"{name}.png")
        wandb_summary.log_report("offline", PLOTS, ["tiny"], RESULTS)
    return project


@pytest.fixture(scope="module")
def logged(project: Path) -> dict[str, Mirrored]:
    """All that is mirrored, by name; of a measured or trained run by its model, K and M."""
    runs = [Mirrored(path) for path in project.glob("results/wandb/offline-run-*/*.wandb")]
    named = {re.sub("-[0-9a-f]{6}$", "", each.run["display_name"]): each for each in runs}
    assert len(named) == len(runs)
    return named


@pytest.fixture(autouse=True)
def recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The results of that folder, which is the current one."""
    monkeypatch.chdir(project)
    return load(RESULTS)


def test_only_timed_runs_are_runs_there(logged: dict[str, Mirrored]):
    timed = {"transformer-K1-M4", "transformer-K2-M4", "amoebanet-b-K1-M1"}
    assert logged.keys() == timed | {"tiny, all runs", "report"}


def test_a_measured_run_and_a_training(logged: dict[str, Mirrored]):
    mirrored, trained = logged["transformer-K2-M4"], logged["amoebanet-b-K1-M1"]
    assert mirrored.about["tags"] == ["smoke", "test-cpu-2c"]
    place = {"experiment": "tiny", "machine": "test-cpu-2c", "scale": "smoke"}
    about = {"K": 2, "method": "gpipe"} | place
    assert {name: mirrored.about["config"][name] for name in about} == about
    values = mirrored.about["summary"]
    assert values["time/step_s"] == 0.75
    assert values["speedup/k1"] == pytest.approx(1.25 / 0.75)
    assert "speedup/k2m1_low" not in values, "an unknown number is left out"
    assert values["memory/stage_1_gib"] == 1.0
    for pictured in (mirrored, logged["transformer-K1-M4"]):  # a warning of matplotlib is an error
        assert pictured.file("timeline").stat().st_size > 1000
    assert (mirrored.run["run_group"], mirrored.run["host"]) == ("tiny", "anonymous")
    points = mirrored.history[:2]
    assert [point["idle/over_total"] for point in points] == [0.25, 0.25]
    assert points[0]["time/throughput"] == pytest.approx(8 / 0.75)
    assert points[0]["idle/bubble"] == pytest.approx(1 / 5)
    losses = {point["_step"]: point["train/loss"] for point in trained.history[:3]}
    assert losses == dict(enumerate(LEARN["loss"], start=1))
    assert trained.about["summary"]["test/bleu_toy_alfa"] == 20.0


def test_variables_of_one_run_are_left_out_and_others_hold(logged: dict[str, Mirrored]):
    runs = [each.run for each in logged.values()]
    assert len({run["run_id"] for run in runs}) == len(runs)
    assert {(run["project"], run["entity"]) for run in runs} == {("ours", "a-team")}
    assert {run["run_group"] for run in runs} == {"tiny", "report"}
    assert "theirs" not in json.dumps(runs)


def test_what_is_left_out_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    for name, value in OF_ONE_RUN.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        wandb_mirror.settings()
    line = capsys.readouterr().err
    assert (line.count("\n"), re.findall(r"WANDB_\w+", line)) == (1, sorted(OF_ONE_RUN))
    assert os.environ.items() >= OF_ONE_RUN.items(), "which a user's own code may read"


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    wandb.teardown()
    monkeypatch.setenv("WANDB_HEARTBEAT_SECONDS", "often")
    nothing: Any = None
    for _ in range(2):  # the second time W&B would take the settings that it has read before
        about = {"name": "x", "config": {}}
        assert wandb_mirror.mirror("online", Path("wrong"), nothing, about) is None
    line = capsys.readouterr().err
    assert (line.count("\n"), "heartbeat_seconds" in line, Path("wrong").exists()) == (1, True, 0)


def test_the_mode_of_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    for asked, mode in {"disabled": "disabled", "dryrun": "offline", "run": "online"}.items():
        monkeypatch.setenv("WANDB_MODE", asked)
        assert RunOptions().wandb == mode
    monkeypatch.setenv("WANDB_MODE", "of")
    assert main(["run", "table2"]) == 2
    assert "WANDB_MODE = 'of': allowed are offline" in capsys.readouterr().err


def test_a_number_has_one_name_that_a_narrow_column_shows(logged: dict[str, Mirrored]):
    report = wandb_summary.Report(REFERENCE, EXPERIMENTS)
    names = {*report.tables(), *report.figures()}.union(*(each.names for each in logged.values()))
    assert len({name[:20] for name in names}) == len(names)
    for mirrored in (logged["transformer-K2-M4"], logged["amoebanet-b-K1-M1"]):
        numbers = mirrored.names | {name.partition("/")[2] for name in mirrored.names}
        assert numbers & mirrored.about["config"].keys() == set()


def test_all_runs_are_lines_of_a_table(recorded: Results, logged: dict[str, Mirrored]):
    table = json.loads(logged["tiny, all runs"].file("runs/tiny").read_text())
    assert len(table["data"]) == len(recorded.runs)
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    simulated = [row for row in rows if row["fidelity"] == "simulated"]
    assert {row["idle_over_total"] for row in simulated} == {0.5}
    assert simulated[0]["speedup_vs_k1"] is None
    assert len(logged["tiny, all runs"].all("artifact")) == 2, "the table and the timelines"


def test_the_report_is_tables_pictures_and_a_page(logged: dict[str, Mirrored]):
    report = logged["report"]
    assert report.names == {"report", "tables/tiny_speed", "tables/verdicts", "plots/tiny_bars"}
    table = json.loads(report.file("tables/tiny_speed").read_text())
    assert table["columns"] == ["K", "speedup", "why"]
    assert table["data"] == [[1, 1, None], [2, 1.9, "nan"]]
    assert report.file("report").read_text() == "<html><body>made in ~/x</body></html>"
    assert report.file("plots/tiny_bars").stat().st_size > 1000


def test_nothing_private_is_mirrored_or_written_to_the_home(
    project: Path, logged: dict[str, Mirrored], own_home: Path
):
    private = {HOST, KEY, os.path.expanduser("~"), str(project), getpass.getuser()}  # noqa: PTH111
    sent = [path for path in project.glob("results/wandb/offline-run-*/**/*") if path.is_file()]
    sent = [path for path in sent if path.suffix != ".log"]  # W&B's own, which stay here
    sent += list(project.glob("results/wandb/data/**/tmp*"))
    assert len(sent) > 10
    for path in sent:
        content = path.read_bytes()
        assert [word for word in private - {"root"} if word.encode() in content] == [], path
    assert list(own_home.rglob("*")) == []


@pytest.mark.parametrize("key", [None, "0" * 40])
def test_online_without_a_key_or_a_server_stays_offline_and_says_so_once(
    key: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    start = wandb_mirror._start

    def refuse_online(mode: wandb_mirror.Mode, *rest: Any) -> Any:
        if mode == "online":
            raise OSError("no route to host")
        return start(mode, *rest)

    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
        monkeypatch.setattr(wandb_mirror, "_start", refuse_online)
    out = tmp_path / "out"
    modes: list[wandb_mirror.Mode] = ["disabled", "online", "online"]
    for number, mode in enumerate(modes):
        assert out.exists() == (number > 1)
        nothing: Any = lambda _: None  # noqa: E731
        assert wandb_mirror.mirror(mode, out, nothing, {"name": "x", "config": {}}) is None
    assert len(list(tmp_path.glob("out/wandb/offline-run-*"))) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert ("no route to host" if key else "wandb login") in err


def test_the_dry_dashboard(logged: dict[str, Mirrored], capfd: Any):
    assert main(["dashboard"]) == 0
    text = capfd.readouterr().out
    for words in ("tiny: A tiny sweep", " speedup over K=1 against K", "nothing was sent"):
        assert words in text
    assert main(["dashboard", "--json"]) == 0
    text = capfd.readouterr().out
    made = json.loads(text)["section"]["panelBankConfig"]["sections"]
    names = [section["name"] for section in made]
    assert names == ["What holds", "tiny: A tiny sweep", "Trainings"]
    shown = logged["tiny, all runs"].names | logged["report"].names
    shown |= {"train/loss", "test/accuracy"} & logged["amoebanet-b-K1-M1"].names
    assert [name for name in shown if f'"{name}"' not in text] == [], "each has a panel"
    sent = {name for run in logged.values() for name in run.names}
    named = set(re.findall(r'"((?:tables|figures|runs|train|test)/\w+)"', text))
    assert named <= sent, "no panel is empty"
    assert max(len(section["panels"]) for section in made) <= 4


def test_the_workspace_is_made_where_the_variables_say(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    from wandb_workspaces.workspaces import Workspace

    wandb.teardown()
    for name in ("PROJECT", "ENTITY", "API_KEY"):
        monkeypatch.setenv(f"WANDB_{name}", f"a-{name}")
    monkeypatch.setattr(Workspace, "save", lambda _: None)
    monkeypatch.setattr(Workspace, "url", property(lambda it: f"{it.entity}/{it.project}"))
    assert main(["dashboard", "--push"]) == 0
    assert "workspace: a-ENTITY/a-PROJECT\n" in capsys.readouterr().out
