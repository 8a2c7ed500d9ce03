"""Step-synchronous timing: each step takes as long as its slowest send, and the next one starts when all are done."""

from __future__ import annotations

import numpy as np

from fusionctl.plan import Topology
from fusionctl.sim.network import Floats, Moves, Network, Source
from fusionctl.sim.result import Recorder, Result


def steps(schedule: Source, topology: Topology, nbytes: int, *, events: bool = True) -> Result:
    """Time a schedule in lock-step, as the closed forms of the literature do.

    A send takes the sum of its links' latencies, plus its chunk's bytes over the smallest of their bandwidths, and
    holds all tracks of its way for that time.  Sends of a step that share a track, which `verify` refuses, go one
    after another in the order of the step.  A ring takes 2(N - 1)(a + d / (N B)).

    ScheduleError if a way, a link or a channel does not exist or the numbers of ranks differ; UsageError for bytes
    below 0.
    """
    network = Network(schedule, topology, nbytes)
    recorder, now = Recorder(network, schedule, nbytes, events), 0.0
    for step in schedule.steps:
        moves = network.moves(step)
        took = moves.latency + moves.wire
        start = np.full(took.size, now) if moves.apart else _queued(moves, took, now)
        end = start + took
        recorder.add(moves, start, end, now)
        recorder.hold(moves.track, took[moves.move])
        now = float(end.max(initial=now))
    return recorder.result("steps")


def _queued(moves: Moves, took: Floats, now: float) -> Floats:
    """When each move starts if it waits for the moves before it that hold a track of its way."""
    free: dict[int, float] = {}
    start = np.empty(took.size)
    ways = np.split(moves.track, np.flatnonzero(np.diff(moves.move)) + 1)
    for i, way in enumerate(way.tolist() for way in ways):
        start[i] = max(free.get(track, now) for track in way)
        free.update(dict.fromkeys(way, float(start[i] + took[i])))
    return start
