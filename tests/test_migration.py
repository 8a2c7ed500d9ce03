"""docs/migrating-from-horovod.md keeps its word: its rows are all of Horovod's names, and say of each what is so.

What is "same" or "better" takes Horovod's arguments, at their places; what is "no" is not there.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from fusionctl.config import HOROVOD, Config, _variables
from fusionctl.errors import UsageError

GUIDE = (Path(__file__).parents[1] / "docs" / "migrating-from-horovod.md").read_text()

PLACES = """
    init shutdown is_initialized size rank local_size local_rank cross_size cross_rank is_homogeneous
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built
    rocm_built start_timeline stop_timeline ProcessSet global_process_set add_process_set remove_process_set
    Average Sum Adasum Compression DistributedOptimizer elastic
"""

NAMES = {
    "horovod.tensorflow": f"""{PLACES}
        rank_op local_rank_op size_op local_size_op process_set_included_op Min Max Product
        allreduce grouped_allreduce allgather grouped_allgather broadcast broadcast_ broadcast_variables
        broadcast_global_variables BroadcastGlobalVariablesHook broadcast_object broadcast_object_fn allgather_object
        alltoall reducescatter grouped_reducescatter join DistributedGradientTape PartialDistributedGradientTape
        SyncBatchNormalization""",
    "horovod.keras and horovod.tensorflow.keras": f"""{PLACES}
        PartialDistributedOptimizer allreduce allgather broadcast reducescatter broadcast_global_variables load_model
        callbacks""",
    "horovod.keras.callbacks": """
        BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback LearningRateWarmupCallback
        BestModelCheckpoint""",
    "horovod.tensorflow.elastic": "run TensorFlowState TensorFlowKerasState",
    "horovod.keras.elastic": "run KerasState CommitStateCallback UpdateBatchStateCallback UpdateEpochStateCallback",
    "horovod.torch": """
        allreduce_async grouped_allreduce_async allgather_async grouped_allgather_async broadcast_async alltoall_async
        reducescatter_async grouped_reducescatter_async poll synchronize barrier allreduce_ allreduce_async_
        grouped_allreduce_ grouped_allreduce_async_ broadcast_async_ sparse_allreduce_async broadcast_parameters
        broadcast_optimizer_state SyncBatchNorm""",
}
"""What Horovod 0.28.1 has, by module; of its PyTorch half only what the TensorFlow half lacks."""

REDUCING = "device_dense device_sparse compression sparse_as_dense"
TAPE = f"gradtape {REDUCING} op gradient_predivide_factor num_groups groups process_set"
ALLREDUCE = "average device_dense device_sparse compression op prescale_factor postscale_factor name process_set"
REDUCESCATTER = "device_dense compression op name process_set ignore_name_scope prescale_factor postscale_factor"

ARGUMENTS = {
    "init": "comm process_sets",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "start_timeline": "path mark_cycles",
    "rank_op": "name",
    "local_rank_op": "name",
    "size_op": "process_set_id name",
    "process_set_included_op": "process_set_id name",
    "local_size_op": "name",
    "allreduce": f"tensor {ALLREDUCE} ignore_name_scope",
    "grouped_allreduce": f"tensors {ALLREDUCE} ignore_name_scope",
    "allgather": "tensor name ignore_name_scope process_set",
    "grouped_allgather": "tensors name ignore_name_scope process_set",
    "broadcast": "tensor root_rank name ignore_name_scope process_set",
    "broadcast_": "variables root_rank name process_set",
    "broadcast_variables": "variables root_rank process_set inplace",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": "root_rank device",
    "broadcast_object": "obj root_rank session name process_set",
    "broadcast_object_fn": "root_rank session name process_set",
    "allgather_object": "obj session name process_set",
    "alltoall": "tensor splits name ignore_name_scope process_set",
    "reducescatter": f"tensor {REDUCESCATTER}",
    "grouped_reducescatter": f"tensors {REDUCESCATTER}",
    "DistributedOptimizer": f"optimizer name use_locking {REDUCING} backward_passes_per_step op "
    "gradient_predivide_factor average_aggregated_gradients num_groups groups process_set scale_local_gradients",
    "DistributedGradientTape": f"{TAPE} scale_local_gradients",
    "PartialDistributedGradientTape": f"{TAPE} local_layers scale_local_gradients",
    "SyncBatchNormalization": "fused",
    "poll": "handle",
    "synchronize": "handle",
    "BroadcastGlobalVariablesCallback": "root_rank device local_variables",
    "MetricAverageCallback": "device",
    "LearningRateScheduleCallback": "initial_lr multiplier start_epoch end_epoch staircase momentum_correction "
    "steps_per_epoch",
    "LearningRateWarmupCallback": "initial_lr warmup_epochs momentum_correction steps_per_epoch verbose",
}
"""Horovod's, in its order, of what may be called by them; the arguments of fusionctl.keras have a test on ranks."""

