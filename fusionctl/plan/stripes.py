"""WRHT with idle wavelengths put to use: the vector is cut into stripes that travel on several wavelengths at once."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from fusionctl.errors import UsageError
from fusionctl.plan.lightpaths import Policy, all_to_all_wavelengths, first_fit
from fusionctl.plan.optics import InsertionLoss, OpticalMachine
from fusionctl.plan.schedule import Schedule
from fusionctl.plan.topology import Topology, size_of
from fusionctl.plan.wrht import Level, group_of, middles, steps_of, wavelengths_of


class Tree(NamedTuple):
    """What is best for some ranks: modelled seconds, the groups of each level, whether all talk to all in the end."""

    seconds: float
    groups: tuple[int, ...] = ()
    exchanges: bool = False


def striped_wrht(
    topology: Topology | int,
    n_bytes: int,
    machine: OpticalMachine | None = None,
    policy: Policy = first_fit,
    all_to_all_first: bool = False,
    loss: InsertionLoss | None = None,
) -> Schedule:
    """All-reduce like `wrht`, with the groups, the stripes and the last level that are the fastest for n bytes.

    Groups of m take floor(m / 2) wavelengths each way, so that s = floor(w / floor(m / 2)) stripes of the vector can
    travel at once: smaller groups make more levels, but each is shorter.  A level takes one change of lightpaths and
    d / (s B) seconds for d bytes; C chunks are ceil(C / s) steps over the same lightpaths.  Beyond the paper.
    The machine's wavelengths count for a number of ranks, and the channels of the links for a topology.

    Four ranks and two wavelengths, for so many bytes that two levels in halves are faster than one in whole:

    >>> print(striped_wrht(4, 8 << 20, OpticalMachine(wavelengths=2)))
    striped_wrht(4,m=2xall,w=2): allreduce, 4 ranks, 2 chunks, 3 steps
    0: +0 0->1, +1 0->1 @1, +0 2->3, +1 2->3 @1
    1: +0 1->2->3, +1 1->2->3 @1, +0 3->0->1, +1 3->0->1 @1
    2: =0 1->0, =1 1->0 @1, =0 3->2, =1 3->2 @1
    """
    machine = OpticalMachine() if machine is None else machine
    size = size_of(topology)
    count = wavelengths_of(topology, None if isinstance(topology, Topology) else machine.wavelengths)
    tree, n_chunks = best_tree(size, n_bytes, machine, count, group_of(count, None, loss), all_to_all_first)
    levels: list[Level] = []
    ranks = list(range(size))
    for group in tree.groups:
        lightpaths = min(group, len(ranks)) // 2
        levels.append(Level.gather(size, ranks, group, lightpaths, policy, stripes(count, lightpaths, n_chunks)))
        ranks = middles(ranks, group)
    if tree.exchanges:
        needed = all_to_all_wavelengths(len(ranks))
        levels.append(Level.exchange(ranks, stripes(count, needed, n_chunks)))
    name = "x".join([*map(str, tree.groups), *(["all"] if tree.exchanges else [])])
    return Schedule(
        f"striped_wrht({size},m={name},w={count})", "allreduce", size, n_chunks, tuple(steps_of(size, levels, n_chunks))
    )


def stripes(wavelengths: int, lightpaths: int, n_chunks: int) -> int:
    """How many chunks travel at once where so many lightpaths share a link."""
    return min(wavelengths // lightpaths, n_chunks)


def best_tree(
    size: int, n_bytes: int, machine: OpticalMachine, wavelengths: int, largest: int, all_to_all_first: bool = False
) -> tuple[Tree, int]:
    """The fastest tree of groups up to `largest`, and its number of chunks, of up to as many as there are wavelengths.

    A dynamic programme over the number of ranks left, for each number of chunks; never slower than `wrht` in the model.
    """
    if n_bytes < 0:
        raise UsageError(f"there cannot be {n_bytes} bytes to reduce: give 0 or more")
    trees = [
        (_best(size, n_bytes / n_chunks, n_chunks, machine, wavelengths, largest, all_to_all_first), n_chunks)
        for n_chunks in range(1, wavelengths + 1)
    ]
    return min(trees, key=lambda found: (found[0].seconds, found[1]))


def _best(
    size: int,
    chunk: float,
    n_chunks: int,
    machine: OpticalMachine,
    wavelengths: int,
    largest: int,
    all_to_all_first: bool,
) -> Tree:
    def seconds(lightpaths: int) -> float:
        steps = -(-n_chunks // stripes(wavelengths, lightpaths, n_chunks))
        return steps * machine.transfer(chunk) + machine.reconfiguration

    @cache
    def best(left: int) -> Tree:
        if left == 1:
            return Tree(0.0)
        trees = []
        if (left < size or all_to_all_first) and all_to_all_wavelengths(left) <= wavelengths:
            trees.append(Tree(seconds(all_to_all_wavelengths(left)), (), True))
        for group in range(2, min(largest, left) + 1):
            rest = best(-(-left // group))
            trees.append(Tree(2 * seconds(group // 2) + rest.seconds, (group, *rest.groups), rest.exchanges))
        return min(trees)

    return best(size)
