"""The harness itself: what happens on one rank only, or not at all, must not be lost."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = HERE.parents[1] / "pyproject.toml"

GOOD = "SIZES = (1, 2)\ndef test_good(): pass\n"
ONE_FAILS = """
SIZES = (3,)
import fusionctl, numpy
def test_first(): pass
def test_one_fails():
    assert fusionctl.rank() != 1, 'rank one'
    fusionctl.allreduce(numpy.ones(2), 'never')
def test_later(): pass
"""
HANGS = """
import pytest, time
SIZES = (2,)
@pytest.mark.limit(1)
def test_hangs():
    time.sleep(100)
"""
CRASHES = "SIZES = (2,)\nimport os, fusionctl\ndef test_crashes():\n    if fusionctl.rank() == 1: os.abort()\n"
BROKEN = "SIZES = (2,)\nimport nothing_of_that_name\n"


def run(folder: Path, **files: str) -> str:
    """What pytest prints for test files that run on all ranks."""
    shutil.copytree(HERE / "harness", folder / "tests" / "mpi" / "harness")
    shutil.copy(SETTINGS, folder)
    shutil.copy(HERE / "conftest.py", folder / "tests" / "mpi")
    (folder / "tests" / "mpi" / "cases").mkdir()
    for name, text in files.items():
        (folder / "tests" / "mpi" / "cases" / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:terminalprogress", "tests/mpi"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False).stdout


def closing(output: str) -> str:
    """The counts of pytest's last line."""
    return re.sub(r"=+ (.*) in .*", r"\1", output.splitlines()[-1])


def test_a_test_counts_once_for_each_size(tmp_path: Path) -> None:
    assert closing(run(tmp_path, good=GOOD)) == "2 passed"


def test_a_failure_on_one_rank_ends_its_file_and_names_the_rank(tmp_path: Path) -> None:
    output = run(tmp_path, fails=ONE_FAILS, good="SIZES = (3,)\ndef test_good(): pass\n")
    assert closing(output) == "1 failed, 2 passed"
    assert "test_one_fails on rank 1 of 3" in output
    assert "AssertionError: rank one" in output


def test_a_hang_is_one_failure_with_the_stacks_of_all_ranks(tmp_path: Path) -> None:
    output = run(tmp_path, hangs=HANGS)
    assert closing(output) == "1 failed"
    assert "test_hangs on 2 ranks" in output
    assert re.search(r"rank 0 stacks\n[^$]*in test_hangs[^$]*rank 1 stacks\n[^$]*in test_hangs", output)


def test_a_crash_is_one_failure_and_the_files_after_it_run_in_a_new_job(tmp_path: Path) -> None:
    output = run(tmp_path, crashes=CRASHES, good="SIZES = (2,)\ndef test_good(): pass\n")
    assert closing(output) == "1 failed, 1 passed"
    assert "test_crashes on 2 ranks" in output
    assert "rank 1 stderr\nFatal Python error: Aborted" in output


def test_a_file_that_cannot_be_imported_is_one_failure_and_the_others_run(tmp_path: Path) -> None:
    output = run(tmp_path, broken=BROKEN, good="SIZES = (2,)\ndef test_good(): pass\n")
    assert closing(output) == "1 failed, 1 passed"
    assert "test_broken.py::(import)" in output
    assert "No module named 'nothing_of_that_name'" in output
