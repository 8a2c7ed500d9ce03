"""The names of Horovod's elastic training, reserved: a call says that a job does not survive the loss of a rank yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from fusionctl.errors import UsageError


def reserved(name: str) -> Callable[..., NoReturn]:
    """What stands for a name until there is more: UsageError when it is called."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"elastic.{name}: a job does not survive the loss of a rank yet; save checkpoints, and start the job again "
            "from the last one"
        )

    return refuse


run = reserved("run")
TensorFlowState = reserved("TensorFlowState")
TensorFlowKerasState = reserved("TensorFlowKerasState")
