"""W&B is read back through `wandb leet inspect`, the supported reader of offline files."""

import getpass
import json
import math
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mirrored import inspect, only_file
from PIL import Image

from repro.gpipe.schedule.timeline import Span, Timeline
from repro.harness import wandb_mirror
from repro.harness.schema import round_record

pytestmark = pytest.mark.usefixtures("own_home")

SPEC: dict[str, Any] = {
    "model": "transformer",
    "model_args": {"L": 4},
    "K": 2,
    "M": 4,
    "N": 16,
    "D": 1,
    "schedule": "gpipe",
    "checkpoint": "always",
    "fidelity": "measured",
}
ROW: dict[str, Any] = {
    "run": "transformer-K2-M4-abc123",
    "step_s": 0.5,
    "speedup_vs_k1": 1.6,
    "speedup_vs_k2m1": math.nan,
    "peak_gib_per_stage": [0.5, 0.25],
}
ROUND: dict[str, Any] = {
    "step_s": [0.4, 0.5, 9.0],
    "loss": [2.0, 1.5],
    "bubble_idle_over_total": [0.25, 0.26, 0.3],
    "bubble_idle_over_work": [0.3, 0.35, 0.4],
    "breakdown": {"computation": 0.7, "bubble": 0.3},
    "peak_bytes": [2**29, 2**28],
    "balance": [2, 2],
    "setup_s": 0.1,
    "unit": "sequences/s",
    "labels": {},
}
ROUNDS = [round_record({**ROUND, "round": f"r{number}"}) for number in range(2)]
TIMELINE = Timeline(
    (Span("F", 0, 0, 0.0, 1.0), Span("F", 1, 0, 1.0, 2.0), Span("B", 1, 0, 2.0, 4.0)), stages=2
)


def log(mode: wandb_mirror.Mode, directory: Path) -> str | None:
    tags = ("Table 2",)
    return wandb_mirror.log_run(
        mode, "table2", ROW["run"], SPEC, ROW, ROUNDS, TIMELINE, directory, tags, picture
    )


def picture(timeline: Timeline, title: str, fidelity: str) -> Image.Image:
    assert (timeline, title, fidelity) == (TIMELINE, ROW["run"], "measured")
    return Image.effect_noise((64, 64), 50)


@pytest.fixture
def logged(tmp_path: Path) -> Path:
    assert log("offline", tmp_path / "out") is None
    return only_file(tmp_path / "out")


def test_offline_run_is_read_back(logged: Path) -> None:
    summary = json.loads(inspect(logged, "--summary"))
    assert summary["project"] == wandb_mirror.PROJECT
    assert summary["name"] == ROW["run"]
    assert summary["state"] == "finished"
    assert summary["tags"] == ["Table 2"]
    assert summary["config"] == SPEC
    values = summary["summary"]
    assert values["step_s"] == 0.5
    assert values["speedup/vs_k1"] == 1.6
    assert "speedup_vs_k2m1" not in values, "an unknown number is left out, not shown as NaN"
    assert values["memory/stage_1_gib"] == 0.25
    assert values["timeline"]["_type"] == "image-file"
    assert (logged.parent / "files" / values["timeline"]["path"]).stat().st_size > 1000


def test_history_has_one_point_per_round_and_the_group_is_the_experiment(logged: Path) -> None:
    records = [json.loads(line) for line in inspect(logged).splitlines()]
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    assert (run["run_group"], run["job_type"], run["host"]) == ("table2", "measured", "anonymous")
    points = [record["history"]["item"] for record in records if record["type"] == "history"]
    assert [point["bubble/idle_over_total"] for point in points[:2]] == [0.26, 0.26]
    assert [point["time/throughput"] for point in points[:2]] == [32.0, 32.0]
    assert points[0]["bubble/theory"] == pytest.approx(1 / 5)
    metrics = [record["metric"] for record in records if record["type"] == "metric"]
    assert {"bubble/*", "memory/*"} <= {metric.get("glob_name") for metric in metrics}


def test_nothing_private_is_recorded_and_nothing_is_written_to_the_home(
    logged: Path, own_home: Path
) -> None:
    content = logged.read_bytes()
    private = {socket.gethostname(), str(own_home), str(Path.cwd()), getpass.getuser()} - {
        "root",
        "localhost",
    }
    assert [word for word in private if word.encode() in content] == []
    assert {path.suffix for path in (logged.parent / "files").rglob("*") if path.is_file()} == {
        ".png"
    }
    assert list(own_home.rglob("*")) == []


def test_online_without_a_key_stays_offline_and_says_so_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert log("online", tmp_path / "out") is None
    assert log("online", tmp_path / "out") is None
    assert len(list(tmp_path.glob("out/wandb/offline-run-*"))) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "wandb login" in err


def test_an_unreachable_server_is_one_line_and_the_run_is_kept_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb_mirror, "_start", _refusing_online(wandb_mirror._start))
    assert log("online", tmp_path / "out") is None
    assert log("online", tmp_path / "out") is None
    assert len(list(tmp_path.glob("out/wandb/offline-run-*"))) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "no route to host" in err


def _refusing_online(start: Any) -> Any:
    def fake(mode: str, *rest: Any) -> Any:
        if mode == "online":
            raise OSError("no route to host")
        return start(mode, *rest)

    return fake


def test_disabled_imports_and_writes_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from repro.harness import "
        "wandb_mirror\nwandb_mirror.log_run('disabled', 'e', 'r', {}, {}, [], None, "
        f"Path({str(tmp_path / 'out')!r}))\nassert not {{'wandb', 'torch', 'matplotlib'}} & "
        "set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not (tmp_path / "out").exists()


CLOUD, OWN = "https://api.forge.coreweave.com", "https://wandb.example.org/"


@pytest.mark.parametrize(
    ("server", "environ", "netrc", "expected"),
    [
        (CLOUD, {}, "", False),
        (CLOUD, {"WANDB_API_KEY": "x"}, "", True),
        (CLOUD, {}, "machine api.forge.coreweave.com login user password x\n", True),
        (CLOUD, {}, "machine api.wandb.ai login user password x\n", True),
        (CLOUD, {}, "machine example.org login user password x\n", False),
        (OWN, {}, "machine api.wandb.ai login user password x\n", False),
        (OWN, {}, "machine wandb.example.org login user password x\n", True),
        (CLOUD, {}, "not a netrc file", False),
    ],
)
def test_has_key(
    server: str, environ: dict[str, str], netrc: str, expected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "netrc"
    path.write_text(netrc)
    assert wandb_mirror.has_key(server, environ | {"NETRC": str(path)}) is expected
