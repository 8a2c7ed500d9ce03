"""Settings of all tests: hypothesis draws the same examples everywhere, which on several ranks it must; an option."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, database=None, derandomize=True)
settings.register_profile("explore", deadline=None, database=None, max_examples=2000, print_blob=True)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that halves the runs of the slow folders of tests/mpi."""
    parser.addoption(
        "--frameworks-at",
        choices=["odd", "even", "all"],
        default="all",
        help="numbers of ranks at which the tests of TensorFlow and Keras run; those of the engine run at all",
    )
