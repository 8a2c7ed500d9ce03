"""Callbacks for `model.fit` on several ranks: equal state, unequal data, averaged metrics, rates, checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

import fusionctl
from fusionctl.errors import FusionctlError, UsageError
from fusionctl.keras import hooks, metrics
from fusionctl.keras.agreement import check_same_length
from fusionctl.keras.checkpoints import BestModelCheckpoint
from fusionctl.keras.joining import JoinCallback
from fusionctl.keras.reduction import reduction_of
from fusionctl.keras.schedules import LearningRateScheduleCallback, LearningRateWarmupCallback
from fusionctl.keras.state import shared_variables, when_built
from fusionctl.process_sets import global_process_set
from fusionctl.tensorflow.names import variable_names
from fusionctl.tensorflow.variables import agreed_names, broadcast_variables

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "JoinCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

Logs = dict[str, Any] | None


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Give every rank the root's weights, optimizer slots, iteration and loss scale before the first step of each fit.

    List it after a callback that restores a checkpoint, which then only the root needs.  Random seeds, as those of
    Dropout, and metrics stay this rank's own, and so do `local_variables` and those that are local to the optimizer.
    A model without variables yet is built from the first batch's shapes.  Where the ranks' models have other names, as
    on a rank that has built another model before, a wrapped optimizer knows their gradients by their places.
    Raises UsageError when the ranks are about to take different numbers of steps, without a JoinCallback, or of epochs,
    as far as Keras knows them: they would wait for each other; and FusionctlError after a first step that has reduced
    nothing.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = list(local_variables or ())
        self._steps = 0
        self._reduced_before = 0
        hooks.install()

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcast now, or when the first step has shown what the model is made of."""
        check_same_length(self.params.get("steps"), self.params.get("epochs"), self.params.get("joins", False))
        self._steps = 0
        when_built(self.model, self._broadcast)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Check before the second step: a hook after each step would make Keras wait for its results."""
        if self._steps == 1:
            self._check_reduced()
        self._steps += 1

    def check_epoch(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Check an epoch of a single step, before anything else is reduced; the logs stay as they are."""
        if self._steps == 1:
            self._check_reduced()
        return logs

    def _broadcast(self) -> None:
        reduction = reduction_of(self.model.optimizer)
        names = variable_names(self.model.trainable_variables)
        if reduction is not None and agreed_names(names, global_process_set) != names:
            reduction.know_by_places()
        broadcast_variables(shared_variables(self.model, self.local_variables), root_rank=self.root_rank)
        self._reduced_before = fusionctl.counters()["buckets"]

    def _check_reduced(self) -> None:
        # A train_step of the user's own may reduce by DistributedGradientTape; a wrapped optimizer checks by itself.
        nothing = fusionctl.counters()["buckets"] == self._reduced_before
        optimizer = self.model.optimizer
        if nothing and fusionctl.size() > 1 and reduction_of(optimizer) is None and self.model.trainable_variables:
            raise FusionctlError(
                f"the first step reduced nothing: optimizer '{optimizer.name}' is not wrapped; compile the model with "
                "fusionctl.keras.DistributedOptimizer(optimizer)"
            )


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Average each epoch's metrics, the validation's among them, over the ranks.

    All callbacks see the averages, wherever this one is listed, and so does the History that `fit` returns; so
    EarlyStopping and ReduceLROnPlateau decide alike on all ranks.  A metric that only some ranks have, as those of a
    validation on rank 0, or of an epoch in which a rank has no batches, is averaged over these, and all ranks get it.
    Only numbers are averaged, no arrays, and neither the logs of single batches nor what `evaluate` returns or shows at
    its end.  Two all-reduces an epoch.

    Each rank counts the same; with `weighted` it counts by the number of samples that its metrics are of, so that they
    are those of one process, as far as a metric is a mean over samples.  These are the samples that the model's "loss"
    metric has counted, to which Keras's own `train_step` adds every batch's, exactly up to 2**24 an epoch and rank.
    Raises UsageError for a model without one, and on all ranks where it has counted nothing.
    """

    def __init__(self, device: str = "", weighted: bool = False) -> None:
        super().__init__()
        self.weighted = weighted
        self.averages: dict[str, Any] | None = None
        self._trained: float | None = None
        self._tested = 0.0
        self._counts = False
        hooks.install()

    def on_train_begin(self, logs: Logs = None) -> None:
        """Forget an earlier fit."""
        self.averages = None
        self._counts = False
        if self.weighted:
            self._samples()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Forget the epoch before."""
        self._trained, self._tested = None, 0.0

    def on_test_begin(self, logs: Logs = None) -> None:
        """Note the samples of the training, before the validation resets their number."""
        if self._trained is None:
            self._trained = self._samples()

    def on_test_end(self, logs: Logs = None) -> None:
        """Note the samples of the validation."""
        self._tested = self._samples()

    def average_epoch(self, logs: dict[str, Any]) -> dict[str, Any]:
        """The logs that all callbacks get at the end of an epoch."""
        trained = self._samples() if self._trained is None else self._trained
        self._counts |= trained > 0
        if self._counts and trained == 0:  # an epoch without batches, in which Keras gives metrics of nothing
            logs = {name: value for name, value in logs.items() if name.startswith("val_")}
        if not self.weighted:
            self.averages = metrics.average(logs, lambda name: 1.0)
        else:
            self.averages = metrics.average(logs, lambda name: self._tested if name.startswith("val_") else trained)
        return dict(self.averages)

    def average_training(self, logs: dict[str, Any]) -> dict[str, Any]:
        """The logs that all callbacks get at the end of the training."""
        return self.averages or logs

    def _samples(self) -> float:
        count = metrics.samples_seen(self.model)
        if count is None and self.weighted:
            raise UsageError(
                f"MetricAverageCallback(weighted=True): model '{self.model.name}' has no metric 'loss' that counts "
                "samples; compile it with a loss, or leave weighted at False"
            )
        return count or 0.0
