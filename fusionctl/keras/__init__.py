"""fusionctl for Keras 3 on TensorFlow: wrap the optimizer, broadcast the first weights, average the metrics."""

import keras

from fusionctl.errors import UsageError

if keras.backend.backend() != "tensorflow":
    raise UsageError(f"fusionctl.keras needs Keras on TensorFlow, but its backend is {keras.backend.backend()}")

from fusionctl.keras import callbacks
from fusionctl.keras.loading import load_model
from fusionctl.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from fusionctl.keras.values import allreduce, broadcast, broadcast_global_variables
from fusionctl.tensorflow import (
    Average,
    Compression,
    Sum,
    broadcast_variables,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "Sum",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
