"""Recordings cut down to the few calls that still fail.

Parts of the calls are left out as long as what is left fails, ever smaller ones, until
no call can be left out (delta debugging; Zeller, Hildebrandt, 2002). What a call needs
stays with it.
"""

from collections.abc import Awaitable, Callable, Sequence

from asyncnn.service.recording import CallRecord
from asyncnn.tools.replay.pinning import Needs

Fails = Callable[[CallRecord], Awaitable[bool]]

MOST_TRIALS = 400


async def cut(record: CallRecord, fails: Fails) -> CallRecord:
    """Return the part of a recording that fails still; it does fail as a whole."""
    needs = Needs(record)
    left = list(range(len(record.calls)))
    parts, trials = 2, 0
    while len(left) > 1 and trials < MOST_TRIALS:
        step = -(-len(left) // parts)
        for start in range(0, len(left), step):
            rest = needs.closure(left[:start] + left[start + step :])
            if len(rest) == len(left):
                continue
            trials += 1
            if await fails(_part(record, rest)):
                left, parts = rest, max(parts - 1, 2)
                break
        else:
            if step == 1:
                break
            parts = min(2 * parts, len(left))
    return _part(record, left)


def _part(record: CallRecord, places: Sequence[int]) -> CallRecord:
    return record.of_calls(tuple([record.calls[place] for place in places]))
