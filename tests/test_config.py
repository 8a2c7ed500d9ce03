"""The configuration: what the environment means, what is refused, what is said of it, and what ranks must share."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from dataclasses import fields

import pytest

from fusionctl.config import ALLREDUCES, Config, Launcher, disagreements, launcher_size, set_up_logging
from fusionctl.errors import ConfigError

WARNING = logging.WARNING
SIZE = "a size from 0 to 4611686018427387904 bytes, as 67108864, 64MB or 64MiB (1 MB = 1 MiB = 1048576 bytes)"
CHUNK = SIZE.replace("from 0 to 4611686018427387904", "from 16 to 2147483647")
LEVELS = "one of trace, debug, info, warning, error, fatal"


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """Puts the logger back as it was."""
    logger = logging.getLogger("fusionctl")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_an_empty_environment_gives_the_defaults() -> None:
    config = Config.from_env({})
    assert config == Config(
        fusion_threshold=134217728,
        cycle_time=1.0,
        cache_capacity=1024,
        timeline=None,
        log_level="warning",
        stall_check_time=60.0,
        allreduce="auto",
        chunk_limit=1073741824,
    )
    assert (config.origins, config.notes) == ({}, ())


def test_every_setting_is_read_from_the_variable_of_its_name() -> None:
    environ = {
        "FUSIONCTL_FUSION_THRESHOLD": "1.5MB",
        "FUSIONCTL_CYCLE_TIME": "2.5",
        "FUSIONCTL_CACHE_CAPACITY": "0",
        "FUSIONCTL_TIMELINE": "traces",
        "FUSIONCTL_LOG_LEVEL": "DEBUG",
        "FUSIONCTL_STALL_CHECK_TIME": "0",
        "FUSIONCTL_ALLREDUCE": "ring",
        "FUSIONCTL_CHUNK_LIMIT": "64",
        "FUSIONCTL_GRADIENTS": "Adjoint",
    }
    config = Config.from_env(environ)
    assert config == Config(1572864, 2.5, 0, "traces", "debug", 0.0, "ring", 64, "adjoint")
    assert config.origins == {variable[len("FUSIONCTL_") :].lower(): variable for variable in environ}
    assert set(config.origins) == {field.name for field in fields(Config)} - {"origins", "notes"}
    assert config.notes == ()


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [name for name in os.environ if name.startswith(("FUSIONCTL_", "HOROVOD_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("FUSIONCTL_CACHE_CAPACITY", "7")
    assert Config.from_env() == Config(cache_capacity=7)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("67108864", 2**26),
        ("64MB", 2**26),
        ("64MiB", 2**26),
        ("64 mb", 2**26),
        ("64M", 2**26),
        ("512kb", 2**19),
        ("2G", 2**31),
        ("0.5GiB", 2**29),
        ("100B", 100),
        (" 64MB\n", 2**26),
    ],
)
def test_sizes_are_in_powers_of_1024(text: str, value: int) -> None:
    assert Config.from_env({"FUSIONCTL_FUSION_THRESHOLD": text}).fusion_threshold == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "-1", "64XB", "64MB!", "MB", "64iB", "0.3KB", "1e6", "0x10", "nan", "inf", "5000000000GB", "٣", "1_0"],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_env({"FUSIONCTL_FUSION_THRESHOLD": text})
    assert str(caught.value) == f"FUSIONCTL_FUSION_THRESHOLD={text!r} cannot be used: accepted is {SIZE}"


@pytest.mark.parametrize(
    ("variable", "text", "accepted"),
    [
        *[
            ("CYCLE_TIME", text, "a number of milliseconds from 0 to 10000")
            for text in ("abc", "", "nan", "inf", "-1", "1ms", "10000.1", "1e99", "1e999999999", ".5.")
        ],
        ("STALL_CHECK_TIME", "-0.1", "a number of seconds from 0 to 1000000000"),
        *[
            ("CACHE_CAPACITY", text, "a whole number from 0 to 1073741824")
            for text in ("1.5", "ten", "-1", "1073741825")
        ],
        ("CHUNK_LIMIT", "15", CHUNK),
        ("CHUNK_LIMIT", "2GB", CHUNK),
        ("LOG_LEVEL", "loud", LEVELS),
        ("ALLREDUCE", "rings", f"one of {', '.join(ALLREDUCES)}"),
        ("TIMELINE", "", "the path of a folder or of a .json file"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_accepted(variable: str, text: str, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_env({f"FUSIONCTL_{variable}": text})
    assert str(caught.value) == f"FUSIONCTL_{variable}={text!r} cannot be used: accepted is {accepted}"


def test_horovods_variables_count_while_ours_are_unset_and_one_line_says_so() -> None:
    config = Config.from_env(
        {
            "HOROVOD_FUSION_THRESHOLD": "1048576",
            "HOROVOD_CYCLE_TIME": "3.5",
            "HOROVOD_CACHE_CAPACITY": "5",
            "FUSIONCTL_CACHE_CAPACITY": "6",
            "HOROVOD_TIMELINE": "t.json",
            "HOROVOD_LOG_LEVEL": "info",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "9",
        }
    )
    assert config == Config(1048576, 3.5, 6, "t.json", "info", 9.0)
    text = (
        "settings taken over from Horovod's variables: HOROVOD_FUSION_THRESHOLD as FUSIONCTL_FUSION_THRESHOLD, "
        "HOROVOD_CYCLE_TIME as FUSIONCTL_CYCLE_TIME, HOROVOD_TIMELINE as FUSIONCTL_TIMELINE, "
        "HOROVOD_LOG_LEVEL as FUSIONCTL_LOG_LEVEL, HOROVOD_STALL_CHECK_TIME_SECONDS as FUSIONCTL_STALL_CHECK_TIME"
    )
    assert config.notes == ((WARNING, text),)


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "9"}, 0.0),
        ({"HOROVOD_STALL_CHECK_DISABLE": "0", "HOROVOD_STALL_CHECK_TIME_SECONDS": "9"}, 9.0),
        ({"HOROVOD_STALL_CHECK_DISABLE": "0"}, 60.0),
        ({"HOROVOD_STALL_CHECK_DISABLE": "1", "FUSIONCTL_STALL_CHECK_TIME": "5"}, 5.0),
    ],
)
def test_the_stall_check_can_be_disabled_as_in_horovod(environ: dict[str, str], seconds: float) -> None:
    assert Config.from_env(environ).stall_check_time == seconds


def test_a_timeline_that_is_to_be_started_later_is_no_path() -> None:
    config = Config.from_env({"HOROVOD_TIMELINE": "DYNAMIC"})
    assert (config.timeline, config.notes) == (None, ())


def test_a_bad_value_of_horovods_variable_names_that_variable() -> None:
    with pytest.raises(ConfigError, match=r"^HOROVOD_STALL_CHECK_DISABLE='yes' cannot be used: accepted is 0 or 1$"):
        Config.from_env({"HOROVOD_STALL_CHECK_DISABLE": "yes"})


def test_variables_that_mean_nothing_are_named() -> None:
    environ = {
        "HOROVOD_AUTOTUNE": "1",
        "FUSIONCTL_FUSION_TRESHOLD": "1",
        "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "1",
        "PATH": "",
    }
    assert Config.from_env(environ).notes == (
        (WARNING, "without meaning here and ignored: HOROVOD_ADASUM_MPI_CHUNK_SIZE, HOROVOD_AUTOTUNE"),
        (
            WARNING,
            "FUSIONCTL_FUSION_TRESHOLD is no variable of fusionctl and has no effect; did you mean "
            "FUSIONCTL_FUSION_THRESHOLD?",
        ),
    )


def test_the_description_is_one_line_of_all_settings() -> None:
    environ = {"FUSIONCTL_TIMELINE": "traces", "HOROVOD_CYCLE_TIME": "2"}
    assert Config.from_env(environ).describe() == (
        "fusion_threshold=134217728, cycle_time=2.0 (from HOROVOD_CYCLE_TIME), cache_capacity=1024, "
        "timeline=traces (from FUSIONCTL_TIMELINE), log_level=warning, stall_check_time=60.0, allreduce=auto, "
        "chunk_limit=1073741824, gradients=horovod"
    )


def test_settings_survive_the_way_to_another_rank() -> None:
    config = Config.from_env({"HOROVOD_CYCLE_TIME": "2", "FUSIONCTL_CICLE_TIME": "1"})
    copy = pickle.loads(pickle.dumps(config))
    assert (copy, copy.origins, copy.notes) == (config, config.origins, config.notes)


def test_ranks_that_agree_where_they_must_have_no_disagreement() -> None:
    one = Config.from_env({"FUSIONCTL_CYCLE_TIME": "9", "FUSIONCTL_TIMELINE": "a", "FUSIONCTL_LOG_LEVEL": "info"})
    two = Config.from_env({"FUSIONCTL_STALL_CHECK_TIME": "1", "FUSIONCTL_FUSION_THRESHOLD": "128MB"})
    assert disagreements([one, two, Config()]) is None


def test_disagreements_name_the_ranks_and_all_values() -> None:
    ring = Config.from_env({"FUSIONCTL_ALLREDUCE": "ring"})
    small = Config.from_env({"HOROVOD_FUSION_THRESHOLD": "64", "FUSIONCTL_ALLREDUCE": "ring"})
    assert disagreements([ring, small, small, Config(), small]) == (
        "the ranks' settings differ: fusion_threshold=134217728 on ranks 0, 3, "
        "fusion_threshold=64 (from HOROVOD_FUSION_THRESHOLD) on ranks 1-2, 4; "
        "allreduce=ring (from FUSIONCTL_ALLREDUCE) on ranks 0-2, 4, allreduce=auto on rank 3; "
        "set the same on all ranks (mpirun -genv NAME VALUE, under Open MPI -x NAME=VALUE)"
    )


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, None),
        ({"PMI_SIZE": "4"}, Launcher(4, "PMI_SIZE")),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, Launcher(3, "OMPI_COMM_WORLD_SIZE")),
        ({"MV2_COMM_WORLD_SIZE": "2", "PMI_SIZE": "2"}, Launcher(2, "PMI_SIZE")),
        ({"OMPI_COMM_WORLD_SIZE": "3", "PMI_SIZE": "1"}, None),
        ({"PMI_SIZE": ""}, None),
        ({"PMI_SIZE": "many"}, None),
        ({"SLURM_NTASKS": "8"}, None),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}, Launcher(8, "SLURM_STEP_NUM_TASKS")),
        ({"SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "PMI_SIZE": "4"}, Launcher(4, "PMI_SIZE")),
    ],
)
def test_the_launchers_word_is_taken_where_it_is_certain(environ: dict[str, str], said: Launcher | None) -> None:
    assert launcher_size(environ) == said


def test_log_lines_go_to_stderr_after_the_rank(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(Config(), 0)
    assert set_up_logging(Config(log_level="trace"), 3) is log
    log.log(5, "small")
    log.warning("large")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("[fusionctl rank 3] TRACE ")
    assert first.endswith(" small")
    assert second.startswith("[fusionctl rank 3] WARNING ")
    assert second.endswith(" large")


def test_rank_0_logs_the_notes_and_the_settings(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config.from_env({"FUSIONCTL_LOG_LEVEL": "info", "HOROVOD_CYCLE_TIME": "2"})
    set_up_logging(config, 1)
    assert capsys.readouterr().err == ""
    set_up_logging(config, 0)
    note, settings = capsys.readouterr().err.splitlines()
    assert note.endswith(config.notes[0][1])
    assert settings.endswith(f"effective configuration: {config.describe()}")


def test_the_root_logger_and_the_programmes_own_handlers_are_left_alone(log: logging.Logger) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    own = logging.NullHandler()
    log.addHandler(own)
    set_up_logging(Config(), 0)
    set_up_logging(Config(), 0)
    assert (list(root.handlers), root.level) == before
    assert own in log.handlers
    assert len([handler for handler in log.handlers if type(handler).__name__ == "RankHandler"]) == 1
