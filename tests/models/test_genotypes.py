import pytest

from repro.models.genotypes import GENOTYPES, Cell
from repro.models.operations import OPERATIONS

CELLS = [cell for genotype in GENOTYPES.values() for cell in genotype]


def unused(cell: Cell) -> tuple[int, ...]:
    used = {pair.left_state for pair in cell.pairs} | {pair.right_state for pair in cell.pairs}
    return tuple(state for state in range(7) if state not in used)


@pytest.mark.parametrize("cell", CELLS)
def test_five_pairs_of_known_operations_on_earlier_states(cell):
    assert len(cell.pairs) == 5
    for new_state, pair in enumerate(cell.pairs, start=2):
        assert {pair.left, pair.right} <= set(OPERATIONS)
        assert min(pair.left_state, pair.right_state) >= 0
        assert max(pair.left_state, pair.right_state) < new_state


@pytest.mark.parametrize("genotype", GENOTYPES.values())
def test_output_is_what_no_operation_reads_and_in_normal_cells_also_the_input(genotype):
    assert genotype.reduction.concat == unused(genotype.reduction)
    assert genotype.normal.concat == (0, *unused(genotype.normal)) == (0, 3, 4, 6)
