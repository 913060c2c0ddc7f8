"""Links between devices in nodes: neighbours of a pipeline, and sums over replicas."""

from dataclasses import dataclass

from repro.gpipe.partition.layer_costs import LinkSpeed


@dataclass(frozen=True)
class Links:
    """The links within a node and between nodes, which are full of devices in order of their rank.

    The ranks of a group are `stride` apart: a pipeline has stride 1, replicas of K stages stride K.
    """

    within: LinkSpeed
    between: LinkSpeed | None = None  # one device's share, while all devices of a node send
    node: int = 0  # devices of a node; 0 where there is one node

    def of_group(self, devices: int, stride: int = 1) -> LinkSpeed:
        """Between two neighbours of a group: the slower link, if the group spans nodes."""
        spans = self.between is not None and devices * stride > self.node
        return self.between if spans and self.between else self.within

    def all_reduce_seconds(self, size: int, devices: int, stride: int = 1) -> float:
        """Seconds to sum `size` bytes over a group. Nothing else uses the links meanwhile.

        In each node a ring leaves each device a part of the node's sum, and later gives it the
        parts of the others. Between these, each part is summed over nodes in a ring of its own.
        """
        if self.between is None:
            return _ring(size, devices, self.within)
        inside = min(devices, max(1, self.node // stride))
        outside = -(-devices // inside)
        return _ring(size, inside, self.within) + _ring(size / inside, outside, self.between)


def _ring(size: float, devices: int, link: LinkSpeed) -> float:
    """Each device sends 2 (n-1) messages, and 2 (n-1) / n of the bytes."""
    messages = 2 * (devices - 1)
    return messages * (link.latency + size / devices / link.bytes_per_second)
