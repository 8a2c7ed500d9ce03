"""WRHT: a tree of groups around a ring of fibres, whose wavelengths are used again in every group of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fusionctl.errors import UsageError
from fusionctl.plan.lightpaths import Arc, Policy, all_to_all, all_to_all_wavelengths, assign, first_fit
from fusionctl.plan.optics import InsertionLoss, OpticalMachine
from fusionctl.plan.schedule import Schedule, Send, Step
from fusionctl.plan.topology import Topology, size_of


def wrht(
    topology: Topology | int,
    group: int | None = None,
    wavelengths: int | None = None,
    policy: Policy = first_fit,
    all_to_all_first: bool = False,
    loss: InsertionLoss | None = None,
) -> Schedule:
    """All-reduce in about 2 log_m N steps on a WDM ring (Dai et al., ICPP 2023, section 3; m is `group`).

    In each step, groups of m consecutive ranks send their whole vectors to the rank in the middle, on lightpaths that
    are nested, so that floor(m / 2) wavelengths each way are enough; then the middle ranks do the same.  As soon as
    those left can reach each other at once, they exchange all to all, which is the last step of reducing.  The result
    goes back the same way.

    The ranks are on the ring in order; `channel` is the wavelength and `via` are the ranks passed by.  There are as
    many wavelengths as the links have channels, 64 for a number of ranks, or as `wavelengths` says.  m is as large as
    they allow, 2w + 1, or as `loss` allows, whose hops are members of a group: ranks in between that are not in it are
    taken to let the light pass without loss.  With `all_to_all_first`, ranks that are few enough need no groups, but
    one step.  UsageError if the topology is no ring or m needs more wavelengths.

    Four ranks and one wavelength:

    >>> print(wrht(4, wavelengths=1))
    wrht(4,m=3,w=1): allreduce, 4 ranks, 1 chunks, 3 steps
    0: +0 0->1, +0 2->1
    1: +0 1->2->3, +0 3->0->1
    2: =0 1->0, =0 1->2
    """
    size, count = size_of(topology), wavelengths_of(topology, wavelengths)
    most = group_of(count, group, loss)
    levels: list[Level] = []
    ranks = list(range(size))
    while len(ranks) > 1:
        if (levels or all_to_all_first) and all_to_all_wavelengths(len(ranks)) <= count:
            levels.append(Level.exchange(ranks))
            break
        levels.append(Level.gather(size, ranks, most, count, policy))
        ranks = middles(ranks, most)
    return Schedule(f"wrht({size},m={most},w={count})", "allreduce", size, 1, tuple(steps_of(size, levels, 1)))


def wrht_steps(size: int, wavelengths: int, group: int | None = None, all_to_all_first: bool = False) -> int:
    """How many steps `wrht` takes, without making them."""
    most, levels, left = group_of(wavelengths, group), 0, size
    while left > 1:
        if (levels or all_to_all_first) and all_to_all_wavelengths(left) <= wavelengths:
            return 2 * levels + 1
        left = -(-left // most)
        levels += 1
    return 2 * levels


class Level(NamedTuple):
    """What ranks send at once on the way up: arcs with their wavelengths, each of which stands for `stripes` of them.

    The broadcast does the same backwards, unless all of them `exchange`, after which each has the result.
    """

    paths: list[tuple[Arc, int]]
    exchanges: bool
    stripes: int = 1

    @staticmethod
    def gather(size: int, ranks: list[int], group: int, wavelengths: int, policy: Policy, stripes: int = 1) -> Level:
        """Groups of consecutive ranks send to the one in their middle."""
        arcs = [
            Arc(rank, members[len(members) // 2], rank < members[len(members) // 2])
            for members in groups(ranks, group)
            for rank in members
            if rank != members[len(members) // 2]
        ]
        return Level(list(zip(arcs, assign(arcs, size, wavelengths, policy), strict=True)), False, stripes)

    @staticmethod
    def exchange(ranks: list[int], stripes: int = 1) -> Level:
        """All ranks send to all."""
        return Level(all_to_all(ranks), True, stripes)

    def passes(self, size: int, n_chunks: int) -> list[list[Send]]:
        """The sends of as many steps as it takes to carry all chunks, `stripes` of them at once."""
        arcs = [(*path, path[0].via(size)) for path in self.paths]
        return [
            [
                Send(first + stripe, arc.src, arc.dst, True, number * self.stripes + stripe, via)
                for arc, number, via in arcs
                for stripe in range(min(self.stripes, n_chunks - first))
            ]
            for first in range(0, n_chunks, self.stripes)
        ]


def groups(ranks: list[int], group: int) -> list[list[int]]:
    """Consecutive ranks, `group` at a time; the last may be fewer."""
    return [ranks[first : first + group] for first in range(0, len(ranks), group)]


def middles(ranks: list[int], group: int) -> list[int]:
    """The rank in the middle of each group."""
    return [members[len(members) // 2] for members in groups(ranks, group)]


def steps_of(size: int, levels: list[Level], n_chunks: int) -> Iterator[Step]:
    """All levels up, then down again those after which not every rank has the result."""
    ups = [level.passes(size, n_chunks) for level in levels]
    yield from (Step(sends) for passes in ups for sends in passes)
    for level, passes in reversed(list(zip(levels, ups, strict=True))):
        for sends in passes if not level.exchanges else ():
            yield Step(Send(chunk, dst, src, False, number, via[::-1]) for chunk, src, dst, _, number, via in sends)


def wavelengths_of(topology: Topology | int, wavelengths: int | None = None) -> int:
    """How many wavelengths there are all around a ring; UsageError if it is none, or has fewer than are asked for."""
    there = OpticalMachine().wavelengths if wavelengths is None else max(wavelengths, 1)
    if isinstance(topology, Topology):
        ahead = [(rank, (rank + 1) % topology.size) for rank in range(topology.size) if topology.size > 1]
        pairs = ahead + [(dst, src) for src, dst in ahead]
        for src, dst in pairs:
            if (src, dst) not in topology.links:
                raise UsageError(f"{topology.name} is no ring of all ranks: there is no link from {src} to {dst}")
        there = min((topology.links[pair].channels for pair in pairs), default=there)
    count = there if wavelengths is None else wavelengths
    if not 1 <= count <= there:
        raise UsageError(f"there cannot be {count} wavelengths: give 1 or more, and no more than the {there} there are")
    return count


def group_of(wavelengths: int, group: int | None, loss: InsertionLoss | None = None) -> int:
    """The size of groups: the one asked for, or the largest; UsageError if it cannot be."""
    most = 2 * wavelengths + 1
    if loss is not None:
        most = min(most, loss.largest_group())
    if group is not None and not 2 <= group <= most:
        raise UsageError(f"WRHT cannot have groups of {group} ranks: 2 to {most} with {wavelengths} wavelengths")
    return most if group is None else group
