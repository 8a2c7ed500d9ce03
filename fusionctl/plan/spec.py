"""Topologies from text: a short form such as `torus:4x4,16GB/s,150ns`, and JSON files for what it cannot say.

    kind:ranks[,bandwidth][,latency][,option=value...]

| kind | ranks | options |
|---|---|---|
| ring, one-way-ring, fully-connected | 8 | |
| wdm-ring | 64 | w=64 wavelengths |
| torus, mesh | 4x4, 2x3x4 | |
| fat-tree | 64, on leaf and spine switches | leaf=8 ranks on each leaf switch |
| k-fat-tree | 4: three levels of switches of 4 ports, 16 ranks | |
| bigraph | 32 | each=4 ranks on each switch |
| hosts | 4x8: hosts x ranks on each | intra=100GB/s/200ns, inter=10Gb/s/5us |
| dgx | 16, a multiple of 8 | intra=..., inter=... |

A bandwidth is a number, then k, M, G or T (powers of 1000) or Ki, Mi, Gi or Ti (of 1024) or nothing, then b or bit for
bits, B for bytes, then /s.  A latency is a number of ns, us, ms or s.  Capitals count in units.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fusionctl.errors import UsageError
from fusionctl.plan import topologies
from fusionctl.plan.topology import Link, Topology, check_connected, fully_connected, ring

_BANDWIDTH = re.compile(r"([0-9]+(?:\.[0-9]+)?)(|k|[MGT]|[KMGT]i)(b|bit|B)/s")
_LATENCY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s)")
_PREFIXES = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SECONDS = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}


class Kind(NamedTuple):
    """How a kind of topology is made: `shape` may have `dimensions` numbers, options are read as `options` says."""

    make: Callable[..., Topology]
    example: str
    dimensions: tuple[int, ...] = (1,)
    options: Mapping[str, str] = {}
    """Option -> the argument of `make`; what starts with "in" is a bandwidth/latency pair, all else a number."""


def from_spec(text: str) -> Topology:
    """The topology that a text such as `torus:4x4,16GB/s,150ns` describes; the module's docstring has the grammar.

    UsageError names the part that is wrong, and gives an example that is right.
    """
    name, _, rest = text.strip().partition(":")
    if name not in KINDS:
        raise UsageError(
            f"topology {text!r}: {name!r} is no kind of topology: write one of {', '.join(KINDS)}, as in "
            f"{KINDS['torus'].example!r}, or the name of a file that ends in .json"
        )
    kind = KINDS[name]
    ranks, *parts = (part.strip() for part in rest.split(","))
    try:
        arguments = _arguments(kind, parts)
        return kind.make(*_shape(ranks, kind.dimensions), **arguments)
    except (_Part, UsageError) as error:
        raise UsageError(f"topology {text!r}: {error}; right is {kind.example!r}") from None


def dump(topology: Topology, path: str | Path) -> None:
    """Write a topology to a JSON file that `load` reads: the order of the links is kept."""
    links = [[*pair, link.bandwidth, link.latency, link.channels] for pair, link in topology.links.items()]
    head = {"name": topology.name, "size": topology.size, "switches": topology.switches, "shape": topology.shape}
    rows = ",\n".join(f"    {json.dumps(row)}" for row in links)
    Path(path).write_text(f'{json.dumps(head)[:-1]}, "links": [\n{rows}\n]}}\n')


def load(path: str | Path) -> Topology:
    """Read a topology from a JSON file and check that it is connected.

    An object of `name`, `size` (ranks), `links` as [source, destination, bytes/s, seconds, channels], and where wanted
    `switches` and `shape`.  UsageError names the file and what is wrong in it.
    """
    try:
        found = json.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"topology file {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"topology file {path} is no JSON: {error}") from None
    try:
        return check_connected(_from_json(found))
    except (_Part, UsageError) as error:
        raise UsageError(f"topology file {path}: {error}") from None


def topology(text: str) -> Topology:
    """The topology of a JSON file if the text ends in .json, else the one that it describes (`from_spec`)."""
    return load(text) if text.endswith(".json") else from_spec(text)


class _Part(Exception):
    """What is wrong with a part of a text or of a file."""


def _arguments(kind: Kind, parts: list[str]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for part in parts:
        option, equals, value = part.partition("=")
        for name, argument in _option(kind, option, value, part) if equals else _plain(kind, part):
            if name in arguments:
                raise _Part(f"{part!r} says {name} a second time")
            arguments[name] = argument
    if "w" in kind.options and "wavelengths" not in arguments:
        raise _Part("the number of wavelengths is missing")
    return arguments


def _plain(kind: Kind, part: str) -> list[tuple[str, Any]]:
    if "intra" in kind.options:
        raise _Part(f"{part!r} does not say which links it is for: write intra=... and inter=...")
    for name, value in (("bandwidth", _bandwidth(part)), ("latency", _latency(part))):
        if value is not None:
            return [(name, value)]
    raise _Part(f"{part!r} is neither a bandwidth (16GB/s, 10Gb/s) nor a latency (150ns, 1us)")


def _option(kind: Kind, option: str, value: str, part: str) -> list[tuple[str, Any]]:
    if option not in kind.options:
        raise _Part(f"{part!r} is no option here: the options are {', '.join(kind.options) or 'none'}")
    name = kind.options[option]
    if not option.startswith("in"):
        return [(name, _whole(value, part))]
    first, _, last = value.rpartition("/")
    bandwidth, latency = _bandwidth(first), _latency(last)
    if bandwidth is None or latency is None:
        raise _Part(f"{part!r} is no bandwidth and latency such as {option}=100GB/s/200ns")
    return [(f"{name}_bandwidth", bandwidth), (f"{name}_latency", latency)]


def _bandwidth(text: str) -> float | None:
    match = _BANDWIDTH.fullmatch(text)
    return float(match[1]) * _PREFIXES[match[2]] / (1 if match[3] == "B" else 8) if match else None


def _latency(text: str) -> float | None:
    match = _LATENCY.fullmatch(text)
    return float(match[1]) / _SECONDS[match[2]] if match else None


def _whole(text: str, part: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise _Part(f"{part!r} has no whole number where one belongs")
    return int(text)


def _shape(text: str, dimensions: tuple[int, ...]) -> list[int]:
    shape = [_whole(length, text) for length in text.split("x")]
    if len(shape) not in dimensions:
        raise _Part(f"{text!r} has {len(shape)} dimensions, not {' or '.join(map(str, dimensions))}")
    return shape


def _dgx(size: int, **arguments: Any) -> Topology:
    if size % 8 or not size:
        raise UsageError(f"{size} ranks are not 8 on each node")
    return topologies.dgx(size // 8, **arguments)


def _from_json(found: Any) -> Topology:
    if not isinstance(found, dict):
        raise _Part("it is no object")
    fields = {"name": str, "size": int, "links": list, "switches": int, "shape": list}
    found = {"switches": 0, "shape": [], **found}
    for field, kind in fields.items():
        if type(found.get(field)) is not kind:
            raise _Part(f"{field!r} is {json.dumps(found.get(field))}, but must be given as {kind.__name__}")
    if unknown := found.keys() - fields.keys():
        raise _Part(f"there is no field {sorted(unknown)[0]!r}: there are {', '.join(fields)}")
    if not all(type(length) is int for length in found["shape"]):
        raise _Part(f"'shape' is {found['shape']}, but must be whole numbers")
    links: dict[tuple[int, int], Link] = {}
    for row in found["links"]:
        pair, link = _link(row)
        if pair in links:
            raise _Part(f"the link from {pair[0]} to {pair[1]} is there twice: give it 2 channels instead")
        links[pair] = link
    return Topology(found["name"], found["size"], links, found["switches"], tuple(found["shape"]))


def _link(row: Any) -> tuple[tuple[int, int], Link]:
    if not isinstance(row, list) or [type(value) for value in row] not in _ROWS:
        raise _Part(f"a link is [source, destination, bytes/s, seconds, channels], not {json.dumps(row)}")
    src, dst, bandwidth, latency, channels = row
    return (src, dst), Link(float(bandwidth), float(latency), channels)


_ROWS = [[int, int, bandwidth, latency, int] for bandwidth in (int, float) for latency in (int, float)]

KINDS: dict[str, Kind] = {
    "ring": Kind(ring, "ring:8,10Gb/s,1us"),
    "one-way-ring": Kind(topologies.one_way_ring, "one-way-ring:8,10Gb/s,1us"),
    "wdm-ring": Kind(topologies.wdm_ring, "wdm-ring:64,w=64,40Gb/s", options={"w": "wavelengths"}),
    "fully-connected": Kind(fully_connected, "fully-connected:8,10Gb/s,1us"),
    "torus": Kind(topologies.torus, "torus:4x4,16GB/s,150ns", dimensions=(1, 2, 3)),
    "mesh": Kind(topologies.mesh, "mesh:8x8,16GB/s,150ns", dimensions=(1, 2, 3)),
    "fat-tree": Kind(topologies.leaf_spine, "fat-tree:16,leaf=4,16GB/s,150ns", options={"leaf": "leaf"}),
    "k-fat-tree": Kind(topologies.fat_tree, "k-fat-tree:4,16GB/s,150ns"),
    "bigraph": Kind(topologies.bigraph, "bigraph:32,each=4,16GB/s,150ns", options={"each": "ranks_each"}),
    "hosts": Kind(
        topologies.hosts,
        "hosts:4x8,intra=100GB/s/200ns,inter=10Gb/s/5us",
        dimensions=(2,),
        options={"intra": "intra", "inter": "inter"},
    ),
    "dgx": Kind(_dgx, "dgx:16,intra=300GB/s/1us,inter=200Gb/s/1us", options={"intra": "intra", "inter": "inter"}),
}
"""The kinds of topology by the name that a text starts with."""
