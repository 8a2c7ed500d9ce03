"""fusionctl: coordination and fusion middleware for data-parallel training on MPI.

This module is the NumPy API; `fusionctl.tensorflow` and `fusionctl.keras` are the same engine for those frameworks.
"""

import fusionctl.forks  # noqa: F401 - before anything that imports MPI
from fusionctl._version import __version__
from fusionctl.arrays import (
    allreduce,
    allreduce_async,
    barrier,
    broadcast,
    grouped_allreduce,
    grouped_allreduce_async,
)
from fusionctl.errors import ConfigError, FusionctlError, MismatchError, MPIError, PeerError, UsageError
from fusionctl.objects import broadcast_object, broadcast_object_fn
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

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

__all__ = [
    "Average",
    "ConfigError",
    "FusionctlError",
    "MPIError",
    "Max",
    "Min",
    "MismatchError",
    "PeerError",
    "Product",
    "ReduceOp",
    "Sum",
    "UsageError",
    "__version__",
    "allreduce",
    "allreduce_async",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_object_fn",
    "ccl_built",
    "counters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
