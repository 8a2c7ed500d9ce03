"""Tests of the ranks together.

A file directly in this folder starts jobs itself with `launch.mpirun`: what kills ranks, or must exit non-zero.  A file
in a sub-folder is run by pytest on every rank of a job, at each of its SIZES, and fusionctl is initialised there; the
files of a sub-folder share one job for each size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks import RankFile, RankRun

HERE = Path(__file__).parent

if "PMI_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ:

    @pytest.fixture(scope="session", autouse=True)
    def initialised() -> Iterator[None]:
        """Every test on the ranks finds fusionctl initialised."""
        import fusionctl

        fusionctl.init()
        yield
        fusionctl.shutdown()

else:

    def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a file of a sub-folder as jobs of several sizes instead of as a module."""
        if module_path.parent == HERE:
            return None
        file: RankFile = RankFile.from_parent(parent, path=module_path)
        return file

    def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
        """Report each test that ran on the ranks."""
        if not isinstance(item, RankRun):
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in item.reports():
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True
