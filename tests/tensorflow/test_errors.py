"""AutoGraph lets fusionctl's errors through as they are."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from fusionctl import errors

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_a_traced_function_is_of_its_kind(kind: Any) -> None:
    def step() -> None:
        raise kind("tensor 'x' is wrong")

    with pytest.raises(kind, match="tensor 'x' is wrong"):
        tf.function(step)()
