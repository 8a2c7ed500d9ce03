"""A programme written for Horovod finds its names, and their arguments where they were, under either import line."""

from __future__ import annotations

import inspect

import keras
import pytest

import fusionctl.keras as fusion
import fusionctl.tensorflow.keras as hvd
import fusionctl.tensorflow.keras.callbacks as hvd_callbacks

SIZES = (1,)

NAMES = """
    init shutdown is_initialized size rank local_size local_rank cross_size cross_rank is_homogeneous
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built
    rocm_built start_timeline stop_timeline ProcessSet global_process_set add_process_set remove_process_set
    Average Sum Adasum Compression DistributedOptimizer PartialDistributedOptimizer broadcast_global_variables
    allreduce allgather broadcast reducescatter broadcast_object join barrier load_model callbacks
    SyncBatchNormalization
"""

ARGUMENTS = {
    "DistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    "PartialDistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients num_groups groups process_set "
    "local_layers scale_local_gradients",
    "allreduce": "value name average prescale_factor postscale_factor op compression process_set",
    "allgather": "value name process_set",
    "broadcast": "value root_rank name process_set",
    "reducescatter": "value name op process_set",
    "load_model": "filepath custom_optimizers custom_objects compression legacy_opts",
}

CALLBACKS = """
    BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback LearningRateWarmupCallback
    BestModelCheckpoint
"""


def test_names_are_there_and_both_modules_have_the_same() -> None:
    assert set(NAMES.split()) <= set(fusion.__all__) == set(hvd.__all__)
    for name in set(fusion.__all__) - {"callbacks"}:  # two modules of the same objects
        assert getattr(hvd, name) is getattr(fusion, name)
    assert set(CALLBACKS.split()) <= set(fusion.callbacks.__all__)
    for name in fusion.callbacks.__all__:
        assert getattr(hvd_callbacks, name) is getattr(hvd.callbacks, name) is getattr(fusion.callbacks, name)


@pytest.mark.parametrize(("name", "arguments"), ARGUMENTS.items(), ids=ARGUMENTS)
def test_arguments_stand_where_they_stood(name: str, arguments: str) -> None:
    parameters = inspect.signature(getattr(fusion, name)).parameters.values()
    assert [each.name for each in parameters] == arguments.split()
    assert {each.kind for each in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


def test_a_partial_optimizer_takes_its_arguments_by_position() -> None:
    layer = keras.layers.Dense(1)
    layer.build((None, 1))
    optimizer = fusion.PartialDistributedOptimizer(
        *(keras.optimizers.SGD(1.0), "partial", "", "", fusion.Compression.none, False, 1.0, fusion.Sum, 1, False, 0),
        *(None, fusion.global_process_set, layer, False),
    )
    assert optimizer._reduction.local.all() == layer.trainable_variables
