"""Sets up one rank of a pipeline: its links, the cut, its layers and the engine that runs them."""

import logging
from collections.abc import Sequence

import torch
import torch.distributed as dist

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.links import Links
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.engine import Engine
from repro.gpipe.core.layers import Layer, build, refuse_shared, refuse_unfit
from repro.gpipe.core.loss_check import LossCheck
from repro.gpipe.core.ownership import empty_foreign_layers
from repro.gpipe.core.rank_layers import RankLayers
from repro.gpipe.core.replicas import Replicas
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.core.stage import Stage
from repro.gpipe.core.topology import own_device, own_rank
from repro.gpipe.exact import rng, rules
from repro.gpipe.partition.balance import Cut, choose
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.partition.layer_profile import measure
from repro.gpipe.partition.partition import Cost
from repro.gpipe.runtime import health
from repro.gpipe.runtime.status import rank_name, status
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.tree import Tree

_log = logging.getLogger(__name__)


def assemble(
    config: PipelineConfig,
    schedule: Schedule,
    layers: Sequence[Layer],
    names: Sequence[str],
    *,
    device: torch.device | str | None,
    seed: int,
    sample: Tree | None,
    without: Sequence[str],
) -> tuple[Cut, Engine]:
    """The cut of the model, and the engine of this process; every rank calls this.

    `names` are those of all layers.
    """
    rng.check_seed(seed)
    K, M, number = config.stages, config.micro_batches, own_rank(config)
    replica, rank = divmod(number, K)
    device = own_device(device, number)
    kind = "stage" if config.stages_per_rank == 1 else "rank"
    status.who = rank_name(kind, rank, replica, config.replicas)
    all_ranks = ControlChannel(config.processes, number)
    if config.processes > 1:
        health.begin(None, number, dist.get_world_size()).beat()
        balance = "a cost" if callable(config.balance) else config.balance
        alike = {"layers": len(layers), "seed": seed, "without": without, "balance": balance}
        settings = {name: repr(value) for name, value in (config.arguments | alike).items()}
        all_ranks.gather_alike("Pipeline", None, settings)
    channel = ControlChannel(K, rank, replica)
    ring = config.stages_per_rank > 1
    links = Links(channel, device, config.transport, config.throttle, ring=ring)

    def by_time() -> Cost:
        """Equal on all ranks: by the first rank's times of layers, and the slowest link."""
        profile = None
        if number == 0:
            if sample is None:
                raise ValueError("balance='time': needs sample=, the inputs of one micro-batch")
            profile = measure(layers, sample, device, seed=seed)
        profiles, speeds = zip(*all_ranks.all_gather((profile, links.speed())), strict=True)
        slowest = max(speeds, key=lambda link: link.seconds(2**20))
        return profiles[0].cost(slowest, recompute=config.recompute != "never")

    cut = choose(layers, config, by_time)
    if number == 0:
        _log.info("%s", cut)
    refuse_shared(layers, cut.counts)

    own = {j: stage_layers(cut.counts)[j] for j in range(rank, config.total_stages, K)}
    modules = {n: build(layers[n], n, seed, device) for ns in own.values() for n in ns}
    for n, module in modules.items():
        refuse_unfit(module, n, K)
    held = RankLayers(own, modules, [names[n] for n in modules])
    replicas = None
    if config.replicas > 1:
        replicas = Replicas(range(rank, config.processes, K), device)
        replicas.start_equal(held.module, all_ranks)
    foreign = empty_foreign_layers(layers, cut.counts, held.module)
    held.foreign = foreign.copy()
    if channel.is_last:  # the loss follows the last stage, also where this rank has others
        foreign.update(held.module[: -cut.counts[-1]].modules())

    gather = None if replicas is None else replicas.gather
    runner = LayerRunner(device, seed, replica * M)
    guards = rules.guards(without, held, runner, gather)
    whole = M == config.replicas == 1
    stages = {j: Stage(j, held, runner, guards, whole=whole) for j in own}
    check = None if rules.LOSS_CHECK in without else LossCheck(runner)
    return cut, Engine(
        held, stages, runner, guards, links, schedule, replicas, all_ranks, check, foreign
    )
