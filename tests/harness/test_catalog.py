from pathlib import Path

from repro.harness import catalog
from repro.harness.spec import SIZES_AT

MINE = '''
from repro.harness.spec import Experiment, Group, RunSpec

def experiment(scale="laptop", width: int = 3):
    """Mine.

    Args:
        width: how wide.
    """
    run = RunSpec(model="timed", model_args={"L": width}, K=1, M=1, N=1)
    return Experiment(name="mine", title="", question="", groups=(Group(name="g", runs=(run,)),))
'''


def test_a_scale_that_an_experiment_has_not_borrows_the_sizes_of_another():
    """Table 1 once had lost its own: what it has at scale node would have run on the GPU."""
    for name in catalog.names():
        source = catalog.find(name)
        for scale, other in SIZES_AT.items():
            own, borrowed = source.build(scale), source.build(other)
            assert (own.groups != borrowed.groups) == (scale in own.minutes), (name, scale)


def test_a_file_of_ones_own_is_an_experiment_with_its_parameters_as_flags(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    source = catalog.find(str(path))
    assert [(name, default) for name, _, default in source.flags()] == [("width", 3)]
    assert source.given({"width": 5}).build("laptop").groups[0].runs[0].model_args == {"L": 5}
