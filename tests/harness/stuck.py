"""A probe that never answers on the last stage; at module level so that stage processes can import
it."""

import time

import torch.distributed as dist


def sleep(stages: int) -> str:
    if dist.get_rank() == stages - 1:
        time.sleep(600)
    return "awake"
