"""What planners of trees share, one tree for each chunk: the way back up, and all links turned round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fusionctl.plan.schedule import Schedule, Send, Step, concatenate
from fusionctl.plan.topology import Topology, fully_connected


def mirrored(name: str, allgather: Schedule) -> Schedule:
    """The reduce-scatter that is an all-gather backwards: last step first, each send from its receiver to its sender.

    Where a chunk was spread from its owner along a tree, the contributions to it are reduced up the same tree, over the
    same links in the opposite direction.
    """
    steps = tuple(
        Step(Send(chunk, dst, src, True, channel, via[::-1]) for chunk, src, dst, _, channel, via in step.sends)
        for step in reversed(allgather.steps)
    )
    return Schedule(name, "reduce_scatter", allgather.size, allgather.n_chunks, steps)


def both(name: str, topology: Topology, allgather: Callable[[Topology], Schedule]) -> Schedule:
    """The all-reduce of a mirrored all-gather and an all-gather; planned once if all links lead both ways alike."""
    down = allgather(topology)
    other = transposed(topology)
    up = down if other is topology else allgather(other)
    return concatenate(name, mirrored(f"mirrored {up.name}", up), down)


def transposed(topology: Topology) -> Topology:
    """The topology with all links turned round; the same one, with its order of links, if that changes nothing."""
    links = {(dst, src): link for (src, dst), link in topology.links.items()}
    if links == topology.links:
        return topology
    return replace(topology, links=links)


def network(topology: Topology | int) -> Topology:
    """The topology, or that many ranks fully connected where only a number is given."""
    return topology if isinstance(topology, Topology) else fully_connected(topology)
