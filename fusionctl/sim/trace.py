"""A simulation as a trace: the file that `fusionctl.timeline` writes, with a track for each channel of a link."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from fusionctl.sim.result import Result
from fusionctl.timeline import ENGINE, Timeline

RECONFIGURATION = "RECONFIGURE"
"""The span in which an optical network sets its circuits, on the engine's track."""


def write(result: Result, path: str | Path) -> Path:
    """Write the events of a simulation to a trace at or under `path`, and return the file.

    Times are simulated ones from 0 and rounded to nanoseconds.  A send is a span on each track that it takes, which
    is called `0->1`, or `0->1 @3` for channel 3; its name is that of `str(send)`, its arguments are step, chunk,
    source and destination.  ConfigError when the file cannot be created.
    """
    clock = iter((0, _ns(result.seconds)))
    process = f"{result.simulator}: {result.schedule} on {result.topology}, {result.nbytes} bytes"
    timeline = Timeline(path, 0, clock=clock.__next__, time_of_day=lambda: 0, process=process)
    for start, end in result.reconfigurations:
        timeline.span(ENGINE, RECONFIGURATION, _ns(start), _ns(end))
    columns = (result.events[name].tolist() for name in ("start", "end", "step"))
    for start, end, step, send in zip(*columns, result.sends(), strict=True):
        for src, dst in pairwise(send.nodes):
            channel = f" @{send.channel}" if send.channel else ""
            args = {"step": step, "chunk": send.chunk, "src": send.src, "dst": send.dst}
            timeline.span(f"{src}->{dst}{channel}", str(send), _ns(start), _ns(end), **args)
    timeline.close()
    return timeline.path


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
