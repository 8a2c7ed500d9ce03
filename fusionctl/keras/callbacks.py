"""Callbacks for `model.fit` on several ranks: equal initial state, averaged metrics."""

from __future__ import annotations

import zlib
from typing import Any

import keras
import numpy as np

import fusionctl
from fusionctl.errors import FusionctlError, MismatchError, UsageError
from fusionctl.keras.optimizer import reduction_of
from fusionctl.tensorflow.variables import broadcast_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Give every rank the root's weights, optimizer slots, iteration and loss scale before the first step.

    Also stops the job after the first step of a fit whose gradients were not reduced.  Variables that are not numbers
    are left alone.  Raises UsageError for a model without variables yet, FusionctlError for gradients not reduced.
    """

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self._steps = 0
        self._reduced_before = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Build the optimizer if need be, and broadcast."""
        if not self.model.built:
            raise UsageError(
                f"model '{self.model.name}' has no variables to broadcast yet; give it an Input or call "
                "model.build(input_shape) before fit"
            )
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        broadcast_variables(_numeric([*self.model.variables, *optimizer.variables]), root_rank=self.root_rank)
        self._steps = 0
        self._reduced_before = fusionctl.counters()["buckets"]

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Check once, before the second step: a hook after each step would make Keras wait for its results."""
        if self._steps == 1:
            self._check_reduced()
        self._steps += 1

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Check an epoch of a single step."""
        if self._steps == 1:
            self._check_reduced()

    def _check_reduced(self) -> None:
        optimizer = self.model.optimizer
        reduction = reduction_of(optimizer)
        if reduction is not None and not reduction.reached:
            raise FusionctlError(
                f"the first step did not call apply() of optimizer '{optimizer.name}' ({reduction.name}), so no "
                "gradient was averaged: let train_step() call optimizer.apply(gradients, model.trainable_variables)"
            )
        # A train_step of the user's own may reduce by DistributedGradientTape instead.
        if reduction is None and fusionctl.size() > 1 and fusionctl.counters()["buckets"] == self._reduced_before:
            raise FusionctlError(
                f"the first step reduced nothing: optimizer '{optimizer.name}' is not wrapped; compile the model with "
                "fusionctl.keras.DistributedOptimizer(optimizer)"
            )


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replace each epoch's metrics by their averages over the ranks, one all-reduce per epoch.

    Callbacks that are listed after this one, and the History that `fit` returns, see the averages; list it before
    ModelCheckpoint, EarlyStopping and the like.  Each rank counts the same, whatever its number of samples.  Raises
    MismatchError when the ranks have different metrics.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._averages: dict[str, float] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the numbers among the logs, in place."""
        if logs is None:
            return
        keys = sorted(key for key, value in logs.items() if np.ndim(value) == 0 and np.isreal(value))
        self._averages = _averaged(keys, [float(logs[key]) for key in keys])
        logs.update(self._averages)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """The last epoch's averages, once more: Keras hands out this rank's own values here."""
        if logs is not None:
            logs.update(self._averages)


def _averaged(keys: list[str], values: list[float]) -> dict[str, float]:
    # The checksum of the names travels along: equal counts of different metrics must not be mixed.
    checksum = float(zlib.crc32("\n".join(keys).encode()))
    average = fusionctl.allreduce(np.array([checksum, *values]), name="metrics of an epoch")
    if average[0] != checksum:
        raise MismatchError(
            f"the ranks have different metrics; rank {fusionctl.rank()} has {', '.join(keys)}: compile the model "
            "and give validation data alike on all ranks"
        )
    return dict(zip(keys, average[1:].tolist(), strict=True))


def _numeric(variables: list[Any]) -> list[Any]:
    return [variable for variable in variables if variable.dtype != "string"]
