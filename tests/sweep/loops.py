"""Event loops of each kind, and a bound for what holds one up."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def eager() -> asyncio.AbstractEventLoop:
    """Return a loop whose tasks begin at once."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
if hasattr(asyncio, "eager_task_factory"):
    LOOPS["eager"] = eager


def run_on(kind: str, main: Coroutine[Any, Any, T], *, limit_s: int) -> T:
    """Run ``main`` on a new loop; wait for no task that is left.

    :raises TimeoutError: if it takes too long, even if the loop is held up.
    """
    loop = LOOPS[kind]()
    try:
        with _alarm(limit_s):
            return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@contextmanager
def _alarm(limit_s: int) -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {limit_s} s")

    former = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)
