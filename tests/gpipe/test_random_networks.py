"""Random small networks that change from step to step train as in plain PyTorch.

`REPRO_NETWORKS=5000` trains more of them than the gate does.
"""

import os

import pytest
import torch
from compare import as_plain, launch_all, plain, reference, same_bits
from random_networks import case

CASES = int(os.environ.get("REPRO_NETWORKS", "200"))
FIRST = int(os.environ.get("REPRO_FIRST_NETWORK", "0"))


PART = 40  # networks of one launch


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, PART))
def test_random_networks_train_as_in_plain_pytorch(first: int):
    numbers = range(first, min(first + PART, FIRST + CASES))
    configs = [(number, case(number)[1]) for number in numbers]
    trained = launch_all([(n, c) for n, config in configs for c in (config, reference(config))])
    wrong = []
    for number, config in configs:
        double = case(number)[2] == torch.float64
        found = trained[number, config]
        try:
            rtol, atol = (1e-7, 1e-9) if double else (2e-3, 2e-5)
            as_plain(found, plain(number, config), rtol=rtol, atol=atol)
            same_bits(found, trained[number, reference(config)])
        except AssertionError as error:
            wrong.append(f"{number}, {config}\n    {' '.join(str(error).split())[:300]}")
    assert not wrong, f"{len(wrong)} of {len(numbers)}:\n" + "\n".join(wrong[:20])
