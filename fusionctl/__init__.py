"""fusionctl: coordination and fusion middleware for data-parallel training on MPI.

This module is the NumPy API; `fusionctl.tensorflow` and `fusionctl.keras` are the same engine for those frameworks.
"""

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
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from fusionctl.errors import ConfigError, FusionctlError, MismatchError, MPIError, PeerError, UsageError
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
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "counters",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
