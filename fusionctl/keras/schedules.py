"""Callbacks that set the learning rate by epoch: a schedule, and the gradual warm-up of large batches.

Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), section 2.2 and remark 2 of section
3: where the velocity v contains the learning rate, as in v = m * v - rate * gradient, a change of the rate must scale v
too (momentum correction).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.keras.agreement import most_steps
from fusionctl.runtime import rank, size

Logs = dict[str, Any] | None
Multiplier = float | Callable[[float], float]


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Set the learning rate to `initial_lr * multiplier(epoch)` in the epochs from `start_epoch` to before `end_epoch`.

    A number m as `multiplier` means m ** (epoch - start_epoch).  With `staircase` the rate is set at the first batch of
    an epoch; otherwise at each batch, of the fractional epoch: `steps_per_epoch`, that of the rank with most steps, is
    then needed where Keras does not know it on all ranks, and with `steps_per_execution` n it is each n-th batch.  The
    rate at the end of an epoch is `logs["lr"]`.  A LossScaleOptimizer's rate is that of the optimizer inside.

    `momentum_correction` scales the velocity slots of SGD and RMSprop, and of what is derived from them, by new rate /
    old rate at the batch before which the rate changes.  Horovod changed the coefficient `momentum` for that batch,
    which comes to the same but for Nesterov's look-ahead; in Keras 3 a traced step holds it as a constant.  Other
    optimizers' slots do not contain the rate.  Raises UsageError when training begins with an optimizer whose rate
    cannot be set: one with a LearningRateSchedule of its own, or a MultiOptimizer.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise UsageError(f"{type(self).__name__} needs initial_lr, the rate that the multiplier is applied to")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self._multiplier = multiplier if callable(multiplier) else _powers(multiplier, start_epoch)
        self._epoch = 0
        self._scale_velocity: Callable[[tf.Tensor], None] | None = None

    def on_train_begin(self, logs: Logs = None) -> None:
        """Find out what there is to set, and how many steps an epoch has."""
        _rate_of(self._optimizer(), type(self).__name__)
        self._scale_velocity = None
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = most_steps(self.params.get("steps"))
            if not self.steps_per_epoch:
                raise UsageError(
                    f"{type(self).__name__} changes the rate within epochs, but Keras does not know on all ranks how "
                    "many steps one has; give the callback steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Remember which epoch it is."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Set the rate of this batch."""
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if self.staircase:
            if batch == 0:
                self._set(self._epoch)
        else:
            assert self.steps_per_epoch
            self._set(self._epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Show the rate to the callbacks after this one, and to the History."""
        if logs is not None:
            logs["lr"] = float(self._optimizer().learning_rate)

    def _optimizer(self) -> Any:
        optimizer = self.model.optimizer
        return getattr(optimizer, "inner_optimizer", optimizer)

    def _set(self, epoch: float) -> None:
        optimizer = self._optimizer()
        rate = _rate_of(optimizer, type(self).__name__)
        old = float(rate)
        rate.assign(self.initial_lr * self._multiplier(epoch))
        if self.momentum_correction and old not in (0.0, float(rate)):
            if self._scale_velocity is None and optimizer.built:
                self._scale_velocity = _scaling(_velocities(optimizer))
            if self._scale_velocity is not None:
                self._scale_velocity(tf.constant(float(rate) / old, tf.float64))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the rate from `initial_lr / size` to `initial_lr` over the first epochs, a little at each batch.

    `initial_lr` is the rate for all ranks together, say the one for a single rank times size.  After `warmup_epochs`
    the rate is left alone.  With `verbose` 1 rank 0 prints when that is.  Other arguments and errors are those of
    LearningRateScheduleCallback.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._warm,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Say that the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and rank() == 0:
            rate = float(self._optimizer().learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")

    def _warm(self, epoch: float) -> float:
        assert self.steps_per_epoch
        epoch += 1.0 / self.steps_per_epoch  # round numbers at the end of epochs
        return (epoch * (size() - 1) / self.warmup_epochs + 1) / size()


def _powers(base: float, start_epoch: int) -> Callable[[float], float]:
    return lambda epoch: float(base ** (epoch - start_epoch))


def _rate_of(optimizer: Any, who: str) -> Any:
    """The variable that holds the rate."""
    rate = getattr(optimizer, "_learning_rate", None)
    if isinstance(rate, keras.Variable) and not hasattr(optimizer, "optimizers"):
        return rate
    holds = "several optimizers" if hasattr(optimizer, "optimizers") else f"a {type(rate).__name__} of its own"
    raise UsageError(
        f"optimizer '{optimizer.name}' has {holds}, so {who} cannot set its learning rate; give the optimizer a number "
        "as learning_rate, or leave the callback away"
    )


def _velocities(optimizer: Any) -> list[Any]:
    """The slots that contain the learning rate."""
    if isinstance(optimizer, keras.optimizers.SGD):
        slots = optimizer.momentums
    elif isinstance(optimizer, keras.optimizers.RMSprop):
        slots = optimizer._momentums
    else:
        slots = []
    return [slot for slot in slots if slot is not None]


def _scaling(slots: list[Any]) -> Callable[[tf.Tensor], None]:
    def scale(factor: tf.Tensor) -> None:
        for slot in slots:
            slot.assign(slot * tf.cast(factor, slot.dtype))

    return tf.function(scale, autograph=False) if slots else scale
