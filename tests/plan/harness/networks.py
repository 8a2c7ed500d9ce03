"""Networks for the tests of planners: the links of each node in the order north, south, west, east."""

from __future__ import annotations

from fusionctl.plan.topology import Link, Topology


def grid(rows: int, columns: int, wrap: bool) -> list[tuple[int, int]]:
    """Links between neighbours; with `wrap` also over the edges."""
    pairs: list[tuple[int, int]] = []
    for row in range(rows):
        for column in range(columns):
            for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                y, x = row + down, column + right
                inside = 0 <= y < rows and 0 <= x < columns
                pair = row * columns + column, y % rows * columns + x % columns
                if (inside or wrap) and pair[0] != pair[1]:
                    pairs.append(pair)
    return pairs


def torus(rows: int, columns: int) -> Topology:
    return Topology(f"torus({rows},{columns})", rows * columns, dict.fromkeys(grid(rows, columns, True), Link()))


def mesh(rows: int, columns: int) -> Topology:
    return Topology(f"mesh({rows},{columns})", rows * columns, dict.fromkeys(grid(rows, columns, False), Link()))


def attached(name: str, switch_of: list[int], pairs: list[tuple[int, int]]) -> Topology:
    """Ranks with one port each, to a switch; switches are numbered from 0 in the arguments."""
    size = len(switch_of)
    down = [(size + switch, rank) for rank, switch in enumerate(switch_of)]
    up = [(rank, switch) for switch, rank in down]
    between = [(size + src, size + dst) for src, dst in pairs]
    switches = 1 + max(max(switch_of), *(max(pair) for pair in pairs)) if pairs else 1
    return Topology(name, size, dict.fromkeys(up + down + between, Link()), switches)


def torus_of_switches(rows: int, columns: int) -> Topology:
    """A torus in which each rank has one port to a switch of its own."""
    return attached(f"switches({rows},{columns})", list(range(rows * columns)), grid(rows, columns, True))


def star(size: int) -> Topology:
    return attached(f"star({size})", [0] * size, [])


def both_ways(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return pairs + [(dst, src) for src, dst in pairs]


def fat_tree(leaves: int, ranks: int) -> Topology:
    """Two levels: as many upper switches as a leaf has ranks, each with a link to each leaf."""
    pairs = [(leaf, leaves + upper) for leaf in range(leaves) for upper in range(ranks)]
    switch_of = [rank // ranks for rank in range(leaves * ranks)]
    return attached(f"fat_tree({leaves},{ranks})", switch_of, both_ways(pairs))


def bigraph(switches: int, ranks: int) -> Topology:
    """Two layers of switches with ranks on all of them, each with a link to each switch of the other layer."""
    pairs = [(lower, switches + upper) for lower in range(switches) for upper in range(switches)]
    switch_of = [rank // ranks for rank in range(2 * switches * ranks)]
    return attached(f"bigraph({switches},{ranks})", switch_of, both_ways(pairs))


def wdm_ring(size: int, wavelengths: int) -> Topology:
    """Each rank is linked both ways with the next, by a fibre of so many wavelengths."""
    pairs = [(rank, (rank + 1) % size) for rank in range(size) if size > 1]
    link = Link(channels=wavelengths)
    return Topology(f"wdm_ring({size},{wavelengths})", size, dict.fromkeys(both_ways(pairs), link))
