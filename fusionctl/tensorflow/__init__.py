"""fusionctl for TensorFlow: collectives on tensors, a gradient tape and the broadcast of variables, by Horovod's names.

Call `init` first, `broadcast_variables` before the first step, and wrap the tape of a custom loop in
`DistributedGradientTape`.  `fusionctl.keras` does the same for `model.fit`.
"""

from fusionctl.arrays import barrier, join
from fusionctl.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from fusionctl.request import ReduceOp
from fusionctl.runtime import init, is_initialized, local_rank, local_size, rank, shutdown, size
from fusionctl.tensorflow.backward import register_gradients
from fusionctl.tensorflow.compression import Compression
from fusionctl.tensorflow.gradients import reduce_gradients
from fusionctl.tensorflow.ops import allreduce, broadcast, grouped_allreduce
from fusionctl.tensorflow.rows import allgather, alltoall, grouped_allgather, grouped_reducescatter, reducescatter
from fusionctl.tensorflow.tape import DistributedGradientTape
from fusionctl.tensorflow.variables import broadcast_variables

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
    "Compression",
    "DistributedGradientTape",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_variables",
    "global_process_set",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "reduce_gradients",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
]
