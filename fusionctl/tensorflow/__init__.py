"""fusionctl for TensorFlow: collectives on tensors, a gradient tape and the broadcast of variables, by Horovod's names.

Call `init` first, `broadcast_variables` before the first step, and wrap the tape of a custom loop in
`DistributedGradientTape`.  `fusionctl.keras` does the same for `model.fit`.
"""

from fusionctl.request import ReduceOp
from fusionctl.runtime import init, is_initialized, local_rank, local_size, rank, shutdown, size
from fusionctl.tensorflow.backward import register_gradients
from fusionctl.tensorflow.compression import Compression
from fusionctl.tensorflow.gradients import reduce_gradients
from fusionctl.tensorflow.ops import allreduce, broadcast, grouped_allreduce
from fusionctl.tensorflow.tape import DistributedGradientTape, PartialDistributedGradientTape
from fusionctl.tensorflow.variables import broadcast_variables

register_gradients()

Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "Max",
    "Min",
    "PartialDistributedGradientTape",
    "Product",
    "Sum",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reduce_gradients",
    "shutdown",
    "size",
]
