"""Which programs the values of FUSIONCTL_ALLREDUCE stand for."""

from __future__ import annotations

import pytest

from fusionctl.config import ALLREDUCES
from fusionctl.data.dispatch import ACCEPTED, FEW, possible, programs, topology_of
from fusionctl.data.program import program_of
from fusionctl.errors import ConfigError, UsageError
from fusionctl.plan import PLANNERS, Schedule, ScheduleError
from fusionctl.plan.direct import direct
from fusionctl.plan.recursive import recursive
from fusionctl.plan.ring import ring


@pytest.mark.parametrize(("name", "size"), [("mpi", 1), ("mpi", 4), ("mpi", FEW + 1), ("auto", FEW + 1)])
def test_mpi_reduces_what_it_knows_and_the_direct_exchange_the_rest(name: str, size: int) -> None:
    chosen = programs(name, size - 1, size)
    assert chosen.native is None
    assert chosen.half.tolist() == program_of(direct(size), size - 1).tolist()
    assert not chosen.native_scales
    assert (chosen.native_name, chosen.half_name) == ("MPI_ALLREDUCE", f"direct({size})")


@pytest.mark.parametrize(("name", "size"), [("direct", 2), ("direct", FEW + 1), ("auto", 2), ("auto", FEW)])
def test_few_ranks_exchange_everything_directly(name: str, size: int) -> None:
    chosen = programs(name, 1, size)
    assert chosen.native is not None
    assert chosen.native.tolist() == chosen.half.tolist() == program_of(direct(size), 1).tolist()
    assert chosen.native_scales
    assert (chosen.native_name, chosen.half_name) == (f"direct({size})", f"direct({size})")


@pytest.mark.parametrize("rank", range(4))
def test_a_named_schedule_is_for_all_but_the_sixteen_bit_types(rank: int) -> None:
    chosen = programs("ring", rank, 4)
    assert chosen.native is not None
    assert chosen.native.tolist() == program_of(ring(4), rank).tolist()
    assert chosen.half.tolist() == program_of(direct(4), rank).tolist()
    assert not chosen.native_scales
    assert (chosen.native_name, chosen.half_name) == ("ring(4)", "direct(4)")


@pytest.mark.parametrize(("name", "size"), [("shm", 2), ("shm", FEW + 1)])
def test_the_ranks_of_one_node_share_its_memory(name: str, size: int) -> None:
    chosen = programs(name, 0, size, one_node=True)
    assert chosen.shared
    assert chosen.native_name == "SHM_ALLREDUCE"


@pytest.mark.parametrize(("name", "size", "one_node"), [("auto", 4, True), ("shm", 1, True), ("direct", 4, True)])
def test_otherwise_messages_are_sent(name: str, size: int, one_node: bool) -> None:
    assert not programs(name, 0, size, one_node).shared


def test_ranks_of_several_nodes_share_no_memory() -> None:
    with pytest.raises(ConfigError, match=r"^FUSIONCTL_ALLREDUCE=shm: the 4 ranks are on several nodes"):
        programs("shm", 0, 4)


def test_the_setting_accepts_each_planner_and_no_other_name() -> None:
    assert ("auto", "mpi", "shm", *PLANNERS) == ACCEPTED
    assert sorted(ALLREDUCES) == sorted(ACCEPTED)
    with pytest.raises(ConfigError) as raised:
        programs("rings", 0, 4)
    assert str(raised.value) == (
        f"FUSIONCTL_ALLREDUCE=rings: no such all-reduce; accepted are auto, mpi, shm, {', '.join(PLANNERS)}"
    )


def test_a_schedule_for_other_numbers_of_ranks_is_refused_or_for_a_process_set_replaced() -> None:
    with pytest.raises(ConfigError, match=r"^FUSIONCTL_ALLREDUCE=swing: "):
        programs("swing", 0, 3)
    assert [possible("swing", size) for size in (3, 4)] == ["auto", "swing"]
    assert [possible(name, 3) for name in ("shm", "mpi", "auto")] == ["shm", "mpi", "auto"]


@pytest.mark.parametrize("rank", [-1, 4])
def test_only_a_rank_that_exists_has_programs(rank: int) -> None:
    with pytest.raises(UsageError, match=f"^there is no rank {rank} among 4: give 0 to 3$"):
        programs("auto", rank, 4)


@pytest.mark.parametrize("name", ["direct", "ring"])
def test_a_schedule_that_does_not_hold_is_never_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANNERS, name, lambda size: Schedule(f"idle({size})", "allreduce", 2, 2, ()))
    with pytest.raises(ScheduleError, match=r"^idle\(2\), at the end of 0 steps: rank 0 lacks"):
        programs(name, 0, 2)


def test_a_named_schedule_is_planned_for_the_topology() -> None:
    square = topology_of("torus:2x2", 4)
    assert square is not None
    assert topology_of(None, 4) is None
    chosen = programs("recursive", 1, 4, topology=square)
    assert chosen.native is not None
    assert chosen.native.tolist() == program_of(recursive(square), 1).tolist()
    assert programs("recursive", 1, 4, one_node=True, topology=square).shared is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torus:2x3", r"^FUSIONCTL_TOPOLOGY=torus:2x3: topology torus\(2, 3\) has 6 ranks, but 4 are needed$"),
        ("moebius:4", r"^FUSIONCTL_TOPOLOGY=moebius:4: .* is no kind of topology"),
        ("nowhere.json", r"^FUSIONCTL_TOPOLOGY=nowhere\.json: "),
    ],
)
def test_a_topology_that_is_of_no_use_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        topology_of(text, 4)


def test_a_schedule_that_the_topology_cannot_carry_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^FUSIONCTL_ALLREDUCE=swing on ring\(3\): "):
        programs("swing", 0, 3, topology=topology_of("ring:3", 3))
