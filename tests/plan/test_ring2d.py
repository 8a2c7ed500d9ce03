"""The 2D-ring: its grids, its steps, and that its halves do not meet on a link."""

from __future__ import annotations

import pytest

from fusionctl.plan.ring import ring
from fusionctl.plan.ring2d import ring2d
from fusionctl.plan.topologies import mesh, torus
from fusionctl.plan.topology import Topology, fully_connected
from fusionctl.plan.verify import verify


@pytest.mark.parametrize(
    ("topology", "steps"),
    [
        (torus(4, 4), 4 * 3),
        (mesh(4, 4), 4 * 3),
        (torus(8, 8), 4 * 7),
        (mesh(8, 8), 4 * 7),
        (torus(3, 5), 4 * 4),
        (mesh(5, 2), 4 * 4),
        (torus(2, 2), 4),
        (torus(4, 1, 3), 4 * 3),
        (torus(3, 3, 3), 6 * 2),
        (mesh(2, 3, 4), 6 * 3),
        (torus(6), 2 * 5),
        (mesh(1, 6), 2 * 5),
    ],
)
def test_all_axes_are_in_use_at_once_and_none_waits_for_a_link(topology: Topology, steps: int) -> None:
    schedule = verify(ring2d(topology), topology)
    assert len(schedule.steps) == steps


def test_a_mesh_is_gone_back_along_where_a_torus_is_joined() -> None:
    back = {send.nodes for step in ring2d(mesh(3, 3)).steps for send in step.sends if len(send.nodes) > 2}
    assert back == {(2, 1, 0), (5, 4, 3), (8, 7, 6), (6, 3, 0), (7, 4, 1), (8, 5, 2)}
    assert {len(send.nodes) for step in ring2d(torus(3, 3)).steps for send in step.sends} == {2}


def test_the_grid_is_that_of_the_topology_or_as_near_to_a_square_as_can_be() -> None:
    assert [ring2d(n).name for n in (mesh(2, 6), 12, 7, fully_connected(16))] == [
        *("ring2d(2x6)", "ring2d(3x4)", "ring2d(1x7)", "ring2d(4x4)")
    ]


def test_a_grid_of_one_row_is_a_ring() -> None:
    assert ring2d(7).steps == ring(7).steps
