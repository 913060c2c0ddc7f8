"""The wheel: in an environment with what it declares and nothing else, the library trains, and with
the extra `experiments` the commands find their experiments and files."""

import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from test_readme import programs

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "results/reference"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def needed(dist: Distribution, extras: set[str], found: dict[str, Distribution]) -> None:
    """Add what a distribution with these extras requires, and what that requires, to `found`."""
    for requirement in map(Requirement, dist.requires or []):
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in {"", *extras}
        )
        key = f"{requirement.name.lower()} {sorted(requirement.extras)}"
        if applies and key not in found:
            found[key] = distribution(requirement.name)
            needed(found[key], requirement.extras, found)


def installed(wheel: Path, folder: Path, *extras: str) -> Path:
    """The programs of a new environment with the wheel and links to what it requires."""
    venv.create(folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", folder / "bin/python"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel], check=True)
    (metadata,) = site.glob("gpipe_repro-*.dist-info")
    found: dict[str, Distribution] = {}
    needed(Distribution.at(metadata), {*extras}, found)
    for dist in found.values():
        for top in {file.parts[0] for file in dist.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(dist.locate_file(top))))
    return folder / "bin"


def output(*command: object, folder: Path, status: int = 0) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([*map(str, command)], cwd=folder, env=environment, **both)
    assert done.returncode == status, done.stdout
    return done.stdout


@pytest.mark.slow
def test_the_library_installs_with_torch_and_numpy_alone(wheel: Path, tmp_path: Path):
    commands = installed(wheel, tmp_path / "environment")
    (site,) = commands.parent.glob("lib/python3*/site-packages")
    assert (site / "repro/py.typed").exists()
    tops = {name.partition("/")[0] for name in ZipFile(wheel).namelist()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"repro"}
    assert not (site / "pydantic").exists(), "nothing but what the library declares"

    (program,) = programs("README.md")
    (tmp_path / "example.py").write_text(program, encoding="utf-8")
    printed = output(commands / "python", "example.py", folder=tmp_path)
    assert re.search(r"loss \d\.\d+, idle \d+%", printed)
    every_name = "import repro.gpipe; assert {'Pipeline', 'launch'} <= {*dir(repro.gpipe)}\n"
    every_name += "from repro.gpipe import *; print(repro.__version__)"
    version = output(commands / "python", "-c", every_name, folder=tmp_path).strip()
    assert f"-{version}-" in wheel.name

    said = output(commands / "repro", "list", folder=tmp_path, status=2)
    assert re.fullmatch(r"error: .*`pip install 'gpipe-repro\[experiments\]'`\n", said)


@pytest.mark.slow
def test_with_the_extra_the_commands_have_experiments_and_files(wheel: Path, tmp_path: Path):
    commands = installed(wheel, tmp_path / "environment", "experiments")
    listed = output(commands / "repro", "list", folder=tmp_path)
    for runs in ROOT.glob("experiments/*/runs.py"):
        assert re.search(rf"(?m)^ *{runs.parent.name} ", listed)

    for place in (*REFERENCE.glob("*/laptop/costs"), *REFERENCE.glob("*/laptop/advise")):
        shutil.copytree(place, tmp_path / "results" / place.relative_to(REFERENCE))
    output(commands / "repro", "report", folder=tmp_path)
    made = (tmp_path / "plots/costs.csv").read_text(encoding="utf-8")
    assert made == (ROOT / "plots/reference/costs.csv").read_text(encoding="utf-8")
