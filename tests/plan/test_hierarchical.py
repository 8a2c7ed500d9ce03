"""The hierarchical all-reduce: what hosts are, what crosses them, and who takes turns."""

from __future__ import annotations

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan.hierarchical import hierarchical
from fusionctl.plan.topologies import dgx, hosts
from fusionctl.plan.topology import fully_connected
from fusionctl.plan.verify import verify


@pytest.mark.parametrize(("n_hosts", "local"), [(1, 4), (4, 1), (2, 3), (3, 2), (4, 4)])
def test_what_crosses_hosts_is_the_ring_of_each_local_rank_with_its_part(n_hosts: int, local: int) -> None:
    size = n_hosts * local
    schedule = verify(hierarchical(size, local), fully_connected(size))
    crossing = [send for step in schedule.steps for send in step.sends if send.src // local != send.dst // local]
    assert len(crossing) == local * n_hosts * 2 * (n_hosts - 1)
    assert {(send.dst - send.src) % size for send in crossing} <= {local}
    assert len(schedule.steps) == 2 * (local - 1) + 2 * (n_hosts - 1)


def test_hosts_with_one_link_are_crossed_in_turns_and_adapters_of_each_rank_at_once() -> None:
    shared, own = hosts(4, 8), dgx(4)
    assert len(verify(hierarchical(shared), shared).steps) == 2 * 7 + 8 * 2 * 3
    assert len(verify(hierarchical(own), own).steps) == 2 * 7 + 2 * 3


def test_the_ranks_of_a_host_are_those_of_the_topology_or_a_divisor_near_the_root() -> None:
    names = [hierarchical(n).name for n in (hosts(2, 6), 12, 7, fully_connected(6))]
    assert names == ["hierarchical(2x6)", "hierarchical(4x3)", "hierarchical(7x1)", "hierarchical(3x2)"]
    assert hierarchical(hosts(2, 6), local=3).name == "hierarchical(4x3)"


@pytest.mark.parametrize("local", [0, -2, 5, 13])
def test_hosts_are_equally_large(local: int) -> None:
    with pytest.raises(UsageError) as raised:
        hierarchical(12, local)
    assert str(raised.value) == f"hierarchical(12): 12 ranks are not {local} on each host: give a divisor of 12"
