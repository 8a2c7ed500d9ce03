"""fusionctl for TensorFlow: collectives on tensors, a gradient tape and the broadcast of variables, by Horovod's names.

Call `init` first, `broadcast_variables` before the first step, and wrap the tape of a custom loop in
`DistributedGradientTape`.  `fusionctl.keras` does the same for `model.fit`.
"""

from typing import Any

from fusionctl.arrays import barrier, join, poll, synchronize
from fusionctl.probes import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from fusionctl.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from fusionctl.request import ReduceOp
from fusionctl.runtime import (
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from fusionctl.tensorflow import elastic
from fusionctl.tensorflow.asynchronous import (
    allgather_async,
    allreduce_async,
    alltoall_async,
    broadcast_async,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_reducescatter_async,
    reducescatter_async,
)
from fusionctl.tensorflow.backward import register_gradients
from fusionctl.tensorflow.compression import Compression
from fusionctl.tensorflow.gradients import reduce_gradients
from fusionctl.tensorflow.objects import allgather_object, broadcast_object, broadcast_object_fn
from fusionctl.tensorflow.ops import allreduce, broadcast, grouped_allreduce
from fusionctl.tensorflow.optimizer import DistributedOptimizer
from fusionctl.tensorflow.places import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from fusionctl.tensorflow.rows import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from fusionctl.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from fusionctl.tensorflow.variables import (
    BroadcastGlobalVariablesHook,
    broadcast_,
    broadcast_global_variables,
    broadcast_variables,
)

register_gradients()

Adasum = ReduceOp.ADASUM
Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "process_set_included_op",
    "rank",
    "rank_op",
    "reduce_gradients",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":
        from fusionctl import keras  # upwards, and only to hand over

        return keras.SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
