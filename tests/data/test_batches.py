import pytest

from repro.data.batches import Batches, Order


def read(tables, examples, epochs):
    return list(zip(tables.tolist(), examples.tolist(), strict=True)), epochs.tolist()


def table(N=6, seed=3, replica=0, replicas=1, count=10):
    return Batches([count], read, N, seed, {}, replica, replicas)


def mixture(N=6, seed=3, replica=0, replicas=1):
    return Batches([20, 3], read, N, seed, {}, replica, replicas, [0.8, 0.2])


@pytest.mark.parametrize("make", [table, mixture])
def test_seed_fixes_the_order_and_replicas_share_a_batch(make):
    first, same, other = ([b.next() for _ in range(4)] for b in (make(), make(), make(seed=4)))
    assert first == same
    assert first != other
    parts = [make(replica=r, replicas=3) for r in range(3)]
    assert [[x for part in parts for x in part.next()[0]] for _ in range(4)] == [
        examples for examples, _ in first
    ]


def test_every_epoch_has_every_example_in_a_new_order():
    examples, epochs = Order(10, seed=0).take(0, 30)
    assert epochs.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    orders = {tuple(epoch) for epoch in examples.reshape(3, 10).tolist()}
    assert all(sorted(epoch) == list(range(10)) for epoch in orders)
    assert len(orders) == 3


def test_a_mixture_draws_by_probability_and_reads_each_table_in_turn():
    batches = mixture()
    drawn = [pair for _ in range(200) for pair in batches.next()[0]]
    share = sum(table == 1 for table, _ in drawn) / len(drawn)
    assert 0.16 < share < 0.24
    second = [example for table, example in drawn if table == 1]
    assert sorted(second[:3]) == sorted(second[3:6]) == [0, 1, 2]
