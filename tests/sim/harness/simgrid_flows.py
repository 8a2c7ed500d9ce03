"""The flows of a schedule in SimGrid: a programme for Debian's python3 with python3-simgrid 3.32; JSON in, JSON out.

In: `tracks`, the bandwidth of each in bytes per second; `ways`, the tracks of each; `size`, the number of ranks;
`flows`, each as [step, src, dst, way, latency, bytes].  Out: when each flow ended, in seconds.

A rank's flows of a step start when all flows from and to it of the steps before have ended.  SimGrid's part is how
flows share links, at a precision of 1e-12.  Its corrections for TCP are off: bandwidth-factor 1, latency-factor 1,
weight-S 0, TCP-gamma 0, no crosstraffic of acknowledgements.  Beyond that it would weight each flow by the inverse of
its latency, so links have none here, and a flow starts after its latency has passed.
"""

from __future__ import annotations

import heapq
import json
import sys
from typing import Any

from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, this_actor

PLAIN = (
    "network/model:CM02",
    "network/bandwidth-factor:1.0",
    "network/latency-factor:1.0",
    "network/weight-S:0.0",
    "network/TCP-gamma:0.0",
    "network/crosstraffic:0",
    "maxmin/precision:1e-12",
    "surf/precision:1e-12",
)


def platform(zone: Any, bandwidths: list[float], ways: list[list[int]]) -> list[tuple[Any, Any]]:
    """Two hosts for each way, with a route of its tracks between them."""
    links = [zone.create_link(f"track{i}", bandwidth).set_latency(0.0).seal() for i, bandwidth in enumerate(bandwidths)]
    ends = []
    for i, way in enumerate(ways):
        src, dst = (zone.create_host(f"way{i}.{end}", 1e9).seal() for end in ("src", "dst"))
        zone.add_route(src.netpoint, dst.netpoint, None, None, [LinkInRoute(links[track]) for track in way], False)
        ends.append((src, dst))
    zone.seal()
    return ends


class Ranks:
    """Which flows may start: those of a rank's next step, when all its flows of the steps before have ended."""

    def __init__(self, size: int, flows: list[list[float]]) -> None:
        self.parts: list[dict[int, list[int]]] = [{} for _ in range(size)]
        self.flows = flows
        for number, (step, src, dst, *_) in enumerate(flows):
            for rank in (src, dst):
                self.parts[int(rank)].setdefault(int(step), []).append(number)
        self.ended: set[int] = set()

    def next_flows(self, rank: int) -> list[int]:
        """What a rank sends now, having entered the next step."""
        step = min(self.parts[rank], default=None)
        return [] if step is None else [flow for flow in self.parts[rank][step] if self.flows[flow][1] == rank]

    def advance(self, rank: int) -> list[int]:
        """What a rank sends after it has left the steps that are complete."""
        begun: list[int] = []
        while self.parts[rank] and self.ended.issuperset(self.parts[rank][min(self.parts[rank])]):
            del self.parts[rank][min(self.parts[rank])]
            begun += self.next_flows(rank)
        return begun


def race(ends: list[tuple[Any, Any]], task: dict[str, Any], times: list[float]) -> None:
    """Carry the flows out; the one actor there is."""
    flows, ranks = task["flows"], Ranks(task["size"], task["flows"])
    late: list[tuple[float, int]] = []
    comms: dict[int, Any] = {}

    def begin(begun: list[int]) -> None:
        for flow in begun:
            heapq.heappush(late, (Engine.clock + flows[flow][4], flow))

    begin([flow for rank in range(task["size"]) for flow in ranks.next_flows(rank)])
    while late or comms:
        while late and late[0][0] <= Engine.clock * (1 + 1e-12):
            flow = heapq.heappop(late)[1]
            comms[flow] = Comm.sendto_async(*ends[flows[flow][3]], flows[flow][5])
        order = list(comms)
        done = wait([comms[flow] for flow in order], late[0][0] - Engine.clock if late else -1.0)
        if done is not None:
            flow = order[done]
            del comms[flow]
            times[flow] = Engine.clock
            ranks.ended.add(flow)
            for rank in flows[flow][1:3]:
                begin(ranks.advance(rank))


def wait(comms: list[Any], seconds: float) -> int | None:
    """The place of one that has ended, or None after the seconds."""
    if not comms:
        this_actor.sleep_for(seconds)
        return None
    place = Comm.wait_any_for(comms, seconds)
    return None if place < 0 else place


def main() -> None:
    task = json.load(sys.stdin)
    engine = Engine([sys.argv[0], *(f"--cfg={setting}" for setting in PLAIN), "--log=root.thres:warning"])
    ends = platform(NetZone.create_full_zone("all"), task["tracks"], task["ways"])
    times = [0.0] * len(task["flows"])
    Actor.create("ranks", ends[0][0], race, ends, task, times)
    engine.run()
    json.dump(times, sys.stdout)


if __name__ == "__main__":
    main()
