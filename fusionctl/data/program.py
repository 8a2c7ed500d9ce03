"""What one rank does of a schedule, as a flat int32 array that the engine interprets.

    [n_chunks, n_steps, then for each step: n_records, then for each record: kind, peer, chunk, channel]

The records of a step are its receives, sorted by chunk and then by peer, and after them its sends, sorted by peer and
then by chunk, so that what two ranks exchange in a step has the same order on both.  All of them are posted at once.
A RECV lands in the chunk itself, a RECV_REDUCE in a buffer of its own; when the whole step has arrived, a chunk is
reduced over what came for it and this rank's own, in the order of the ranks they came from.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionctl.plan import Schedule, ScheduleError, Step

SEND = 0
RECV = 1
RECV_REDUCE = 2

Program = NDArray[np.int32]
Record = tuple[int, int, int, int]
"""Kind, peer, chunk, channel."""


def program_of(schedule: Schedule, rank: int) -> Program:
    """The part that a rank has in a verified schedule.

    ScheduleError if a step would receive a chunk into the place that it is being sent from.
    """
    words = [schedule.n_chunks, len(schedule.steps)]
    for i, step in enumerate(schedule.steps):
        received, sent = _receives(step, rank), _sends(step, rank)
        _refuse_race(f"{schedule.name}, step {i}", rank, received, sent)
        words.append(len(received) + len(sent))
        words.extend(word for record in received + sent for word in record)
    return np.array(words, np.int32)


def _receives(step: Step, rank: int) -> list[Record]:
    mine = sorted((send for send in step.sends if send.dst == rank), key=lambda send: (send.chunk, send.src))
    return [(RECV_REDUCE if send.reduce else RECV, send.src, send.chunk, send.channel) for send in mine]


def _sends(step: Step, rank: int) -> list[Record]:
    mine = sorted((send for send in step.sends if send.src == rank), key=lambda send: (send.dst, send.chunk))
    return [(SEND, send.dst, send.chunk, send.channel) for send in mine]


def _refuse_race(where: str, rank: int, received: list[Record], sent: list[Record]) -> None:
    replaced = {chunk: peer for kind, peer, chunk, _ in received if kind == RECV}
    for _, peer, chunk, channel in sent:
        if chunk in replaced:
            raise ScheduleError(
                f"{where}: rank {rank} sends chunk {chunk} to rank {peer} on channel {channel} "
                f"while rank {replaced[chunk]} replaces it: move one of the two into another step"
            )
