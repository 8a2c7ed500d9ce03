"""pytest on every rank of a job, test by test in step: `lockstep.py FOLDER SIZE PYTEST-ARGS...` under rank.py.

The ranks meet after each test over a shared file, without MPI, which is what is being tested.  A failure on one rank
ends the session on all of them, since what the others still have in flight cannot be known; ranks that do not come
because they wait for the one that failed are made to show their stacks first.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rank import arm, prepare, rank_of_launcher

STARTUP = 180
"""Seconds for importing and collecting, and for a test's fixtures; TensorFlow takes 5 s of a core on each rank."""

LIMIT = 60
"""Seconds for a test that has no mark `limit`."""

PATIENCE = 5
"""Seconds that a rank whose test failed waits for the others to finish the same test."""

LEFT = -(1 << 40)


class Board:
    """A file that all ranks map: of each rank the tests that it finished, negative once one failed, and its pid."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 16 * size)
        self._map = mmap.mmap(fd, 16 * size)
        os.close(fd)
        self._rank, self._size = rank, size
        struct.pack_into("q", self._map, 16 * rank + 8, os.getpid())

    def post(self, count: int) -> None:
        """Say how many tests this rank finished."""
        struct.pack_into("q", self._map, 16 * self._rank, count)

    def behind(self, count: int) -> list[int]:
        """Process ids of the ranks that did not finish that many."""
        return [pid for done, pid in self._rows() if abs(done) < count]

    def failed(self) -> bool:
        """Whether a test failed on some rank, or some rank left."""
        return any(done < 0 for done, _ in self._rows())

    def _rows(self) -> list[tuple[int, int]]:
        return [struct.unpack_from("qq", self._map, 16 * rank) for rank in range(self._size)]


class Lockstep:
    """The plug-in: writes reports for the process that started the job, keeps the ranks in step, arms the watchdog."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._stacks = prepare(folder, rank)
        self._reports = (folder / f"rank{rank}.reports").open("w", buffering=1)
        self._board = Board(folder / "board", rank, size)
        self._count = 0
        self._failed = False
        arm(STARTUP, self._stacks)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test with its fixtures, then meet the other ranks."""
        arm(STARTUP, self._stacks)
        self._reports.write(json.dumps({"started": item.nodeid}) + "\n")
        result = yield
        self._count += 1
        self._board.post(-self._count if self._failed else self._count)
        self._meet()
        if self._board.failed():
            item.session.shouldfail = "a test failed on some rank"
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        """From here on the test itself counts."""
        mark = item.get_closest_marker("limit")
        arm(mark.args[0] if mark else LIMIT, self._stacks)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Pass a report on."""
        self._failed |= report.failed
        self._reports.write(
            json.dumps(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))
        )
        self._reports.write("\n")

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the configuration, which knows how to write a report."""
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Whoever still waits for this rank need not."""
        arm(LIMIT, self._stacks)
        if not self._board.failed():
            self._count += 1  # one more meeting: a rank that left must not look like a failure to one that did not yet
            self._board.post(self._count)
            self._meet()
        self._board.post(LEFT)

    def _meet(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._board.behind(self._count):
            if self._failed and time.monotonic() > deadline:
                self._expose(self._board.behind(self._count))
            time.sleep(0.001)

    def _expose(self, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)
        time.sleep(1)
        os._exit(1)


def main(folder: str, size: str, *args: str) -> None:
    """Run pytest; the exit code is pytest's."""
    plugin = Lockstep(Path(folder), rank_of_launcher(), int(size))
    options = ["-o", "faulthandler_timeout=0", "--capture=tee-sys", *args]
    sys.exit(pytest.main(options, plugins=[plugin]))


if __name__ == "__main__":
    main(*sys.argv[1:])
