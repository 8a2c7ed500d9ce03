"""The trace of a simulation: a file like those of the ranks, with tracks for links and wavelengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusionctl.plan import Send
from fusionctl.plan.ring import ring
from fusionctl.plan.topology import ring as ring_topology
from fusionctl.sim import Optics
from fusionctl.sim.optical import optical
from fusionctl.sim.steps import steps
from fusionctl.sim.trace import write
from fusionctl.timeline import load
from networks import made


def spans(path: Path) -> list[tuple[str, str, float, float, dict[str, Any]]]:
    """Track, name, start and duration in microseconds, arguments."""
    events = load(path)
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return [(tracks[e["tid"]], e["name"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]


def test_each_send_is_a_span_on_each_of_its_tracks(tmp_path: Path) -> None:
    topology = Optics(wavelengths=2, bandwidth=1e9, propagation=1e-6).topology(4)
    schedule = made([Send(3, 0, 2, True, 1, (1,)), Send(0, 1, 2, True)], [Send(0, 2, 1, False)], size=4, n_chunks=4)
    path = write(optical(schedule, topology, 4000), tmp_path / "wrht.json")
    assert path == tmp_path / "wrht.rank0.json"
    first = {"step": 0, "chunk": 3, "src": 0, "dst": 2}
    assert spans(path) == [
        ("(engine)", "RECONFIGURE", 0.0, 25.0, {}),
        ("(engine)", "RECONFIGURE", 28.0, 25.0, {}),
        ("0->1 @1", "+3 0->1->2 @1", 25.0, 3.0, first),
        ("1->2 @1", "+3 0->1->2 @1", 25.0, 3.0, first),
        ("1->2", "+0 1->2", 25.0, 2.0, {"step": 0, "chunk": 0, "src": 1, "dst": 2}),
        ("2->1", "=0 2->1", 53.0, 2.0, {"step": 1, "chunk": 0, "src": 2, "dst": 1}),
    ]


def test_the_file_says_what_was_simulated_from_zero_to_the_end(tmp_path: Path) -> None:
    events = load(write(steps(ring(3), ring_topology(3, 1e9, 1e-6), 6000), tmp_path))
    assert events[0]["args"] == {"name": "steps: ring(3) on ring(3), 6000 bytes"}
    marks = [(event["name"], event["ts"]) for event in events if event["ph"] == "i"]
    assert marks == [("START", 0.0), ("STOP", 12.0)]
    assert len(spans(tmp_path / "rank0.json")) == 12
