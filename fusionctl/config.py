"""The settings of one rank, read from the environment once; no other module reads it.

The setting `fusion_threshold` is the variable FUSIONCTL_FUSION_THRESHOLD, and so on.  Where Horovod has a variable of
the same meaning, Horovod's is taken while ours is unset.  Reading is a pure function of a mapping: what is to be said
about the environment stays in `Config.notes` until the rank is known and `set_up_logging` says it once.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, NamedTuple

from fusionctl.errors import ConfigError

PREFIX = "FUSIONCTL_"
HOROVOD = "HOROVOD_"

ALLREDUCES: tuple[str, ...] = (
    *("auto", "mpi", "shm"),
    *("biring", "direct", "double_tree", "hierarchical", "rabenseifner"),
    *("recursive", "ring", "ring2d", "swing", "tree"),
)
"""What `allreduce` may be: a choice by the job, MPI's own all-reduce, the memory of a node, or a schedule of ours."""

GRADIENTS: tuple[str, ...] = ("horovod", "adjoint")
"""What `gradients` may be."""

LOG_LEVELS: dict[str, int] = {"trace": 5, "debug": 10, "info": 20, "warning": 30, "error": 40, "fatal": 50}
"""What `log_level` may be, with the number that Python's logging knows it by."""

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?(?:([kmg]?)b|([kmg])(?:ib)?)?", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?(e[+-]?[0-9]{1,2})?", re.IGNORECASE)


class Kind(NamedTuple):
    """How the text of a variable becomes a value: `read` raises ValueError, `accepts` ends "accepted is ..."."""

    read: Callable[[str], Any]
    accepts: str


