"""The bidirectional ring: both directions of each link in each step, and its halves."""

from __future__ import annotations

import pytest

from fusionctl.plan.biring import allgather, biring, reduce_scatter
from fusionctl.plan.topology import ring
from fusionctl.plan.verify import verify


def test_two_ranks_exchange_halves_of_two_chunks_twice() -> None:
    assert str(biring(2)) == (
        "biring(2): allreduce, 2 ranks, 4 chunks, 2 steps\n"
        "0: +2 0->1, +3 0->1, +0 1->0, +1 1->0\n"
        "1: =0 0->1, =1 0->1, =2 1->0, =3 1->0"
    )


@pytest.mark.parametrize("size", range(3, 18))
def test_every_link_of_a_ring_carries_one_chunk_in_every_step(size: int) -> None:
    network = ring(size)
    for step in verify(biring(network), network).steps:
        assert sorted(hop for send in step.sends for hop in send.hops) == sorted(network.links)


@pytest.mark.parametrize("size", range(1, 10))
def test_the_halves_of_an_allreduce_do_their_part(size: int) -> None:
    verify(reduce_scatter(size), ring(size))
    verify(allgather(size), ring(size))
