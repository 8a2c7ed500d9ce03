"""Broadcast of variables, so that all ranks start from the same weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from fusionctl.request import Group
from fusionctl.tensorflow.library import exchange, outside_autograph
from fusionctl.tensorflow.names import variable_names
from fusionctl.tensorflow.ops import broadcast_request


@outside_autograph
def broadcast_variables(variables: Iterable[Any], root_rank: int) -> None:
    """Assign the root rank's values to the variables, tf.Variables or Keras's, on every rank; one group.

    All ranks pass the same variables in the same order.  In a tf.function the assignments are part of the step.
    """
    listed = list(variables)
    if not listed:
        return
    names = variable_names(listed)
    values = [tf.convert_to_tensor(variable) for variable in listed]
    requests = tuple(
        broadcast_request(f"broadcast/{name}", value, root_rank) for name, value in zip(names, values, strict=True)
    )
    received = exchange(values, [Group("broadcast_variables", requests)])
    for variable, value in zip(listed, received, strict=True):
        variable.assign(value)
