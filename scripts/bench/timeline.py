"""What the timeline adds to a step of the digits example: epochs with it and without it in turn, in one run.

mpirun -np 2 python scripts/bench/timeline.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import fusionctl
import fusionctl.keras as fusion

sys.path.insert(0, str(Path(__file__).parents[1]))

import train_digits  # type: ignore[import-not-found]  # the example beside this folder

WARM_UP = 2


class Alternate(keras.callbacks.Callback):  # type: ignore[misc]
    """Turn the timeline on in every second epoch and keep the time between batches."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        self._last = 0.0
        self._on = self._counts = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._on, self._counts, self._last = epoch % 2 == 1, epoch >= WARM_UP, 0.0
        if self._on:
            fusionctl.start_timeline(f"{self.folder}/{epoch}")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.perf_counter()
        if self._last and self._counts:
            self.seconds[self._on].append(now - self._last)
        self._last = now

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        fusionctl.stop_timeline()


def main() -> None:
    fusion.init()
    (x, y), _ = train_digits.digits()
    model = train_digits.build_model()
    model.compile(fusion.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss="sparse_categorical_crossentropy")
    with tempfile.TemporaryDirectory() as folder:
        alternate = Alternate(folder)
        model.fit(
            *train_digits.shard(x, y, 32),
            batch_size=32,
            epochs=60,
            verbose=0,
            callbacks=[fusion.callbacks.BroadcastGlobalVariablesCallback(0), alternate],
        )
    off, on = (float(np.median(alternate.seconds[state])) * 1e3 for state in (False, True))
    if fusion.rank() == 0:
        print(f"a step takes {off:.3f} ms without the timeline, {on:.3f} ms with it: {100 * (on / off - 1):+.1f} %")


if __name__ == "__main__":
    main()
