"""What a whole experiment and the report look like in W&B, and the dashboard that shows them."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, experiment, measure, metrics, spec
from mirrored import Mirrored, mirrored
from PIL import Image

from repro.cli.main import main
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.harness import wandb_mirror, wandb_summary
from repro.harness.job import Job, Measured, Outcome
from repro.harness.results import Results, load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec, Training
from repro.harness.wandb_dashboard import metrics_of, sections

pytestmark = [
    pytest.mark.usefixtures("own_home"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

REPORT = wandb_summary.Report(Path("plots"), ("tiny",))
HOST = "heartofgold-7"
TIMED = {"L": 2, "forward_s": 0.01}
LEARN: dict[str, Any] = {
    "task": "learn",
    "loss": [3.0, 2.0, 1.0],
    "metrics": {"accuracy": 0.5, "bleu toy:alfa": 20.0},
    "parameters": 10,
    "seconds": 1.0,
    "examples": 24,
    "digest": "0" * 64,
    "balance": [2],
    "setup_s": 0.1,
    "unit": "examples/s",
    "labels": {},
}


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
    """Two models; of one N differs too, so that K and M do not name its lines."""
    measured = [spec(K, M) for K in (1, 2) for M in (1, 4)]
    simulated = [
        RunSpec(
            model="timed",
            model_args=TIMED | {"L": K * width},
            K=K,
            M=M,
            N=M,
            fidelity="simulated",
            balance="uniform",
        )
        for K in (2, 4)
        for M in (1, 4)
        for width in (1, 2)
    ]
    training = Training(data=("digits",), recipe={"optimizer": "sgd", "lr": 0.01})
    learnt = RunSpec(
        model="amoebanet-b",
        model_args={"L": 3, "D": 8, "image": 16, "num_classes": 5},
        K=1,
        M=1,
        N=8,
        task="learn",
        trace=False,
        training=training,
    )
    return experiment(*measured, *simulated, learnt, rounds=1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user: results, and a report with one table, one picture and three claims."""
    project = tmp_path_factory.mktemp("project")
    assert measure(project / "results", Teacher(), plan_of()) == 0
    plots = project / "plots"
    plots.mkdir()
    home = os.path.expanduser("~")  # noqa: PTH111
    (plots / "report.html").write_text(f"<html><body>made in {home}/x</body></html>")
    (plots / "tiny_speed.csv").write_text("K,speedup,why\n1,1.0,\n2,1.9,nan\n")
    (plots / "tiny_points.csv").write_text("run\na\n")
    (plots / "claims.csv").write_text("id,verdict\na,reproduced\nb,not tested here\nc,reproduced\n")
    # What is not of the report stays here.
    (plots / "salaries.csv").write_text("name,salary\nme,1\n")
    for name in ("tiny_bars", "me"):
        Image.effect_noise((64, 64), 50).save(plots / f"{name}.png")
    return project


@pytest.fixture(autouse=True)
def recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """The results of that folder, which is the current one."""
    monkeypatch.chdir(project)
    return load(Path("results"))


def log_all(recorded: Results, directory: Path) -> None:
    (place,) = wandb_summary.places(recorded)
    for run in recorded.runs:
        if run.fidelity == "measured" and run.done:
            rounds = [each.record for each in run.rounds]
            row = recorded.row(run)
            wandb_mirror.log_run(
                "offline", "tiny", run.id, run.spec.plain(), row, rounds, None, directory
            )
    wandb_summary.log_experiment("offline", recorded, place, directory, ("Table 2", ""))
    wandb_summary.log_report("offline", Path("plots"), ["tiny"], directory)


@pytest.fixture(scope="module")
def logged(project: Path) -> dict[str, Mirrored]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project)
        log_all(load(Path("results")), Path("results"))
    return mirrored(project / "results")


def test_simulated_runs_are_lines_of_a_table(recorded: Results, logged: dict[str, Mirrored]):
    kinds = [name.partition(":")[0] for name in logged]
    assert sorted(set(kinds)) == ["all runs", "measured", "report"]
    table = json.loads(logged["all runs: tiny, all runs"].file("runs/tiny").read_text())
    assert len(table["data"]) == len(recorded.runs)
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    simulated = [row for row in rows if row["fidelity"] == "simulated"]
    assert len(simulated) == 8
    assert {row["bubble_idle_over_total"] for row in simulated} == {0.5}
    assert simulated[0]["speedup_vs_k1"] is None