FLAGS = """
    -v -np -cb -p -i -H -hostfile --num-proc --check-build --disable-cache --start-timeout --network-interfaces
    --network-interface --output-filename --verbose --config-file --ssh-port --ssh-identity-file --fusion-threshold-mb
    --cycle-time-ms --cache-capacity --hierarchical-allreduce --hierarchical-allgather --torus-allreduce --autotune
    --no-autotune --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
    --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --max-np --slots-per-host
    --elastic-timeout --reset-limit --blacklist-cooldown-range --host-discovery-script --timeline-filename
    --timeline-mark-cycles --no-timeline-mark-cycles --stall-check --no-stall-check --stall-check-warning-time-seconds
    --stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp --binding-args
    --num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level --log-with-timestamp
    --log-without-timestamp --prefix-output-with-timestamp --hosts --gloo --mpi --jsrun
"""
"""Of horovodrun."""

ROW = re.compile(r"^\| `(\w+)` \| (\S+) \|", re.MULTILINE)


def section(title: str) -> str:
    """The text under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", GUIDE, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title!r}"
    return found[1]


def rows() -> list[tuple[str, str, str]]:
    """Module here, name and state of every row of names."""
    listed = []
    for title in NAMES:
        text = section(title)
        (module,) = re.findall(r"^Here: `([\w.]+)`", text, re.MULTILINE)
        listed += [(module, name, state) for name, state in ROW.findall(text)]
    return listed


ROWS = rows()


def find(module: str, name: str) -> Any:
    """What the name stands for; AttributeError or ImportError if it is not there."""
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("title", NAMES)
def test_each_name_has_one_row(title: str) -> None:
    names = [name for name, _ in ROW.findall(section(title))]
    assert sorted(names) == sorted(NAMES[title].split())


@pytest.mark.parametrize(("module", "name", "state"), ROWS, ids=[f"{module}.{name}" for module, name, _ in ROWS])
def test_a_name_is_as_its_row_says(module: str, name: str, state: str) -> None:
    if state == "no":
        with pytest.raises(AttributeError):
            find(module, name)
        return
    found = find(module, name)
    if state == "reserved":
        with pytest.raises(UsageError):
            found(0)
    elif state in ("same", "better"):
        check_arguments(module, name, found)
    else:
        assert state == "differs"


def check_arguments(module: str, name: str, found: Any) -> None:
    if name in ARGUMENTS and module != "fusionctl.keras":
        expected = ARGUMENTS[name].split()
        assert list(inspect.signature(found).parameters)[: len(expected)] == expected


@pytest.mark.parametrize("module", ["fusionctl.tensorflow", "fusionctl.keras"])
def test_what_a_module_has_of_horovods_names_has_a_row(module: str) -> None:
    exported = set(importlib.import_module(module).__all__)
    everywhere = {name for names in NAMES.values() for name in names.split()}
    listed = {name for _, name, state in ROWS if state != "no"}
    assert exported & everywhere <= listed


def test_the_alias_is_the_same_module_by_another_name() -> None:
    keras, alias = (importlib.import_module(name) for name in ("fusionctl.keras", "fusionctl.tensorflow.keras"))
    assert alias.__all__ == keras.__all__


def test_variables_that_count_have_a_row_that_says_as_what() -> None:
    taken = {
        variable: f"`{ours}`"
        for ours, *theirs in (list(kinds) for kinds in _variables().values())
        for variable in theirs
    }
    assert all(variable.startswith(HOROVOD) for variable in taken)
    said = dict(ROW.findall(section("Environment variables")))
    assert {variable: ours for variable, ours in said.items() if ours != "no"} == taken


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bFUSIONCTL_[A-Z_]+", GUIDE))))
def test_our_variables_exist(name: str) -> None:
    assert name in {variable for kinds in _variables().values() for variable in kinds}


def test_variables_that_mean_nothing_are_named_to_the_user() -> None:
    meaningless = [name for name, ours in ROW.findall(section("Environment variables")) if ours == "no"]
    (note,) = Config.from_env(dict.fromkeys(meaningless, "1")).notes
    assert note[1] == f"without meaning here and ignored: {', '.join(sorted(meaningless))}"


def test_every_flag_of_horovodrun_has_one_row() -> None:
    cells = re.findall(r"^\| (`-.*?) \|", section("horovodrun"), re.MULTILINE)
    flags = [flag for cell in cells for flag in re.findall(r"`(-[\w-]+)`", cell)]
    assert len(flags) == len(set(flags))
    assert set(FLAGS.split()) <= set(flags)
