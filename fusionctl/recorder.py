"""Carries the engine's spans to this rank's timeline file, a batch at a time, from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from fusionctl import _board
from fusionctl.registry import Registry
from fusionctl.timeline import SPANS, Timeline

PERIOD = 0.2
"""Seconds between batches: what a killed rank loses at most."""


class Recorder:
    """Turns tracing on until it is closed."""

    def __init__(self, timeline: Timeline, registry: Registry, phases: Sequence[str]) -> None:
        self._timeline = timeline
        self._registry = registry
        self._phases = phases
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fusionctl-timeline", daemon=True)
        _board.set_tracing(True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left and complete the file."""
        _board.set_tracing(False)
        self._closing.set()
        self._thread.join()
        self._timeline.close()

    def _run(self) -> None:
        while not self._closing.wait(PERIOD):
            self._write()
        self._write()

    def _write(self) -> None:
        spans = np.frombuffer(_board.take_spans(), SPANS)
        if len(spans):
            requests = [registered.group.requests[index] for registered, index in list(self._registry.by_slot)]
            self._timeline.write_batch(spans, [r.name for r in requests], [r.dtype for r in requests], self._phases)
