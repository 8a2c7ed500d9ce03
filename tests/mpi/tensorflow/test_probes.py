"""The law: ranks and sizes are the same as numbers and as tensors, and a build says what it has."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

import fusionctl
import fusionctl.tensorflow as fusion


def places() -> list[int]:
    return [fusion.rank(), fusion.size(), fusion.local_rank(), fusion.local_size()]


def test_ops_in_eager_mode_functions_and_graphs_of_tensorflow_1() -> None:
    def tensors() -> list[tf.Tensor]:
        return [fusion.rank_op(), fusion.size_op(name="n"), fusion.local_rank_op(), fusion.local_size_op()]

    assert [int(x) for x in tensors()] == places()
    assert [int(x) for x in tf.function(tensors)()] == places()
    assert {x.dtype for x in tensors()} == {tf.int32}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert session.run(tensors()) == places()


def test_ops_of_process_sets() -> None:
    def tensors(number: int) -> list[int]:
        return [int(op(process_set_id=number)) for op in (fusion.size_op, fusion.process_set_included_op)]

    assert tensors(0) == [fusion.size(), 1]
    assert tf.function(fusion.process_set_included_op)().dtype == tf.int32
    if fusion.size() > 1:
        added = fusion.add_process_set([0])
        number = added.process_set_id
        assert number is not None
        assert tensors(number) == [1, int(fusion.rank() == 0)]
        fusion.remove_process_set(added)
        assert int(fusion.process_set_included_op(number)) == -2
        with pytest.raises(fusionctl.UsageError, match=f"there is no process set {number}"):
            fusion.size_op(number)


def test_the_ranks_of_one_node() -> None:
    assert (fusion.local_rank(), fusion.local_size()) == (fusion.rank(), fusion.size())
    assert (fusion.cross_rank(), fusion.cross_size(), fusion.is_homogeneous()) == (0, 1, True)


@pytest.mark.parametrize("module", [fusion, fusionctl], ids=lambda module: module.__name__)
def test_what_is_built(module: ModuleType) -> None:
    names = ("mpi_built", "mpi_enabled", "gloo_built", "gloo_enabled", "nccl_built", "ddl_built", "ccl_built")
    assert [getattr(module, name)() for name in names] == [True, True, False, False, 0, False, False]
    assert [module.cuda_built(), module.rocm_built()] == [False, False]
    assert module.mpi_threads_supported()


def test_objects_take_a_session() -> None:
    sent = np.arange(3) if fusion.rank() == 0 else None
    np.testing.assert_array_equal(fusion.broadcast_object(sent, 0, session=None, name="array"), [0, 1, 2])
    assert fusion.broadcast_object_fn(0, session=None, name="text")("text" * (1 + fusion.rank())) == "text"
    everyone = fusion.allgather_object(fusion.rank(), session=None, name="ranks", process_set=fusion.global_process_set)
    assert everyone == list(range(fusion.size()))
