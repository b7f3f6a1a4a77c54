"""Event loops of each kind."""

import asyncio
from collections.abc import Callable, Coroutine
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


def run_on(kind: str, main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a new loop; wait for no task that is left."""
    loop = LOOPS[kind]()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
