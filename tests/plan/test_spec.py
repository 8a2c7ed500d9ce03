"""Topologies as text and as files: what each form means, and which part of a wrong one is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fusionctl.errors import UsageError
from fusionctl.plan import spec
from fusionctl.plan.spec import KINDS, dump, from_spec, load
from fusionctl.plan.topologies import bigraph, dgx, fat_tree, hosts, leaf_spine, mesh, one_way_ring, torus, wdm_ring
from fusionctl.plan.topology import GIGABIT, Link, Topology, fully_connected, ring


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ring:8", ring(8)),
        ("ring:8,10Gb/s,1us", ring(8, 10 * GIGABIT, 1e-6)),
        (" ring:8 , 1us , 10Gbit/s ", ring(8, 10 * GIGABIT, 1e-6)),
        ("one-way-ring:3,2s", one_way_ring(3, latency=2.0)),
        ("wdm-ring:64,w=64,40Gb/s", wdm_ring(64, 64, 40 * GIGABIT)),
        ("fully-connected:4", fully_connected(4)),
        ("torus:4x4,16GB/s,150ns", torus(4, 4, bandwidth=16e9, latency=150e-9)),
        ("torus:2x3x4", torus(2, 3, 4)),
        ("mesh:8x8", mesh(8, 8)),
        ("fat-tree:16", leaf_spine(16, 4)),
        ("fat-tree:16,leaf=8,1GB/s", leaf_spine(16, 8, 1e9)),
        ("k-fat-tree:4", fat_tree(4)),
        ("bigraph:32", bigraph(32, 4)),
        ("bigraph:32,each=2", bigraph(32, 2)),
        ("hosts:4x8,intra=100GB/s/200ns,inter=10Gb/s/5us", hosts(4, 8, 100e9, 200e-9, 10 * GIGABIT, 5e-6)),
        ("dgx:16,inter=100Gb/s/3us", dgx(2, inter_bandwidth=100 * GIGABIT, inter_latency=3e-6)),
    ],
)
def test_a_text_means_a_topology(text: str, expected: Topology) -> None:
    assert spec.topology(text) == expected
    assert list(spec.topology(text).links) == list(expected.links)


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("8b/s,0ns", 1.0, 0.0),
        ("8kbit/s,3ns", 1e3, 3e-9),
        ("1.5MB/s,2.5us", 1.5e6, 2.5e-6),
        ("2MiB/s,4ms", 2.0**21, 4e-3),
        ("1KiB/s,1s", 1024.0, 1.0),
        ("8Gib/s,150ns", 2.0**30, 150e-9),
        ("3TB/s,1us", 3e12, 1e-6),
    ],
)
def test_bandwidths_are_in_bits_or_bytes_and_latencies_in_any_unit_of_time(
    text: str, bandwidth: float, latency: float
) -> None:
    assert from_spec(f"ring:2,{text}") == ring(2, bandwidth, latency)


RING, TORUS, WDM = (KINDS[name].example for name in ("ring", "torus", "wdm-ring"))
HOSTS, TREE, BIGRAPH, DGX = (KINDS[name].example for name in ("hosts", "fat-tree", "bigraph", "dgx"))
NEITHER = "is neither a bandwidth (16GB/s, 10Gb/s) nor a latency (150ns, 1us)"


@pytest.mark.parametrize(
    ("text", "fault", "example"),
    [
        ("ring", "'' has no whole number where one belongs", RING),
        ("ring:eight", "'eight' has no whole number where one belongs", RING),
        ("ring:0", "there cannot be 0 ranks: give 1 or more", RING),
        ("ring:4x4", "'4x4' has 2 dimensions, not 1", RING),
        ("ring:8,,1us", f"'' {NEITHER}", RING),
        ("ring:8,10", f"'10' {NEITHER}", RING),
        ("ring:8,1us,2us", "'2us' says latency a second time", RING),
        ("ring:8,0GB/s", "a link cannot have 0.0 bytes/s", RING),
        ("torus:4x", "'4x' has no whole number where one belongs", TORUS),
        ("torus:4x0", "torus(4, 0): a torus has one dimension or more", TORUS),
        ("torus:4x4,16gb/s", f"'16gb/s' {NEITHER}", TORUS),
        ("torus:4x4,16GB", f"'16GB' {NEITHER}", TORUS),
        ("torus:4x4,150nS", f"'150nS' {NEITHER}", TORUS),
        ("torus:4x4,w=4", "'w=4' is no option here: the options are none", TORUS),
        ("wdm-ring:64", "the number of wavelengths is missing", WDM),
        ("wdm-ring:64,w=many", "'w=many' has no whole number where one belongs", WDM),
        ("wdm-ring:64,w=0", "a link cannot have", WDM),
        ("hosts:4", "'4' has 1 dimensions, not 2", HOSTS),
        ("hosts:4x8,10Gb/s", "'10Gb/s' does not say which links it is for: write intra=... and inter=...", HOSTS),
        ("hosts:4x8,intra=1GB/s", "'intra=1GB/s' is no bandwidth and latency such as intra=100GB/s/200ns", HOSTS),
        ("hosts:4x8,inter=5us", "'inter=5us' is no bandwidth and latency such as inter=100GB/s/200ns", HOSTS),
        ("fat-tree:16,leaf=3", "leaf_spine(16, 3): 3 ranks on each leaf do not divide 16 ranks", TREE),
        ("bigraph:32,leaf=4", "'leaf=4' is no option here: the options are each", BIGRAPH),
        ("hosts:4x8,adapters=2", "'adapters=2' is no option here: the options are intra, inter", HOSTS),
        ("dgx:12", "12 ranks are not 8 on each node", DGX),
    ],
)
def test_the_part_that_is_wrong_is_named_with_an_example(text: str, fault: str, example: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_spec(text)
    assert str(raised.value).startswith(f"topology {text!r}: {fault}")
    assert str(raised.value).endswith(f"; right is {example!r}")


def test_an_unknown_kind_is_answered_with_those_there_are() -> None:
    with pytest.raises(UsageError) as raised:
        spec.topology("tors:4")
    assert str(raised.value) == (
        "topology 'tors:4': 'tors' is no kind of topology: write one of ring, one-way-ring, wdm-ring, fully-connected, "
        "torus, mesh, fat-tree, k-fat-tree, bigraph, hosts, dgx, as in 'torus:4x4,16GB/s,150ns', "
        "or the name of a file that ends in .json"
    )


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_each_example_is_right_and_comes_back_from_a_file(kind: spec.Kind, tmp_path: Path) -> None:
    made = from_spec(kind.example)
    path = tmp_path / "network.json"
    dump(made, path)
    assert spec.topology(str(path)) == made
    assert list(load(path).links) == list(made.links)


def test_a_file_is_readable(tmp_path: Path) -> None:
    dump(Topology("pair", 2, {(0, 2): Link(1e9), (2, 1): Link(1e9, channels=4)}, 1, (2,)), tmp_path / "pair.json")
    assert (tmp_path / "pair.json").read_text() == (
        '{"name": "pair", "size": 2, "switches": 1, "shape": [2], "links": [\n'
        "    [0, 2, 1000000000.0, 1e-06, 1],\n    [2, 1, 1000000000.0, 1e-06, 4]\n]}\n"
    )


LOOP = [[0, 1, 1e9, 0, 1], [1, 0, 1e9, 0, 1]]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", " is no JSON: Expecting property name"),
        ("[]", ": it is no object"),
        ({"size": 2, "links": []}, ": 'name' is null, but must be given as str"),
        ({"name": "x", "size": True, "links": []}, ": 'size' is true, but must be given as int"),
        ({"name": "x", "size": 2, "links": LOOP, "nodes": 3}, ": there is no field 'nodes': there are name, size, "),
        ({"name": "x", "size": 2, "links": [[0, 1]]}, ": a link is [source, destination, bytes/s, seconds, channels]"),
        ({"name": "x", "size": 2, "links": [[0, 1, "1GB/s", 0, 1]]}, ": a link is [source, destination, bytes/s, "),
        ({"name": "x", "size": 2, "links": [*LOOP, LOOP[0]]}, ": the link from 0 to 1 is there twice: "),
        ({"name": "x", "size": 2, "links": [[0, 2, 1e9, 0, 1]]}, ": x: no link can lead from 0 to 2 of 2 ranks"),
        (
            {"name": "x", "size": 2, "links": LOOP[:1]},
            ": x: rank 1 cannot reach rank 0: add the links that are missing",
        ),
        ({"name": "x", "size": 2, "links": LOOP, "shape": [3]}, ": x: a grid of 3 is not one of 2 ranks"),
        ({"name": "x", "size": 2, "links": LOOP, "shape": ["2"]}, ": 'shape' is ['2'], but must be whole numbers"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(content: object, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UsageError, match="^" + re.escape(f"topology file {path}{fault}")):
        spec.topology(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: No such file or directory$"):
        load(tmp_path / "none.json")
