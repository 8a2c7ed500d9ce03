"""The timeline: whole files under a clock of the test's own, names that need care, and files that a kill has torn."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionctl.errors import ConfigError
from fusionctl.timeline import ENGINE, SPANS, Timeline, load, trace_path

PHASES = ("QUEUE", "ring(2)")


def counting(step: int = 1_500) -> Callable[[], int]:
    """A clock that goes on by a step at every look."""
    times = iter(range(10_000, 10**9, step))
    return lambda: next(times)


def opened(path: Path, rank: int = 0) -> Timeline:
    """A timeline that begins at 10 µs and at second 7 of the epoch."""
    return Timeline(path, rank, clock=counting(), time_of_day=lambda: 7_000_000_000)


def batch(*spans: tuple[int, int, int, int, int, int]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Spans of (slot, phase, start, end, bytes, bucket)."""
    return np.array(list(spans), SPANS)


def head(rank: int) -> str:
    """How each file begins."""
    place = f'"pid":{rank},"tid":0'
    return (
        "[\n"
        f'{{"ph":"M",{place},"name":"process_name","args":{{"name":"rank {rank}"}}}},\n'
        f'{{"ph":"M",{place},"name":"process_sort_index","args":{{"sort_index":{rank}}}}},\n'
        f'{{"ph":"M",{place},"name":"thread_name","args":{{"name":"(engine)"}}}},\n'
        f'{{"ph":"M",{place},"name":"thread_sort_index","args":{{"sort_index":0}}}},\n'
        f'{{"ph":"i",{place},"name":"START","args":{{"unix_time_ns":7000000000,"host":"{socket.gethostname()}"}},'
        '"s":"t","ts":10.000},\n'
    )


def test_a_whole_file(tmp_path: Path) -> None:
    timeline = opened(tmp_path, 3)
    timeline.span("step", "STEP", 20_001, 21_000, loss=0.5)
    timeline.write_batch(
        batch((1, 0, 30_000, 30_999, 16, 4), (-1, 1, 31_000, 2_031_001, 0, -1), (1, 1, 40_000, 40_000, 16, 4)),
        ["a", "b"],
        ["float16", "float32"],
        PHASES,
    )
    timeline.instant("b", "MARK")
    timeline.close()
    timeline.close()
    assert (tmp_path / "rank3.json").read_text() == head(3) + (
        '{"ph":"M","pid":3,"tid":1,"name":"thread_name","args":{"name":"step"}},\n'
        '{"ph":"M","pid":3,"tid":1,"name":"thread_sort_index","args":{"sort_index":1}},\n'
        '{"ph":"X","pid":3,"tid":1,"name":"STEP","args":{"loss":0.5},"ts":20.001,"dur":0.999},\n'
        '{"ph":"M","pid":3,"tid":2,"name":"thread_name","args":{"name":"b"}},\n'
        '{"ph":"M","pid":3,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},\n'
        '{"ph":"X","pid":3,"tid":2,"name":"QUEUE","args":{"dtype":"float32","bytes":16,"bucket":4},'
        '"ts":30.000,"dur":0.999},\n'
        '{"ph":"X","pid":3,"tid":0,"name":"ring(2)","args":{"bytes":0,"bucket":-1},"ts":31.000,"dur":2000.001},\n'
        '{"ph":"X","pid":3,"tid":2,"name":"ring(2)","args":{"dtype":"float32","bytes":16,"bucket":4},'
        '"ts":40.000,"dur":0.000},\n'
        '{"ph":"i","pid":3,"tid":2,"name":"MARK","args":{},"s":"t","ts":11.500},\n'
        '{"ph":"i","pid":3,"tid":0,"name":"STOP","args":{},"s":"t","ts":13.000}\n'
        "]\n"
    )


def test_a_closed_file_is_strict_json_and_loads_as_such(tmp_path: Path) -> None:
    timeline = opened(tmp_path)
    timeline.write_batch(batch((0, 0, 1, 2, 3, 4)), ["w"], ["int64"], PHASES)
    timeline.close()
    assert load(timeline.path) == json.loads(timeline.path.read_text())


def test_slots_that_get_another_name_or_dtype_are_written_with_it(tmp_path: Path) -> None:
    timeline = opened(tmp_path)
    for names, dtypes, phases in (
        (["a"], ["int32"], PHASES),
        (["b"], ["int64"], PHASES),
        (["b"], ["bool"], ("P", "Q")),
    ):
        timeline.write_batch(batch((0, 0, 0, 1, 8, 0)), names, dtypes, phases)
    timeline.close()
    spans = [(e["tid"], e["name"], e["args"]["dtype"]) for e in load(timeline.path) if e["ph"] == "X"]
    assert spans == [(1, "QUEUE", "int32"), (2, "QUEUE", "int64"), (2, "P", "bool")]


