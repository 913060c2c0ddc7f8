"""Sets up one rank of a pipeline: its links, the cut, its layers and the engine that runs them."""

import logging
from collections.abc import Sequence

import torch

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.links import Links
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.engine import Engine
from repro.gpipe.core.layers import Layer, build, refuse_shared, refuse_unfit
from repro.gpipe.core.ownership import empty_foreign_layers
from repro.gpipe.core.rank_layers import RankLayers
from repro.gpipe.core.replicas import Replicas, start_equal
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.core.stage import Stage
from repro.gpipe.core.topology import Place, take_place
from repro.gpipe.exact import rng, rules
from repro.gpipe.partition.balance import Cut, choose
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.partition.layer_profile import measure
from repro.gpipe.partition.partition import Cost
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
    guards: str | Sequence[str],
    allow_nonfinite: bool,
    check_loss: bool,
    check_layers: bool,
) -> tuple[Place, Cut, Engine]:
    """The place of this process, the cut of the model, and the engine; every rank calls this.

    `names` are those of all layers.
    """
    rng.check_seed(seed)
    alike = {"layers": len(layers), "seed": seed, "guards": guards}
    place = take_place(config, device, alike | {"allow_nonfinite": allow_nonfinite})
    K, M = config.stages, config.micro_batches
    all_ranks = ControlChannel(config.processes, place.number)
    channel = ControlChannel(K, place.rank, place.replica)
    ring = config.stages_per_rank > 1
    links = Links(channel, place.device, config.transport, config.throttle, ring=ring)

    def by_time() -> Cost:
        """Equal on all ranks: by the first rank's times of layers, and the slowest link."""
        profile = None
        if place.number == 0:
            if sample is None:
                raise ValueError("balance='time': needs sample=, the inputs of one micro-batch")
            profile = measure(layers, sample, place.device, seed=seed)
        profiles, speeds = zip(*all_ranks.all_gather((profile, links.speed())), strict=True)
        slowest = max(speeds, key=lambda link: link.seconds(2**20))
        return profiles[0].cost(slowest, recompute=config.checkpoint != "never")

    cut = choose(layers, config, by_time)
    if place.number == 0:
        _log.info("%s", cut)
    refuse_shared(layers, cut.counts)

    own = {j: stage_layers(cut.counts)[j] for j in range(place.rank, config.total_stages, K)}
    modules = {n: build(layers[n], n, seed, place.device) for ns in own.values() for n in ns}
    for n, module in modules.items():
        refuse_unfit(module, n, K)
    replicas = None
    if config.replicas > 1:
        members = range(place.rank, config.processes, K)
        start_equal(modules.values(), members, all_ranks)
        replicas = Replicas(members, place.device)
    rank = RankLayers(own, modules, [names[n] for n in modules])
    foreign = empty_foreign_layers(layers, cut.counts, rank.module)
    rank.foreign = foreign.copy()
    if channel.is_last:  # the loss follows the last stage, also where this rank has others
        foreign.update(rank.module[: -cut.counts[-1]].modules())

    gather = None if replicas is None else replicas.gather
    runner = LayerRunner(place.device, seed, place.replica * M)
    on = {"NonFinite": not allow_nonfinite, "CoupledExamples": check_layers}
    chosen = rules.guards(guards, rank, runner, gather, on=on)
    whole = M == config.replicas == 1
    engine = Engine(
        rank,
        {j: Stage(j, rank, runner, chosen, whole=whole) for j in own},
        runner,
        chosen,
        links,
        schedule,
        replicas,
        all_ranks,
        check_loss=check_loss,
        foreign=foreign,
    )
    return place, cut, engine
