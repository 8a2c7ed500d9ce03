"""Spans in, a Chrome trace out: the JSON array form that Perfetto and chrome://tracing read, one file for each rank.

A file only grows, by whole lines, in one write for each batch.  The viewers do not ask for the closing bracket, so what
a killed rank leaves behind loads; a closed file is strict JSON.  Only a kill in the middle of a write can tear the last
line, which `load` then leaves out.

Times are nanoseconds of CLOCK_MONOTONIC and become microseconds with three decimals; all ranks of one node share that
clock.  The first event, START, also gives the time of day, by which nodes are aligned.  In a file pid is the rank, tid
0 the engine's track, and each tensor has a track of its own.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionctl.errors import ConfigError

SPANS = np.dtype([("slot", "i4"), ("phase", "i4"), ("start", "i8"), ("end", "i8"), ("nbytes", "i8"), ("bucket", "i8")])
"""One span as the engine records it: slot -1 is the engine itself; `start` and `end` in nanoseconds."""

ENGINE = "(engine)"
"""Name of the engine's own track."""

_DECIMALS = tuple(f".{ns:03d}" for ns in range(1000))


def trace_path(target: str | Path, rank: int) -> Path:
    """The file of one rank: `t.rank0.json` for the target `t.json`, else `rank0.json` in a folder of that name."""
    path = Path(target)
    if path.suffix.lower() == ".json" and not path.is_dir():
        return path.with_suffix(f".rank{rank}{path.suffix}")
    return path / f"rank{rank}.json"


class Timeline:
    """The trace of one rank, in a new file at or under `path` (see `trace_path`); any thread may write.

    A viewer calls it `process`, by default the rank.
    A disk that refuses a write ends the trace with a warning, never the training.  Raises ConfigError when the file
    cannot be created.
    """

    def __init__(
        self,
        path: str | Path,
        rank: int,
        clock: Callable[[], int] = time.monotonic_ns,
        time_of_day: Callable[[], int] = time.time_ns,
        process: str | None = None,
    ) -> None:
        self.path = trace_path(path, rank)
        self._rank = rank
        self._clock = clock
        self._lock = threading.Lock()
        self._tracks: dict[str, int] = {}
        self._names: list[str] = []
        self._dtypes: list[str] = []
        self._phases: list[str] = []
        self._prefixes: dict[int, str] = {}
        self._fd = _create(self.path)
        self._write(f"[\n{self._metadata('process_name', name=process or f'rank {rank}')}")
        self._write(self._metadata("process_sort_index", sort_index=rank))
        self.instant(ENGINE, "START", unix_time_ns=time_of_day(), host=socket.gethostname())

    def span(self, track: str, name: str, start_ns: int, end_ns: int, **args: object) -> None:
        """Write one span at once; `track` is a tensor's name or ENGINE, `args` any values that JSON has."""
        times = f'"ts":{_us(start_ns)},"dur":{_us(end_ns - start_ns)}'
        with self._lock:
            self._write(self._new_tracks([track]) + self._event("X", track, name, times, args) + ",\n")

    def instant(self, track: str, name: str, **args: object) -> None:
        """Write a mark without duration, now."""
        times = f'"s":"t","ts":{_us(self._clock())}'
        with self._lock:
            self._write(self._new_tracks([track]) + self._event("i", track, name, times, args) + ",\n")

    def write_batch(
        self, spans: NDArray[np.void], names: Sequence[str], dtypes: Sequence[str], phases: Sequence[str]
    ) -> None:
        """Write spans of dtype SPANS, in one write; `names` and `dtypes` are indexed by slot, `phases` by phase.

        About 1 µs a span: what does not change between spans of one slot and phase is formatted once.
        """
        with self._lock:
            self._describe(list(names), list(dtypes), list(phases))
            keys = ((spans["slot"].astype("i8") + 1) * len(phases) + spans["phase"]).tolist()
            head = self._new_prefixes(sorted(set(keys) - self._prefixes.keys()))
            self._write(head + _format(spans, keys, self._prefixes))

    def flush(self) -> None:
        """Have the disk hold what was written; needed only against the loss of the machine, not of the process."""
        with self._lock:
            if self._fd >= 0:
                os.fsync(self._fd)

    def close(self) -> None:
        """Complete the file; closing twice is harmless."""
        with self._lock:
            if self._fd >= 0:
                self._write(self._event("i", ENGINE, "STOP", f'"s":"t","ts":{_us(self._clock())}', {}) + "\n]\n")
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _describe(self, names: list[str], dtypes: list[str], phases: list[str]) -> None:
        if (names, dtypes, phases) != (self._names, self._dtypes, self._phases):
            self._names, self._dtypes, self._phases, self._prefixes = names, dtypes, phases, {}

    def _new_prefixes(self, keys: Sequence[int]) -> str:
        """Format the beginnings of keys, (slot + 1) * phases + phase; returns the lines that name new tracks."""
        pairs = [divmod(key, len(self._phases)) for key in keys]
        tracks = [self._names[slot1 - 1] if slot1 else ENGINE for slot1, _ in pairs]
        head = self._new_tracks(tracks)
        for key, track, (slot1, phase) in zip(keys, tracks, pairs, strict=True):
            self._prefixes[key] = self._prefix(track, self._phases[phase], self._dtypes[slot1 - 1] if slot1 else None)
        return head

    def _new_tracks(self, tracks: Sequence[str]) -> str:
        """The lines that name those tracks that no event was on before."""
        lines = []
        for track in tracks:
            if track not in self._tracks:
                tid = self._tracks[track] = len(self._tracks)
                lines.append(self._metadata("thread_name", tid, name=track))
                lines.append(self._metadata("thread_sort_index", tid, sort_index=tid))
        return "".join(lines)

    def _metadata(self, kind: str, tid: int = 0, **args: object) -> str:
        return f'{{"ph":"M","pid":{self._rank},"tid":{tid},"name":"{kind}","args":{_json(args)}}},\n'

    def _event(self, ph: str, track: str, name: str, times: str, args: dict[str, object]) -> str:
        place = f'"ph":"{ph}","pid":{self._rank},"tid":{self._tracks[track]}'
        return f'{{{place},"name":{_json(name)},"args":{_json(args)},{times}}}'

    def _prefix(self, track: str, phase: str, dtype: str | None) -> str:
        """A span of a batch up to its bytes."""
        place = f'"ph":"X","pid":{self._rank},"tid":{self._tracks[track]}'
        typed = "" if dtype is None else f'"dtype":{_json(dtype)},'
        return f'{{{place},"name":{_json(phase)},"args":{{{typed}"bytes":'

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode("ascii"))
        try:
            while rest and self._fd >= 0:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            logging.getLogger("fusionctl").warning("the timeline ends here: %s: %s", self.path, error.strerror)
            os.close(self._fd)
            self._fd = -1


