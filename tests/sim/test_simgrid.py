"""SimGrid's max-min sharing, which others have validated, ends every flow when ours does."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fusionctl.plan import PLANNERS, Link, Schedule, Send, Topology
from fusionctl.sim import SIMULATORS
from fusionctl.sim.network import Network
from networks import fat_tree, made, star, torus

PYTHON = "/usr/bin/python3"
"""Debian's own, for which python3-simgrid is built."""

PROGRAMME = Path(__file__).parent / "harness" / "simgrid_flows.py"


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    if subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, check=False).returncode:
        pytest.fail(f"{PYTHON} has no simgrid: apt-get install --no-install-recommends python3-simgrid")


def task(schedule: Schedule, topology: Topology, nbytes: int) -> dict[str, Any]:
    """The schedule as flows over ways; both simulators are given the same ways."""
    network, flows = Network(schedule, topology, nbytes), []
    for i, step in enumerate(schedule.steps):
        moves = network.moves(step)
        columns = (moves.src, moves.dst, moves.way, moves.latency, moves.nbytes)
        flows += [[i, *row] for row in zip(*(column.tolist() for column in columns), strict=True)]
    ways = [network.tracks_of(np.array([way]))[1].tolist() for way in range(len(network.ways))]
    return {"size": schedule.size, "tracks": network.capacity, "ways": ways, "flows": flows}


def simgrid(schedule: Schedule, topology: Topology, nbytes: int) -> list[float]:
    text = json.dumps(task(schedule, topology, nbytes))
    done = subprocess.run([PYTHON, str(PROGRAMME)], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ends: list[float] = json.loads(done.stdout)
    return ends


@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 24])
@pytest.mark.parametrize("topology", [torus(4, 4), torus(8, 8), fat_tree(4, 4), fat_tree(8, 8)], ids=lambda t: t.name)
@pytest.mark.parametrize("planner", ["recursive", "ring"])
def test_the_flows_of_planners_end_at_the_same_times(planner: str, topology: Topology, nbytes: int) -> None:
    schedule = PLANNERS[planner](topology)
    ends = SIMULATORS["flow"](schedule, topology, nbytes).events["end"]
    assert simgrid(schedule, topology, nbytes) == pytest.approx(ends.tolist(), rel=1e-6)


def uneven(topology: Topology, seed: int) -> Topology:
    """The same links, each of another bandwidth and latency."""
    draw = random.Random(seed)
    links = {pair: Link(draw.uniform(1e9, 1e10), draw.uniform(0, 1e-5)) for pair in topology.links}
    return Topology(topology.name, topology.size, links, topology.switches)


def random_sends(size: int, seed: int) -> Schedule:
    draw = random.Random(seed)
    pairs = [(src, dst) for src in range(size) for dst in range(size) if src != dst]
    steps = [[Send(0, *draw.choice(pairs), True) for _ in range(draw.randint(1, 2 * size))] for _ in range(5)]
    return made(*steps, size=size)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("topology", [torus(4, 4), fat_tree(3, 4), star(9)], ids=lambda t: t.name)
def test_random_flows_on_uneven_links_end_at_the_same_times(topology: Topology, seed: int) -> None:
    schedule = random_sends(topology.size, seed)
    ends = SIMULATORS["flow"](schedule, uneven(topology, seed), 1 << 16).events["end"]
    assert simgrid(schedule, uneven(topology, seed), 1 << 16) == pytest.approx(ends.tolist(), rel=1e-6)
