"""Files whose tests run on all ranks, as pytest sees them outside of mpirun: an item is a file on so many ranks."""

from __future__ import annotations

import ast
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from launch import Job, mpirun

LOCKSTEP = Path(__file__).with_name("lockstep.py")

SIZES = (1, 2, 3, 4)
"""Numbers of ranks for a file that does not say SIZES = ..."""

FRAMEWORKS = ("tensorflow", "keras")
"""Folders whose numbers of ranks `--frameworks-at` limits."""

JOB_LIMIT = 1500
"""Seconds for a job; each test in it has a limit of its own."""

Line = dict[str, Any]
Results = dict[Path, list[pytest.TestReport]]
RESULTS = pytest.StashKey[dict[int, Results]]()


class RankFile(pytest.File):
    """A file whose tests run on all ranks of a job."""

    def collect(self) -> Iterable[RankRun]:
        """One item for each number of ranks."""
        chosen = self.config.getoption("--frameworks-at") if self.path.parent.name in FRAMEWORKS else "all"
        sizes = [size for size in sizes_of(self.path) if chosen in ("all", ("even", "odd")[size % 2])]
        return [RankRun.from_parent(self, name=f"np{size}", size=size) for size in sizes]


class RankRun(pytest.Item):
    """A file's tests on one number of ranks; the files of one folder run in one job."""

    def __init__(self, *, size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size

    def runtest(self) -> None:
        """Never called: the reports come from the ranks."""
        raise AssertionError

    def reports(self) -> list[pytest.TestReport]:
        """Of each test one rank's report, a failed one if there is any; runs the folder's job if it did not run yet."""
        results = self.session.stash.setdefault(RESULTS, {}).setdefault(self.size, {})
        if self.path not in results:
            items = [item for item in self.session.items if isinstance(item, RankRun) and item.size == self.size]
            results |= run_together([item.path for item in items if item.path.parent == self.path.parent], self)
        return results[self.path]


def sizes_of(path: Path) -> tuple[int, ...]:
    """SIZES of a file, which is not imported here."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SIZES":
            return tuple(ast.literal_eval(node.value))
    return SIZES


def run_together(paths: Sequence[Path], item: RankRun) -> Results:
    """Run files in one job; those that a failure kept from running go into another."""
    results: Results = {}
    while left := [path for path in paths if path not in results]:
        job, lines = run_job(left, item)
        reached = [path for path in left if job.returncode == 0 or any(started_in(path, rank, item) for rank in lines)]
        if not reached and len(left) > 1:  # a file that cannot be imported must not be blamed on the first
            for path in left:
                results |= run_together([path], item)
            break
        reached = reached or left
        results |= {path: merged(path, lines, item) for path in reached}
        if job.returncode != 0 and not any(report.failed for path in reached for report in results[path]):
            results[reached[-1]].append(died(job, reached[-1], lines, item))
    return results


def run_job(paths: Sequence[Path], item: RankRun) -> tuple[Job, list[list[Line]]]:
    """Run pytest for the files on all ranks; returns the job and what each rank reported."""
    root = item.config.rootpath
    options = [f"--rootdir={root}", f"--confcutdir={root}", "-c", item.config.inipath or root]
    with tempfile.TemporaryDirectory(prefix="lockstep-") as name:
        folder = Path(name)
        job = mpirun(LOCKSTEP, item.size, folder, item.size, *options, *paths, timeout=JOB_LIMIT, folder=folder)
        return job, [read_lines(folder / f"rank{rank}.reports") for rank in range(item.size)]


def read_lines(path: Path) -> list[Line]:
    """What one rank reported; a killed rank may leave half a line."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def nodeid_of(path: Path, item: RankRun) -> str:
    """The file as it begins the name of each of its tests."""
    return path.relative_to(item.config.rootpath).as_posix()


def started_in(path: Path, rank: Sequence[Line], item: RankRun) -> list[str]:
    """Tests of a file that a rank started, in order."""
    prefix = nodeid_of(path, item) + "::"
    return [line["started"] for line in rank if line.get("started", "").startswith(prefix)]


def merged(path: Path, lines: Sequence[Sequence[Line]], item: RankRun) -> list[pytest.TestReport]:
    """Of each test and phase one report, if all ranks reported or one failed: the first failed one, else rank 0's."""
    chosen: dict[tuple[str, str | None], pytest.TestReport] = {}
    heard: Counter[tuple[str, str | None]] = Counter()
    for rank, reported in enumerate(lines):
        for line in reported:
            if line.get("nodeid", "").startswith(nodeid_of(path, item) + "::"):
                report = item.config.hook.pytest_report_from_serializable(config=item.config, data=line)
                key = (report.nodeid, report.when)
                heard[key] += 1
                if key not in chosen or (report.failed and not chosen[key].failed):
                    chosen[key] = named(report, f"rank {rank} of {item.size}")
    return [report for key, report in chosen.items() if report.failed or heard[key] == item.size]


def named(report: pytest.TestReport, where: str) -> pytest.TestReport:
    """The report with the rank in its headline."""
    file, line, name = report.location
    report.location = (file, line, f"{name} on {where}")
    return report


def died(job: Job, path: Path, lines: Sequence[Sequence[Line]], item: RankRun) -> pytest.TestReport:
    """What to report when a job failed although no test did: a hang, a crash, an error at import or at exit."""
    last = [started[-1] for rank in lines if (started := started_in(path, rank, item))]
    nodeid = min(last, default=nodeid_of(path, item) + "::(import)", key=[*last].count)
    location = (nodeid_of(path, item), 0, f"{nodeid.split('::', 1)[1]} on {item.size} ranks")
    return pytest.TestReport(nodeid, location, {}, "failed", f"after or in {nodeid}: {job}", "call")
