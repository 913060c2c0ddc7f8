"""The rooms of the house: who may import whom, and what stays out of the way until it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Whether or not a Python follows the link repro/experiments, each file is one of them.
FILES = {*(ROOT / "repro").rglob("*.py"), *(ROOT / "repro/experiments").rglob("*.py")}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
        path.read_text("utf-8")
    )
    for path in sorted(FILES)
}
# A room and the rooms that it may import, besides itself.
ALLOWED = {
    "io": set(),
    "gpipe": {"io"},
    "data": {"io"},
    "models": {"io", "gpipe", "data"},
    "paper": {"gpipe"},
    "costs": {"io", "gpipe", "models"},
    "simulate": {"io", "gpipe"},
    "train": {"io", "gpipe", "data", "models"},
    "methods": {"gpipe", "models"},
    "harness": {"io", "gpipe", "models", "data", "costs", "simulate", "methods", "train"},
    "report": {"io", "gpipe", "paper", "costs", "simulate", "harness"},
    "experiments": {*"data train gpipe paper costs simulate methods harness report".split()},
    "cli": {*"io gpipe models data train costs simulate methods harness report".split()},
}
# The most lines of each room: what it has, rounded up to the next hundred. A number falls with its
# room; it grows only with a reason beside it.
LINES = {
    # Executed zero bubble (450), a warning of layers that combine examples (250).
    "gpipe": 9200,
    "harness": 5700,
    "experiments": 4000,
    "cli": 1500,
    "report": 1900,
    "costs": 2000,  # two levels of links, memory in 16 bits, what is kept from I to W
    "methods": 1500,
    "models": 1400,
    "data": 1200,
    "train": 500,
    "io": 600,
    "simulate": 300,
    "paper": 200,
}
MOST_LINES_OF_TESTS = 13920
HEAVY = ["pandas", "timm", "datasets", "wandb", "matplotlib", "scipy"]
READERS = {
    *"about catalog frame machine plan results schema sizes spec statistics text vary".split()
}  # of the harness


def imported(tree: ast.AST) -> set[str]:
    """Modules of ours that a file imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name in MODULES and name.count(".") >= 1}


def room_of(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("module", [name for name in MODULES if name.count(".") >= 2])
def test_rooms_import_only_what_they_may(module):
    others = {room_of(name) for name in imported(MODULES[module])} - {room_of(module)}
    assert others <= ALLOWED[room_of(module)]


def test_no_room_outgrows_its_budget():
    lines = dict.fromkeys(LINES, 0)
    for path in FILES - {*(ROOT / "repro").glob("*.py")}:
        lines[path.relative_to(ROOT).parts[1]] += path.read_text("utf-8").count("\n")
    assert {room: n for room, n in lines.items() if n > LINES[room]} == {}


def test_the_tests_keep_their_budget():
    files = (ROOT / "tests").rglob("*.py")
    assert sum(path.read_text("utf-8").count("\n") for path in files) <= MOST_LINES_OF_TESTS


def test_the_report_runs_nothing():
    for module, tree in MODULES.items():
        if module.startswith(("repro.report", "repro.experiments.")):
            parts = {
                name.split(".")[2] for name in imported(tree) if name.startswith("repro.harness.")
            }
            assert parts <= READERS, module


def test_nothing_that_is_read_can_run_code():
    """pickle is left to what passes between processes of one run."""
    never = {"eval", "exec", "np.load", "numpy.load", "pickle.load", "torch.hub.load"}
    never |= {"pd.read_pickle", "pandas.read_pickle"}
    loads, pickles = [], set()
    for module, tree in MODULES.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            assert name not in never, f"{module}, line {call.lineno}"
            pickles |= {module.removeprefix("repro.")} if name == "pickle.loads" else set()
            if name == "torch.load":
                loads.append(
                    [ast.unparse(k.value) for k in call.keywords if k.arg == "weights_only"]
                )
    assert loads == [["True"]]
    assert pickles == {"gpipe.runtime.launch", "gpipe.comm.control_channel", "gpipe.comm.message"}


def test_no_circles():
    """Imports inside functions and under TYPE_CHECKING count too."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join([*path, name])
        if name not in done:
            # A package only resolves names; what imports `repro.gpipe` stands above it.
            for other in imported(MODULES[name]) - {name, name.rsplit(".", 1)[0]}:
                visit(other, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import repro.harness.tasks.train", ["torchgpipe", "torch.distributed.pipelining"]),
        ("import repro.models, repro.data.images", ["timm", "datasets", "sklearn", "pydantic"]),
        (
            "from repro.cli.main import main; main(['--help'])",
            [*HEAVY, "torch", "tyro", "pydantic", "rich"],
        ),
        ("from repro.cli.main import main; main(['list'])", [*HEAVY, "torch"]),
        (
            "from repro.cli.main import main; main(['plan', 'table2', '--results', 'none'])",
            [*HEAVY, "torch"],
        ),
        ("import repro.simulate.breakdown, repro.methods.named", ["torch"]),
    ],
)
def test_heavy_imports_wait(statement, absent):
    check = f"import sys; {statement}; sys.exit(' '.join(set({absent!r}) & set(sys.modules)) or 0)"
    done = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_experiment_imports_another():
    """What two of them share has a module of its own in experiments/."""
    for module, tree in MODULES.items():
        if module.startswith("repro.experiments."):
            names = {name for name in imported(tree) if name.startswith("repro.experiments.")}
            homes = {name.split(".")[2] for name in names if name.count(".") == 3}
            assert homes <= {module.split(".")[2]}, module
