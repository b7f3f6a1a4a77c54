"""Cancels a task at one of its suspensions, and tells where that is."""

import asyncio
import gc
from collections.abc import Coroutine, Generator
from enum import Enum
from types import FrameType
from typing import Any


class Order(Enum):
    """When the cancellation comes, as seen by what is suspended."""

    AT_ONCE = "at-once"
    """As the task suspends: what it waits for is cancelled before it has begun."""

    WHEN_DONE = "when-done"
    """In the turn in which what it waits for is done: it was notified and cancelled."""


class Cut:
    """Awaits ``coroutine`` and cancels the awaiting task at one of its suspensions.

    Suspensions are counted from 1; with ``at`` 0 it runs through. With ``again``, the
    task is cancelled once more at the next suspension, while it cleans up. With
    ``once_each``, only the first suspension in each place counts.

    Once it ``was_made``, ``place`` has the frames in which the coroutine was suspended,
    and ``cleans_up`` tells whether it has suspended since.
    """

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, object],
        at: int = 0,
        order: Order = Order.AT_ONCE,
        *,
        again: bool = False,
        once_each: bool = False,
    ) -> None:
        self.coroutine = coroutine
        self.was_made = False
        self.cleans_up = False
        self.place: list[str] = []
        self._at = at
        self._order = order
        self._again = again
        self._seen: set[tuple[str, ...]] | None = set() if once_each else None
        self._suspensions = 0

    async def run(self) -> None:
        """Await this, as a task has to be made of a coroutine."""
        await self

    def __await__(self) -> Generator[Any, None, None]:
        task = asyncio.current_task()
        assert task is not None
        steps = self.coroutine.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waited = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return
            finally:
                thrown = None  # it refers to this frame
            self._suspended(task, waited)
            try:
                yield waited
            except BaseException as error:
                thrown = error

    def _suspended(self, task: "asyncio.Task[Any]", waited: Any) -> None:
        """Cancel ``task``, which is about to wait, if it is time to."""
        if self.was_made:
            if self._again and not self.cleans_up:
                task.cancel()
            self.cleans_up = True
        elif self._at and self._counts():
            self._suspensions += 1
            if self._suspensions == self._at:
                self._cancel(task, waited)

    def _counts(self) -> bool:
        if self._seen is None:
            return True
        (*place, _) = suspended_in(self.coroutine)
        before = len(self._seen)
        self._seen.add(tuple(place))
        return len(self._seen) > before

    def _cancel(self, task: "asyncio.Task[Any]", waited: Any) -> None:
        self.was_made = True
        self.place = suspended_in(self.coroutine)
        if self._order is Order.AT_ONCE:
            task.cancel()
        elif waited is None:  # it gives others a turn
            task.get_loop().call_soon(task.cancel)
        else:  # called before the task is woken, as that is asked for later
            waited.add_done_callback(lambda _: task.cancel())


def suspended_in(awaited: Any) -> list[str]:
    """Return the frames in which a coroutine is suspended, and what it waits for."""
    found: list[str] = []
    while awaited is not None:
        kind = next(
            (k for k in ("cr", "ag", "gi") if hasattr(awaited, f"{k}_frame")), ""
        )
        if not kind:
            # Steps of an asynchronous generator do not tell whose they are.
            inside = [o for o in gc.get_referents(awaited) if hasattr(o, "ag_frame")]
            if not inside:
                return [*found, repr(awaited)]
            (awaited,) = inside
            continue
        frame: FrameType | None = getattr(awaited, f"{kind}_frame")
        if frame is not None:
            code = frame.f_code
            found.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}")
        inner = "gi_yieldfrom" if kind == "gi" else f"{kind}_await"
        awaited = getattr(awaited, inner)
    return found