def test_the_report_is_tables_pictures_a_page_and_counts(logged: dict[str, Mirrored]):
    report = logged["report: report"]
    shown = {name for name in report.names if not name.startswith("_")}
    assert shown == {
        "report",
        "tables/tiny_speed",
        "tables/claims",
        "figures/tiny_bars",
        "claims/reproduced",
        "claims/not_tested_here",
    }
    assert report.summary["claims/reproduced"] == 2
    table = json.loads(report.file("tables/tiny_speed").read_text())
    assert table["columns"] == ["K", "speedup", "why"]
    assert table["data"] == [[1, 1, None], [2, 1.9, "nan"]]
    assert report.summary["report"]["_type"] == "html-file"
    assert report.file("report").read_text() == "<html><body>made in ~/x</body></html>"
    assert report.file("figures/tiny_bars").stat().st_size > 1000


def test_the_dashboard_shows_what_is_mirrored(recorded: Results, logged: dict[str, Mirrored]):
    wanted = metrics_of(sections(recorded, REPORT))
    names = {name for run in logged.values() for name in run.names}
    assert wanted <= names
    of_experiments = {
        name
        for kind in ("all runs: tiny, all runs", "report: report")
        for name in logged[kind].names
    }
    assert {name for name in of_experiments if not name.startswith("_")} <= wanted


def test_nothing_private_is_mirrored(
    recorded: Results, own_home: Path, monkeypatch: pytest.MonkeyPatch
):
    key = "zq7" * 14
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    secret = f"{key} on {HOST} in {own_home}"
    Path("plots/tiny_secret.csv").write_text(f"why\n{secret}\n")
    mirror = Path("elsewhere")
    log_all(recorded, mirror)
    private = (HOST, key, str(own_home), str(Path.cwd()))
    sent = [path for path in mirror.glob("wandb/offline-run-*/**/*") if path.is_file()]
    sent = [path for path in sent if path.suffix != ".log"]  # W&B's own, which stay here
    sent += list(mirror.glob("wandb/data/**/tmp*"))
    assert len(sent) > 10
    for path in sent:
        assert [word for word in private if word.encode() in path.read_bytes()] == [], path
    Path("plots/tiny_secret.csv").unlink()


def test_only_timed_runs_are_w_and_b_runs_and_an_experiment_ends_with_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []
    monkeypatch.setattr(
        wandb_mirror, "log_run", lambda _mode, _name, id_, *_: calls.append(id_.split("-K")[0])
    )
    monkeypatch.setattr(
        wandb_summary, "log_experiment", lambda _mode, _results, place, *_: calls.append(place[2])
    )
    offline = {"wandb": "offline"}
    assert measure(tmp_path, Teacher(), plan_of(), session=offline) == 0
    assert calls == ["transformer"] * 4 + ["amoebanet-b", "tiny"]
    assert measure(tmp_path, Teacher(), plan_of(), session=offline) == 0
    assert len(calls) == 6, "nothing was measured, so nothing is mirrored again"


def test_the_dry_dashboard(recorded: Results, capfd: pytest.CaptureFixture[str]):
    assert main(["dashboard"]) == 0
    text = capfd.readouterr().out
    assert "What holds" in text
    assert "tiny: A tiny sweep" in text
    assert "chart      speedup over K=1 against K" in text
    assert "nothing was sent" in text
    assert main(["dashboard", "--json"]) == 0
    spec = json.loads(capfd.readouterr().out)
    made = spec["section"]["panelBankConfig"]["sections"]
    shown = sections(recorded, REPORT)
    assert [section["name"] for section in made] == [section.title for section in shown]
    for section, ours in zip(made, shown, strict=True):
        text = json.dumps(section)
        for panel in ours.panels:
            wanted = (*panel.metrics, *panel.columns)
            assert all(f'"{name}"' in text for name in wanted), panel


def test_a_refused_push_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    workspaces = pytest.importorskip("wandb_workspaces.workspaces")

    def refuse(_: Any) -> None:
        raise RuntimeError("project nobody/nothing\nnot found")

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(workspaces.Workspace, "save", refuse)
    assert main(["dashboard", "--push", "--entity", "nobody", "--project", "nothing"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "--entity nobody --project nothing: project nobody/nothing" in line
