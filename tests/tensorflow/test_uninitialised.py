"""What Horovod's users meet without `init`, and what is reserved for later: errors that say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fusionctl
import fusionctl.tensorflow as fusion
from fusionctl.keras import elastic as keras_elastic
from fusionctl.tensorflow import elastic


@pytest.mark.parametrize(
    "call",
    [
        fusion.rank,
        fusion.size,
        fusion.local_rank,
        fusion.cross_size,
        fusion.size_op,
        lambda: fusion.allreduce(1.0),
        lambda: fusion.allreduce_async(1.0),
        lambda: fusion.allgather_object(1),
        lambda: fusion.start_timeline("traces", mark_cycles=True),
    ],
)
def test_before_init_a_call_is_the_value_error_that_horovod_raises(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"fusionctl has not been initialised; call fusionctl.init\(\) first"):
        call()


def test_before_init_no_process_set_includes_this_rank() -> None:
    assert int(fusion.process_set_included_op()) == -1
    assert not fusion.is_initialized()


@pytest.mark.parametrize("module", [elastic, keras_elastic], ids=lambda module: module.__name__)
def test_elastic_training_says_that_it_is_not_there(module: Any) -> None:
    keras_names = {"KerasState", "CommitStateCallback", "UpdateBatchStateCallback", "UpdateEpochStateCallback"}
    names = {"run"} | (keras_names if module is keras_elastic else {"TensorFlowState", "TensorFlowKerasState"})
    for name in names:
        text = f"elastic.{name}: a job does not survive the loss of a rank yet; save checkpoints"
        with pytest.raises(fusionctl.UsageError, match=text):
            getattr(module, name)(lambda state: None, batches_per_commit=3)
    assert fusion.elastic is elastic
