"""What of recorded calls time has decided, and what they need of each other.

When a call is cancelled, or misses its deadline, depends on the machine. A repetition
has it end as it did: what was cancelled is cancelled at once, what has missed its
deadline has one that has passed, and what did not has none. What a cancel or a full
queue has decided may still end otherwise, and so may all that has waited for it.

`cut` finds the few calls that still fail: parts are left out as long as what is left
fails, ever smaller ones, until no call can be left out (delta debugging; Zeller,
Hildebrandt, 2002). What a call needs stays with it.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence

from asyncnn.hal.types import ErrorStatus
from asyncnn.service.recorded_memory import CallFlag, CallKind
from asyncnn.service.recording import CallRecord, RecordedCall

_FULL = frozenset(
    {
        ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
        ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
        ErrorStatus.DEVICE_UNAVAILABLE,
    }
)
EXECUTIONS = frozenset({CallKind.EXECUTE, CallKind.FENCED, CallKind.BURST})


def is_cancelled(call: RecordedCall) -> bool:
    """Return whether a call was cancelled, and ended because of that."""
    ended_well = call.status == ErrorStatus.NONE
    return bool(call.flags & (CallFlag.CANCELLED | CallFlag.LEFT)) and not ended_well


class CallNeeds:
    """What the calls of a recording need of those before them, by their places."""

    def __init__(self, record: CallRecord) -> None:
        self._record = record
        self.of: list[frozenset[int]] = []
        self.is_known: list[bool] = []
        """Whether all that it reads is in the recording."""
        self.by_time: list[bool] = []
        """Whether it may end otherwise."""
        fenced: dict[tuple[int, int], int] = {}
        buffers: dict[int, list[int]] = {}
        for place, call in enumerate(record.calls):
            self._add(call, fenced, buffers)
            if call.kind is CallKind.FENCED:
                fenced[call.connection, call.number] = place
            for token in tokens_of(record, call):
                buffers.setdefault(token, []).append(place)

    def _add(
        self,
        call: RecordedCall,
        fenced: dict[tuple[int, int], int],
        buffers: dict[int, list[int]],
    ) -> None:
        needed: set[int] = set()
        details = call.details
        is_known = not details.foreign and not call.flags & CallFlag.PARTIAL
        for number in details.wait_for:
            source = fenced.get((call.connection, number))
            if source is not None:
                needed.add(source)
            elif number:
                is_known = False
        for token in tokens_of(self._record, call):
            before = buffers.get(token, [])
            needed.update(before)
            # That it was allocated is not enough, but then nobody can read it.
            is_known = (is_known and bool(before)) or call.kind is CallKind.ALLOCATE
        self.of.append(frozenset(needed))
        self.is_known.append(is_known and all(self.is_known[n] for n in needed))
        by_time = is_cancelled(call) or call.status in _FULL
        self.by_time.append(by_time or any(self.by_time[n] for n in needed))

    def closure(self, places: Sequence[int]) -> list[int]:
        """Return places and the ones of all calls that these need, in order."""
        found: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place not in found:
                found.add(place)
                left += self.of[place]
        return sorted(found)


def tokens_of(record: CallRecord, call: RecordedCall) -> Iterator[int]:
    """Yield the tokens of the device-managed buffers that a call uses."""
    if call.kind in EXECUTIONS and call.subject in record.requests:
        for pool in record.requests[call.subject].pools:
            if pool.is_buffer:
                yield pool.number
    elif call.kind in (CallKind.COPY_TO, CallKind.COPY_FROM):
        yield call.details.buffer
    elif call.buffer in record.buffers:
        yield record.buffers[call.buffer].token


Fails = Callable[[CallRecord], Awaitable[bool]]

MOST_TRIALS = 400


async def cut(record: CallRecord, fails: Fails) -> CallRecord:
    """Return the part of a recording that fails still; it does fail as a whole."""
    needs = CallNeeds(record)
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
