"""Epochs of unequal numbers of batches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

import fusionctl
from fusionctl.errors import UsageError
from fusionctl.keras import hooks
from fusionctl.keras.agreement import of_all
from fusionctl.keras.reduction import reduction_of
from fusionctl.keras.state import shared_variables, when_built
from fusionctl.tensorflow.variables import broadcast_variables

Logs = dict[str, Any] | None


class JoinCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Let the ranks have different numbers of batches in an epoch, also none, or numbers that nobody knows before.

    The n-th update of an epoch is by the average over the ranks that have data for an n-th one; a rank whose batches
    are over waits for the others.  Then all ranks take over the state of one that has made every update: weights,
    optimizer slots, iterations and loss scale, as BroadcastGlobalVariablesCallback does at first; `local_variables` and
    those that are local to the optimizer stay.  That is before metrics are averaged, validation begins or any callback
    is told the end of the epoch, wherever this one is listed.  Nothing is sent where all have made the same updates.  A
    rank that stops training within an epoch stops all of them after it.

    With `backward_passes_per_step` a window that is open at the end of a rank's batches goes on in the next epoch.
    Reductions that the step makes otherwise, as those of SyncBatchNormalization, go on without the rank too, but a
    broadcast from it fails.  List it on all ranks, which still run equally many epochs.  Raises UsageError when
    training begins with an optimizer of a process set, as only all ranks can join.
    """

    def __init__(self, local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.local_variables = list(local_variables or ())
        self._in_epoch = False
        hooks.install()

    def set_params(self, params: dict[str, Any]) -> None:
        """Tell the other callbacks, which get the same parameters, that this one is listed."""
        super().set_params(params)
        params["joins"] = True

    def on_train_begin(self, logs: Logs = None) -> None:
        """Check the optimizer; a rank without batches needs variables too."""
        reduction = reduction_of(self.model.optimizer)
        if reduction is not None and reduction.process_set.process_set_id != 0:
            raise UsageError(
                f"optimizer '{self.model.optimizer.name}' reduces over process set {reduction.process_set}, but "
                "JoinCallback is for all ranks: leave it away, and give all ranks of the set as many batches"
            )
        when_built(self.model, lambda: None)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """There are batches to come."""
        self._in_epoch = True

    def join_epoch(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Wait for the ranks that still have batches, once an epoch; the logs stay as they are."""
        if self._in_epoch:
            self._in_epoch = False
            self._join()
        return logs

    def _join(self) -> None:
        last = fusionctl.join()
        shared = shared_variables(self.model, self.local_variables)
        rows = of_all([self._checksum(shared), bool(self.model.stop_training)], "end of batches")
        checksums, stops = zip(*rows, strict=True)
        if len(set(checksums)) > 1:
            broadcast_variables(shared, root_rank=last)
        self.model.stop_training = any(stops)

    def _checksum(self, shared: Iterable[Any]) -> int:
        """64 bits of what is trained; the rest, as moving averages of the data, is each rank's own between epochs."""
        rest = {id(variable) for variable in self.model.non_trainable_weights}
        total = hashlib.blake2b(digest_size=8)
        for variable in shared:
            if id(variable) not in rest:
                total.update(np.asarray(variable).tobytes())
        return int.from_bytes(total.digest(), "little", signed=True)
