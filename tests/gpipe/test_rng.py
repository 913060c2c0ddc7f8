"""Random state belongs to (seed, step, micro-batch, layer); test_compare.py has who draws."""

from repro.gpipe.exact import rng


def test_hash_depends_on_every_number_and_is_stable():
    base = rng.hashed(1, 2, 3, 4)
    assert base == rng.hashed(1, 2, 3, 4) < 2**32
    others = ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0))
    assert len({base, *(rng.hashed(*numbers) for numbers in others)}) == 5
