"""Random state belongs to (seed, step, micro-batch, layer); the user's stays as it was."""

from examples import Drawing, Sometimes, batch
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.exact import rng

MSE = nn.functional.mse_loss


def test_hash_depends_on_every_number_and_is_stable():
    base = rng.hashed(1, 2, 3, 4)
    assert base == rng.hashed(1, 2, 3, 4) < 2**32
    changed = {
        rng.hashed(0, 2, 3, 4),
        rng.hashed(1, 0, 3, 4),
        rng.hashed(1, 2, 0, 4),
        rng.hashed(1, 2, 3, 0),
    }
    assert len({base, *changed}) == 5


def test_other_generators_are_seeded_where_they_are_drawn_from(monkeypatch):
    """Seeding them is slow: it is done while a stage is watched, then where a layer draws."""
    calls = []
    sources = {
        name: rng.Source(
            lambda seed, n=name, s=source: (calls.append(n), s.seed(seed)),
            source.state,
            source.restore,
        )
        for name, source in rng.other_sources().items()
    }
    monkeypatch.setattr(rng, "other_sources", lambda: sources)
    for layers, drawn in (([Drawing(), nn.Linear(6, 6)], True), ([nn.Linear(6, 6)], False)):
        pipe = Pipeline(layers, 1, 2, device="cpu", checkpoint="never")
        pipe.train_step(*batch(), MSE)
        calls.clear()
        pipe.train_step(*batch(), MSE)
        assert bool(calls) == drawn


def test_what_a_layer_declares():
    assert rng.declared(nn.Sequential(nn.Linear(1, 1), nn.Sequential(Sometimes()))) == {
        "python",
        "numpy",
    }
    assert rng.declared(Drawing()) == set()
