"""DistributedGradientTape: a tf.GradientTape whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.request import ReduceOp, checked_op
from fusionctl.tensorflow.compression import Compression, Compressor
from fusionctl.tensorflow.gradients import Groups, reduce_gradients


class DistributedGradientTape:
    """Wraps a tape, before, after or while it records; everything but `gradient` is the wrapped tape's.

    Arguments are those of `reduce_gradients` and Horovod's: `gradient_predivide_factor` f divides by f before the sum
    and by size / f after it (Average only); `num_groups` is an older spelling of a number in `groups`; the devices have
    no effect.
    """

    def __init__(
        self,
        gradtape: tf.GradientTape,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Compressor = Compression.none,
        sparse_as_dense: bool = False,
        op: ReduceOp = ReduceOp.AVERAGE,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        groups: Groups = None,
    ) -> None:
        self._tape = gradtape
        self._reduction: dict[str, Any] = {
            "op": gradient_op(op),
            "compression": compression,
            "sparse_as_dense": sparse_as_dense,
            "groups": choose_groups(num_groups, groups),
            **predivide(gradient_predivide_factor, gradient_op(op)),
        }

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Gradients in the structure of `sources`, reduced; None where unconnected, on all ranks alike."""
        grads = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = reduce_gradients(_flat(grads), _flat(sources), **self._reduction)
        return tf.nest.pack_sequence_as(sources, reduced)

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._tape.__exit__(kind, error, where)

    def __getattr__(self, name: str) -> Any:
        if name == "_tape":  # not yet there, as when it is being copied
            raise AttributeError(name)
        return getattr(self._tape, name)


def predivide(factor: float, op: ReduceOp) -> dict[str, float]:
    """The factors before and after the sum that together leave the average as it is."""
    if factor == 1.0:
        return {}
    if op is not ReduceOp.AVERAGE:
        raise UsageError(f"gradient_predivide_factor is {factor} with op {op.name}; it is for Average only")
    return {"prescale": 1.0 / factor, "postscale": factor}


def gradient_op(op: object) -> ReduceOp:
    """The op by which gradients are combined; UsageError for others than Average and Sum."""
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(f"op is {op!r}; gradients can be combined by Average or Sum")
    return checked_op("gradients", op)


def choose_groups(num_groups: int, groups: Groups) -> Groups:
    """The groups that two spellings of them mean; 0 is none."""
    if num_groups and groups is not None:
        raise UsageError("both num_groups and groups are given; pass groups only")
    chosen = groups if groups is not None else num_groups
    number = isinstance(chosen, int) and chosen >= 0
    lists = isinstance(chosen, Sequence) and all(isinstance(each, Sequence) for each in chosen)
    if not number and (isinstance(chosen, str) or not lists):
        raise UsageError(f"groups is {chosen!r}; pass the number of groups, a list of lists of variables, or None")
    return chosen or None


def _flat(structure: Any) -> Sequence[Any]:
    flat: Sequence[Any] = tf.nest.flatten(structure)
    return flat
