"""The names of Horovod's elastic training with Keras, reserved like those of `fusionctl.tensorflow.elastic`."""

from fusionctl.tensorflow.elastic import reserved, run

KerasState = reserved("KerasState")
CommitStateCallback = reserved("CommitStateCallback")
UpdateBatchStateCallback = reserved("UpdateBatchStateCallback")
UpdateEpochStateCallback = reserved("UpdateEpochStateCallback")

__all__ = ["CommitStateCallback", "KerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback", "run"]