def load(path: str | Path) -> list[dict[str, Any]]:
    """The events of a trace file, in the order of the file; a last line that a kill tore is left out."""
    lines = Path(path).read_text("ascii").split("\n")
    torn = lines.pop()
    if not lines or lines.pop(0) != "[":
        raise ValueError(f"{path} is no trace of fusionctl: its first line is not '['")
    events: list[dict[str, Any]] = [json.loads(line.removesuffix(",")) for line in lines if line != "]"]
    try:
        return [*events, json.loads(torn.removesuffix(","))]
    except ValueError:
        return events


def _format(spans: NDArray[np.void], keys: Sequence[int], prefixes: dict[int, str]) -> str:
    # One pass over plain integers: f-strings with a table of decimals are twice as fast as formatting floats.
    start_us, start_ns = np.divmod(spans["start"], 1000)
    dur_us, dur_ns = np.divmod(spans["end"] - spans["start"], 1000)
    columns = (spans["nbytes"], spans["bucket"], start_us, start_ns, dur_us, dur_ns)
    return "".join(
        [
            f'{prefixes[key]}{nbytes},"bucket":{bucket}}},"ts":{ts}{_DECIMALS[ts3]},"dur":{dur}{_DECIMALS[dur3]}}},\n'
            for key, nbytes, bucket, ts, ts3, dur, dur3 in zip(keys, *(c.tolist() for c in columns), strict=True)
        ]
    )


def _us(ns: int) -> str:
    return f"{ns // 1000}{_DECIMALS[ns % 1000]}"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _create(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except OSError as error:
        raise ConfigError(
            f"timeline: {path} cannot be written: {error.strerror}; name another file or folder"
        ) from None