def _size(low: int, high: int) -> Kind:
    def read(text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(text)
        power = _POWERS[(match[2] or match[3] or "").lower()]
        return int(_within(Fraction(match[1]) * 1024**power, low, high, whole=True))

    return Kind(read, f"a size from {low} to {high} bytes, as 67108864, 64MB or 64MiB (1 MB = 1 MiB = 1048576 bytes)")


def _integer(low: int, high: int) -> Kind:
    accepts = f"a whole number from {low} to {high}"
    return Kind(lambda text: int(_within(_fraction(text), low, high, whole=True)), accepts)


def _number(low: int, high: int, unit: str) -> Kind:
    return Kind(lambda text: float(_within(_fraction(text), low, high)), f"a number of {unit} from {low} to {high}")


def _fraction(text: str) -> Fraction:
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(text)
    return Fraction(text)


def _within(value: Fraction, low: int, high: int, whole: bool = False) -> Fraction:
    if not low <= value <= high or (whole and value.denominator != 1):
        raise ValueError(value)
    return value


def _choice(names: Iterable[str]) -> Kind:
    choices = {name: name for name in names}
    return Kind(lambda text: choices[text.lower()], "one of " + ", ".join(choices))


def _read_path(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


_PATH = Kind(_read_path, "the path of a folder or of a .json file")
# DYNAMIC lets Horovod start its timeline later, which is always possible here: nothing to set.
_HOROVOD_TIMELINE = Kind(lambda text: None if text == "DYNAMIC" else _read_path(text), "the path of a file, or DYNAMIC")
_STALL_CHECK_DISABLE = Kind(lambda text: {"0": None, "1": 0.0}[text], "0 or 1")


def _setting(default: object, kind: Kind, *, agree: bool = False, horovod: Mapping[str, Kind] | None = None) -> Any:
    """A field of Config.  Of Horovod's variables the first one that reads as something other than None counts."""
    return field(default=default, metadata={"kind": kind, "agree": agree, "horovod": horovod or {}})


_BYTES = _size(0, 1 << 62)
_CYCLE = _number(0, 10_000, "milliseconds")
_CAPACITY = _integer(0, 1 << 30)
_LEVEL = _choice(LOG_LEVELS)
_STALL = _number(0, 10**9, "seconds")


@dataclass(frozen=True)
class Config:
    """The settings of one rank; those marked "Agreed" must be equal on all ranks."""

    fusion_threshold: int = _setting(128 << 20, _BYTES, agree=True, horovod={"HOROVOD_FUSION_THRESHOLD": _BYTES})
    """Bytes up to which tensors share a fusion buffer; 0 fuses nothing but explicit groups.  Agreed."""

    cycle_time: float = _setting(1.0, _CYCLE, horovod={"HOROVOD_CYCLE_TIME": _CYCLE})
    """Milliseconds: upper bound of the time between two exchanges while ranks hold tensors that others lack."""

    cache_capacity: int = _setting(1024, _CAPACITY, agree=True, horovod={"HOROVOD_CACHE_CAPACITY": _CAPACITY})
    """Buckets whose agreement is remembered; beyond it the least recently used are forgotten.  Agreed."""

    timeline: str | None = _setting(None, _PATH, horovod={"HOROVOD_TIMELINE": _HOROVOD_TIMELINE})
    """Folder or .json file that each rank's trace is named after; unset: no trace."""

    log_level: str = _setting("warning", _LEVEL, horovod={"HOROVOD_LOG_LEVEL": _LEVEL})
    """Least serious messages that are logged: trace, debug, info, warning, error or fatal."""

    stall_check_time: float = _setting(
        60.0,
        _STALL,
        horovod={"HOROVOD_STALL_CHECK_DISABLE": _STALL_CHECK_DISABLE, "HOROVOD_STALL_CHECK_TIME_SECONDS": _STALL},
    )
    """Seconds after which a tensor that some ranks did not submit is reported; 0 reports nothing."""

    allreduce: str = _setting("auto", _choice(ALLREDUCES), agree=True)
    """How buckets are reduced: auto, mpi (MPI's own all-reduce), or a schedule of ours.  Agreed."""

    chunk_limit: int = _setting(1 << 30, _size(16, (1 << 31) - 1), agree=True)
    """Bytes of the largest single MPI message or collective; larger payloads go in several.  Agreed."""

    gradients: str = _setting("horovod", _choice(GRADIENTS), agree=True)
    """Gradients of the collectives: horovod (its rules) or adjoint (of the sum of the ranks' losses).  Agreed."""

    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Setting -> the variable that set it; a setting that is at its default is absent."""

    notes: tuple[tuple[int, str], ...] = field(default=(), compare=False, repr=False)
    """What to log about the environment: (level, text)."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Read the settings of this process; ConfigError names the variable, its value and what is accepted."""
        environ = os.environ if environ is None else environ
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for name, kinds in _variables().items():
            set_by = next(_readings(kinds, environ), None)
            if set_by is not None:
                origins[name], values[name] = set_by
        return cls(**values, origins=origins, notes=(*_horovod_notes(origins, environ), *_unknown_notes(environ)))

    def describe(self) -> str:
        """The values in effect in one line, those that were set with the variable that set them."""
        return ", ".join(_with_origin(self, name) for name in _variables())


def disagreements(configs: Sequence[Config]) -> str | None:
    """Say which settings differ though all ranks (in the order of `configs`) must agree on them; None if none does."""
    texts = []
    for name in (f.name for f in fields(Config) if f.metadata.get("agree")):
        ranks: dict[str, list[int]] = {}
        for rank, config in enumerate(configs):
            ranks.setdefault(_with_origin(config, name), []).append(rank)
        if len({getattr(config, name) for config in configs}) > 1:
            texts.append(", ".join(f"{value} on {_rank_list(having)}" for value, having in ranks.items()))
    advice = "set the same on all ranks (mpirun -genv NAME VALUE, under Open MPI -x NAME=VALUE)"
    return f"the ranks' settings differ: {'; '.join(texts)}; {advice}" if texts else None


def _rank_list(ranks: Sequence[int]) -> str:
    """[0] is "rank 0", [1, 2, 3, 5] is "ranks 1-3, 5"."""
    spans: list[tuple[int, int]] = []
    for rank in ranks:
        start = spans.pop()[0] if spans and spans[-1][1] == rank - 1 else rank
        spans.append((start, rank))
    listed = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return f"ranks {listed}" if len(ranks) > 1 else f"rank {listed}"


def _with_origin(config: Config, name: str) -> str:
    """The setting as its user would set it: the variable, or the field's default."""
    origin = config.origins.get(name)
    return f"{name}={getattr(config, name)}" + (f" (from {origin})" if origin else "")


def _variables() -> dict[str, dict[str, Kind]]:
    """Setting -> the variables that can set it, ours first, with how each is read."""
    settings = (f for f in fields(Config) if "kind" in f.metadata)
    return {f.name: {PREFIX + f.name.upper(): f.metadata["kind"], **f.metadata["horovod"]} for f in settings}


def _readings(kinds: Mapping[str, Kind], environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for variable, kind in kinds.items():
        value = _read(variable, kind, environ) if variable in environ else None
        if value is not None:
            yield variable, value


def _read(variable: str, kind: Kind, environ: Mapping[str, str]) -> Any:
    text = environ[variable]
    try:
        return kind.read(text.strip())
    except (ValueError, KeyError):
        raise ConfigError(f"{variable}={text!r} cannot be used: accepted is {kind.accepts}") from None


def _horovod_notes(origins: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    taken = {name: variable for name, variable in origins.items() if variable.startswith(HOROVOD)}
    if taken:
        listed = ", ".join(f"{variable} as {PREFIX}{name.upper()}" for name, variable in taken.items())
        yield logging.WARNING, f"settings taken over from Horovod's variables: {listed}"
    known = {variable for kinds in _variables().values() for variable in kinds}
    ignored = sorted(variable for variable in environ if variable.startswith(HOROVOD) and variable not in known)
    if ignored:
        yield logging.WARNING, f"without meaning here and ignored: {', '.join(ignored)}"


def _unknown_notes(environ: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    known = [PREFIX + name.upper() for name in _variables()]
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in known:
            nearest = difflib.get_close_matches(variable, known, 1, cutoff=0)[0]
            yield logging.WARNING, f"{variable} is no variable of fusionctl and has no effect; did you mean {nearest}?"


class Launcher(NamedTuple):
    """What a launcher says of the job that it started: its size, and the variable that says so."""

    size: int
    variable: str


def launcher_size(environ: Mapping[str, str] | None = None) -> Launcher | None:
    """How many ranks the launcher says it started, for comparison with MPI_COMM_WORLD; None where nothing is certain.

    Nothing is certain when two kinds of mpirun are nested and contradict each other.  Slurm is asked last, since an
    mpirun inside a step leaves the step's variables in sight, and only in a numbered step: the batch script and the
    interactive shell are steps as well, and SLURM_NTASKS counts the whole allocation, in which anything may run.
    """
    environ = os.environ if environ is None else environ
    said = [
        Launcher(int(environ[variable]), variable)
        for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
        if _is_number(environ.get(variable))
    ]
    if said:
        return said[0] if len({launcher.size for launcher in said}) == 1 else None
    step, tasks = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_STEP_NUM_TASKS", "")
    if _is_number(step) and int(step) < 0xFFFF_FFF0 and _is_number(tasks):
        return Launcher(int(tasks), "SLURM_STEP_NUM_TASKS")
    return None


def _is_number(text: str | None) -> bool:
    return re.fullmatch("[0-9]{1,10}", text or "") is not None


class RankHandler(logging.Handler):
    """Writes a message to stderr in one call, so that the ranks' lines do not mix; stderr is whatever it is by then."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        sys.stderr.write(self.format(record) + "\n")
        sys.stderr.flush()


def set_up_logging(config: Config, rank: int) -> logging.Logger:
    """The logger `fusionctl`, whose lines go to stderr after the rank; rank 0 logs the notes and the settings at once.

    The root logger is untouched.  Setting up again replaces rank and level; handlers that the programme added stay.
    """
    logging.addLevelName(LOG_LEVELS["trace"], "TRACE")
    log = logging.getLogger("fusionctl")
    for old in [handler for handler in log.handlers if isinstance(handler, RankHandler)]:
        log.removeHandler(old)
    handler = RankHandler()
    handler.setFormatter(logging.Formatter(f"[fusionctl rank {rank}] %(levelname)s %(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(LOG_LEVELS[config.log_level])
    log.propagate = False
    if rank == 0:
        for level, text in config.notes:
            log.log(level, text)
        log.info("effective configuration: %s", config.describe())
    return log
