"""fusionctl for Keras 3 on TensorFlow: wrap the optimizer, broadcast the first weights, average the metrics."""

import keras

from fusionctl.errors import UsageError

if keras.backend.backend() != "tensorflow":
    raise UsageError(f"fusionctl.keras needs Keras on TensorFlow, but its backend is {keras.backend.backend()}")

from fusionctl.arrays import barrier, join
from fusionctl.keras import callbacks, elastic
from fusionctl.keras.loading import load_model
from fusionctl.keras.normalization import SyncBatchNormalization
from fusionctl.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from fusionctl.keras.values import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter
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
from fusionctl.tensorflow import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
    broadcast_object,
    broadcast_variables,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "PartialDistributedOptimizer",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
