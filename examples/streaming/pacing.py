"""Sources that deliver on time, as a sound card or a camera would."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

CHUNK_SECONDS = 0.01
"""What a sound card delivers at a time; no whole frame."""

_TIMES_KEPT = 10_000


def chunks(samples: NDArray[np.int16], rate: int) -> Iterator[NDArray[Any]]:
    """Cut a recording as a sound card would."""
    size = round(rate * CHUNK_SECONDS)
    for start in range(0, len(samples), size):
        yield samples[start : start + size]


async def paced(items: Iterable[T], seconds: float) -> AsyncIterator[T]:
    """Yield an item every so many ``seconds``, the first one after as many.

    The clock goes on while the caller works: what is late comes at once. With 0, all
    come as fast as they are taken.
    """
    clock = asyncio.get_running_loop().time
    due = clock()
    for item in items:
        due += seconds
        if (wait := due - clock()) > 0:
            await asyncio.sleep(wait)
        yield item


class Arrivals(Generic[T]):
    """Remembers what entered a pipeline, and for how long it has been inside."""

    def __init__(self) -> None:
        self.lost = 0
        self.seconds: deque[float] = deque(maxlen=_TIMES_KEPT)
        self._entered: deque[tuple[int, float, T]] = deque()
        self._count = 0

    def enter(self, item: T) -> None:
        """Note that ``item`` is put into the pipeline now."""
        self._entered.append((self._count, time.perf_counter(), item))
        self._count += 1

    def leave(self, number: int) -> T:
        """Return the item that was put in as ``number``; those before it got lost."""
        while True:
            entered, since, item = self._entered.popleft()
            if entered == number:
                self.seconds.append(time.perf_counter() - since)
                return item
            self.lost += 1
