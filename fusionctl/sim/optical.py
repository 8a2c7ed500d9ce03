"""Timing on an optical ring: circuits of one wavelength each, set up anew before the steps that need others.

The machine is that of Dai et al. (WRHT, PPoPP'23; arXiv 2207.10982): N nodes on a ring of fibres in both directions,
each of which carries w wavelengths of bandwidth B.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionctl.errors import UsageError
from fusionctl.plan import Link, ScheduleError, Step, Topology
from fusionctl.plan.topology import GIGABIT
from fusionctl.plan.topology import ring as _ring
from fusionctl.sim.network import Moves, Network, Source
from fusionctl.sim.result import Interval, Recorder, Result


@dataclass(frozen=True, slots=True)
class Optics:
    """An optical ring; the defaults are those that WRHT is reported with.

    `wavelengths` per fibre, `bandwidth` of each in bytes per second and `propagation` in seconds from one node to the
    next make the links of `topology`.  `reconfiguration` is the seconds that setting up circuits takes: before every
    step, as published, or with `keep` only before steps whose lightpaths are not those of the step before.  `oeo` is
    the seconds of converting a packet of `packet` bytes from electrical to optical and back.  Packets consist of flits
    of `flit` bytes, of which whole ones travel if `padded`, else, as in the closed forms, nothing but the payload.
    """

    wavelengths: int = 64
    bandwidth: float = 40 * GIGABIT
    propagation: float = 0.0
    reconfiguration: float = 25e-6
    keep: bool = False
    oeo: float = 0.0
    packet: int = 128
    flit: int = 32
    padded: bool = False

    def __post_init__(self) -> None:
        """Refuse what no machine can have; Link refuses the rest."""
        if not (self.reconfiguration >= 0 and self.oeo >= 0 and self.flit >= 1 and self.packet >= self.flit):
            raise UsageError(
                f"an optical ring cannot have {self.reconfiguration} s per reconfiguration, {self.oeo} s per packet, "
                f"packets of {self.packet} bytes and flits of {self.flit}: the times must be 0 or above, a flit 1 or "
                f"more, and a packet no less than a flit"
            )

    def topology(self, size: int) -> Topology:
        """The ring of that many nodes, both ways, with a channel per wavelength."""
        link = Link(self.bandwidth, self.propagation, self.wavelengths)
        return Topology(f"wdm_ring({size},{self.wavelengths})", size, dict.fromkeys(_ring(size).links, link))


def optical(
    schedule: Source, topology: Topology, nbytes: int, optics: Optics | None = None, *, events: bool = True
) -> Result:
    """Time a schedule on an optical network, step by step; the channel of a send is its wavelength.

    A step takes its reconfiguration, and then as long as its slowest lightpath: the bytes over the bandwidth, the
    latencies of the links, and the conversion of each packet.  Wavelengths, bandwidth and latencies are those of the
    topology, such as `Optics.topology` makes; the rest is `optics`, by default Optics().  WRHT's theta steps take
    theta (d / B + a), a ring 2(N - 1)(d / (N B) + a).

    ScheduleError if two lightpaths of a step share a wavelength on a link, if a way, a link or a wavelength does not
    exist or the numbers of ranks differ; UsageError for bytes below 0.
    """
    optics = optics or Optics()
    network = Network(schedule, topology, nbytes)
    recorder, now = Recorder(network, schedule, nbytes, events), 0.0
    circuits: set[int] = set()
    pauses: list[Interval] = []
    for i, step in enumerate(schedule.steps):
        moves = network.moves(step)
        if not moves.apart:
            raise ScheduleError(f"{schedule.name}, step {i}: {_conflict(step, moves, network)}")
        needed = set(moves.way.tolist())
        if needed and not (optics.keep and needed == circuits):
            pauses.append((now, now + optics.reconfiguration))
            now += optics.reconfiguration
        circuits = needed
        took = _lit(moves, optics)
        start = np.full(took.size, now)
        end = start + took
        recorder.add(moves, start, end, now)
        recorder.hold(moves.track, took[moves.move])
        now = float(end.max(initial=now))
    return recorder.result("optical", pauses)


def _lit(moves: Moves, optics: Optics) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds for which each lightpath is used."""
    packets = -(-moves.nbytes // optics.packet)
    wire = moves.wire
    if optics.padded:
        flits = -(-moves.nbytes // optics.flit)
        wire = wire * (flits * optics.flit / np.maximum(moves.nbytes, 1))
    took: np.ndarray[tuple[int], np.dtype[np.float64]] = moves.latency + wire + packets * optics.oeo
    return took


def _conflict(step: Step, moves: Moves, network: Network) -> str:
    """Says which two sends share which track."""
    first: dict[int, int] = {}
    for move, track in zip(moves.move.tolist(), moves.track.tolist(), strict=True):
        if first.setdefault(track, move) != move:
            src, dst, channel = network.tracks[track]
            return (
                f"{step.sends[first[track]]} and {step.sends[move]} conflict: "
                f"wavelength {channel} of the link from {src} to {dst} carries one lightpath at a time"
            )
    raise AssertionError("no two moves share a track")
