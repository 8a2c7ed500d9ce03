"""Checkpoints of the best model, written by one rank."""

from __future__ import annotations

from typing import Any

import keras

from fusionctl.errors import UsageError
from fusionctl.runtime import rank

Logs = dict[str, Any] | None


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's ModelCheckpoint with `save_best_only`, which rank 0 alone decides and writes.

    `filepath`, ending in .keras or, for `save_weights_only`, in .weights.h5, may be set as an attribute until training
    begins.  Best is by rank 0's metrics: list a MetricAverageCallback for those of all ranks.  Another rank that reads
    the file after `fit` must wait for rank 0, by a `broadcast` or `fusionctl.barrier`, say.  May be listed on rank 0
    only.  Raises UsageError when training begins without a path.
    """

    filepath: str | None

    def __init__(
        self,
        filepath: str | None = None,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
    ) -> None:
        super().__init__(
            filepath or ("unset.weights.h5" if save_weights_only else "unset.keras"),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Check that there is a path."""
        if self.filepath is None:
            raise UsageError("BestModelCheckpoint has no filepath; give one, or set its attribute before fit")
        self.filepath = str(self.filepath)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Write on rank 0 if this many batches are over and the model is the best one."""
        if rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write on rank 0 if the model is the best one."""
        if rank() == 0:
            super().on_epoch_end(epoch, logs)