@given(st.text(), st.text(min_size=1))
def test_any_name_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, tensor: str, phase: str) -> None:
    timeline = opened(tmp_path_factory.mktemp("any"))
    timeline.write_batch(batch((0, 0, 0, 1, 8, 0)), [tensor], ["int32"], [phase])
    timeline.span(tensor, phase, 0, 1, note=tensor)
    *_, track, _, first, second = load(timeline.path)
    timeline.close()
    assert track["args"] == {"name": tensor}
    assert (first["name"], second["name"], second["args"]) == (phase, phase, {"note": tensor})


@pytest.mark.parametrize("name", ['quote"', "back\\slash", "new\nline", "tab\t", "ünï/cødé:0 🙂", "\x00\x7f", "{%d}%s"])
def test_each_event_is_one_line_of_ascii(tmp_path: Path, name: str) -> None:
    timeline = opened(tmp_path)
    timeline.write_batch(batch((0, 0, 0, 1, 8, 0)), [name], ["int32"], [name])
    timeline.close()
    lines = timeline.path.read_text("ascii").splitlines()
    assert len(lines) == len(load(timeline.path)) + 2
    assert load(timeline.path)[-2]["name"] == name


def test_whatever_a_kill_cuts_off_all_whole_lines_load(tmp_path: Path) -> None:
    timeline = opened(tmp_path)
    timeline.span("a", "S", 0, 1_000, size=1)
    whole = timeline.path.read_bytes()
    events = load(timeline.path)
    assert len(events) == 8
    torn = tmp_path / "torn.json"
    events_as_text = [line.removesuffix(b",") for line in whole.splitlines()[1:]]
    for length in range(2, len(whole) + 1):
        torn.write_bytes(whole[:length])
        *lines, last = whole[:length].split(b"\n")[1:]
        assert load(torn) == events[: len(lines) + (last.removesuffix(b",") in events_as_text)]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    for text in ("", "[", '{"traceEvents": []}\n'):
        (tmp_path / "x").write_text(text)
        with pytest.raises(ValueError, match=r"x is no trace of fusionctl: its first line is not '\['"):
            load(tmp_path / "x")


def test_events_are_in_the_file_when_the_process_is_killed(tmp_path: Path) -> None:
    programme = (
        "import os, signal, sys\n"
        "from fusionctl.timeline import Timeline\n"
        "timeline = Timeline(sys.argv[1], 0)\n"
        "timeline.span('a', 'LAST', 1000, 3000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert (
        subprocess.run([sys.executable, "-P", "-c", programme, str(tmp_path)], check=False).returncode
        == -signal.SIGKILL
    )
    assert load(tmp_path / "rank0.json")[-1] == {
        **{"ph": "X", "pid": 0, "tid": 1, "name": "LAST", "args": {}},
        **{"ts": 1.0, "dur": 2.0},
    }


@pytest.mark.parametrize(
    ("target", "file"),
    [
        ("traces", "traces/rank1.json"),
        ("a/t.json", "a/t.rank1.json"),
        ("t.x.JSON", "t.x.rank1.JSON"),
        (".", "rank1.json"),
    ],
)
def test_each_rank_has_a_file_of_its_own(target: str, file: str) -> None:
    assert trace_path(target, 1) == Path(file)


def test_a_folder_may_end_in_json(tmp_path: Path) -> None:
    (tmp_path / "t.json").mkdir()
    assert trace_path(tmp_path / "t.json", 0) == tmp_path / "t.json" / "rank0.json"


def test_an_earlier_trace_is_replaced(tmp_path: Path) -> None:
    opened(tmp_path / "new" / "t.json").close()
    first = (tmp_path / "new" / "t.rank0.json").read_text()
    opened(tmp_path / "new" / "t.json").close()
    assert (tmp_path / "new" / "t.rank0.json").read_text() == first


def test_a_place_that_cannot_be_written_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = f"timeline: {tmp_path}/file/rank0.json cannot be written: File exists; name another file or folder"
    with pytest.raises(ConfigError) as caught:
        Timeline(tmp_path / "file", 0)
    assert str(caught.value) == text


def test_a_full_disk_ends_the_trace_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank0.json").symlink_to("/dev/full")
    monkeypatch.setattr(logging.getLogger("fusionctl"), "propagate", True)
    timeline = Timeline(tmp_path, 0)
    timeline.instant(ENGINE, "LOST")
    timeline.flush()
    timeline.close()
    text = f"the timeline ends here: {tmp_path}/rank0.json: {os.strerror(28)}"
    assert [record.getMessage() for record in caplog.records] == [text]
