"""fusionctl: coordination and fusion middleware for data-parallel training on MPI.

This module is the NumPy API; `fusionctl.tensorflow` and `fusionctl.keras` are the same engine for those frameworks.
"""

import fusionctl.forks  # noqa: F401 - before anything that imports MPI
from fusionctl._version import __version__
from fusionctl.arrays import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from fusionctl.errors import ConfigError, FusionctlError, MismatchError, MPIError, PeerError, UsageError
from fusionctl.objects import allgather_object, broadcast_object, broadcast_object_fn
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
    counters,
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

Adasum = ReduceOp.ADASUM
Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

__all__ = [
    "Adasum",
    "Average",
    "ConfigError",
    "FusionctlError",
    "MPIError",
    "Max",
    "Min",
    "MismatchError",
    "PeerError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "UsageError",
    "__version__",
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
    "broadcast_async",
    "broadcast_object",
    "broadcast_object_fn",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
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
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
