"""Both ends of a queue, whichever of them was created, and a check for leaks."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from asyncnn.fmq import MessageQueue
from tests.memory.foreign import leaks, traces

QUANTUM, COUNT = 8, 16
CAPACITY = QUANTUM * COUNT


class Ends(NamedTuple):
    writer: MessageQueue
    reader: MessageQueue


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = traces()
    yield
    assert not leaks(before)


@pytest.fixture(params=["the writer", "the reader"])
def ends(request: pytest.FixtureRequest, nothing_is_left: None) -> Iterator[Ends]:
    """Two ends in this process, of which the one named made the queue."""
    created = MessageQueue.create(QUANTUM, COUNT)
    opened = MessageQueue.open(created.descriptor)
    pair = (created, opened) if request.param == "the writer" else (opened, created)
    yield Ends(*pair)
    for end in pair:
        end.close()


def elements(count: int, start: int = 0) -> bytes:
    """Return so many elements, all different."""
    numbers = range(start, start + count)
    return b"".join(number.to_bytes(QUANTUM, "little") for number in numbers)
