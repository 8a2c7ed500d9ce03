"""DistributedGradientTape: a tf.GradientTape whose gradients are reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from fusionctl.errors import UsageError
from fusionctl.process_sets import ProcessSet, checked_set, global_process_set
from fusionctl.request import ReduceOp, checked_op
from fusionctl.tensorflow.compression import Compression, Compressor, checked_compression
from fusionctl.tensorflow.gradients import Groups
from fusionctl.tensorflow.library import outside_autograph
from fusionctl.tensorflow.local import LocalSources, Pairs


class DistributedGradientTape:
    """Wraps a tape, before, after or while it records; everything but `gradient` is the wrapped tape's.

    Arguments are those of `reduce_gradients` and Horovod's: `gradient_predivide_factor` f divides by f before the sum
    and by size / f after it (Average only); `num_groups` is an older spelling of a number in `groups`; the devices have
    no effect.  `scale_local_gradients` divides the gradients of local sources by the number of ranks in `process_set`.
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
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
    ) -> None:
        if isinstance(gradtape, DistributedGradientTape) or not hasattr(gradtape, "gradient"):
            raise UsageError(f"DistributedGradientTape wraps a tf.GradientTape, once, not {gradtape!r}")
        self._tape = gradtape
        self._local = LocalSources(scale_local_gradients, checked_set(process_set))
        self._reduction: dict[str, Any] = {
            "op": gradient_op(op),
            "compression": checked_compression(compression),
            "sparse_as_dense": sparse_as_dense,
            "groups": choose_groups(num_groups, groups),
            **predivide(gradient_predivide_factor, gradient_op(op)),
        }

    @outside_autograph
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Gradients in the structure of `sources`, reduced over the ranks.

        All ranks pass sources of the same names, or of the same number with `use_generic_names`.  What is unconnected
        on some ranks only counts as zeros there; see `reduce_gradients` for what is so on all.
        """
        grads = self._tape.gradient(target, sources, output_gradients, unconnected_gradients)
        reduced = self._local.reduce(
            _flat(grads), _flat(sources), use_generic_names=use_generic_names, **self._reduction
        )
        return tf.nest.pack_sequence_as(sources, reduced)

    def register_local_source(self, source: Any) -> None:
        """Keep a variable to this rank: its gradient is not reduced; every rank registers variables of its own."""
        self._local.register(source)

    def register_local_layers(self, layers: Any) -> None:
        """Keep the trainable weights of a Keras layer, or of a list of them, to this rank."""
        self._local.register_layers(layers)

    def get_local_and_global_gradients(self, grads: Sequence[Any], sources: Sequence[Any]) -> tuple[Pairs, Pairs]:
        """Pairs of gradient and source: those of local sources, scaled, and those that are to be reduced."""
        return self._local.split(grads, sources)

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


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedGradientTape:
    """A DistributedGradientTape that keeps the trainable weights of `local_layers` to this rank.

    `local_layers` is a Keras layer or a list of them, built or not; the other arguments are those of
    `DistributedGradientTape`.  UsageError for what is no layer.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    tape.register_local_layers(local_layers)
    return tape


def predivide(factor: float, op: ReduceOp) -> dict[str, float]:
    """The factors before and after the sum that together leave the average as it is."""
    if not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
        raise UsageError(f"gradient_predivide_factor is {factor!r}; give a number above 0")
    if factor == 1.0:
        return {}
    if op is not ReduceOp.AVERAGE:
        raise UsageError(f"gradient_predivide_factor is {factor} with op {op.name}; it is for Average only")
    return {"prescale": 1.0 / factor, "postscale": factor}


def gradient_op(op: object) -> ReduceOp:
    """The op by which gradients are combined; UsageError for others than Average, Sum and Adasum."""
    if op not in (ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM):
        raise UsageError(f"op is {op!r}; gradients can be combined by Average, Sum or Adasum")
    return checked_op("gradients", op)


def checked_passes(passes: int) -> int:
    """`backward_passes_per_step`; UsageError unless it is a positive number."""
    if not isinstance(passes, int) or passes < 1:
        raise UsageError(f"backward_passes_per_step is {passes!r}; give the number of passes to add up, 1 or more")
    return passes


def choose_groups(num_groups: int, groups: Groups) -> Groups:
    """The groups that two spellings of them mean; 0 is none."""
    if num_groups and groups is not None:
        raise UsageError("both num_groups and groups are given; pass groups only")
    chosen = groups if groups is not None else num_groups
    number = isinstance(chosen, int) and chosen >= 0
    lists = isinstance(chosen, Sequence) and all(
        isinstance(each, Sequence) and all(hasattr(variable, "shape") for variable in each) for each in chosen
    )
    if not number and (isinstance(chosen, str) or not lists):
        raise UsageError(f"groups is {chosen!r}; pass the number of groups, a list of lists of variables, or None")
    return chosen or None


def _flat(structure: Any) -> Sequence[Any]:
    flat: Sequence[Any] = tf.nest.flatten(structure)
    return flat
