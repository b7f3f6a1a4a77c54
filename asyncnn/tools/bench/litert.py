"""LiteRT as a peer: ways to await its interpreter."""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

from asyncnn.hal.operations.bound import Array
from asyncnn.tools.other_runtimes import LiteRt

LITERT = "litert"
"""LiteRT as it comes, which runs XNNPACK kernels."""

LITERT_REF = "litert_ref"
"""LiteRT with its reference kernels."""


class OneThread:
    """A thread that makes calls in turn and answers the loop: a hand-written executor.

    Use as a context manager.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._calls.put(None)
        self._thread.join()

    def run(self, call: Callable[[], object]) -> Awaitable[object]:
        """Have the thread make a call; return its result's future."""
        future = self._loop.create_future()
        self._calls.put((call, future))
        return future

    def _serve(self) -> None:
        while (order := self._calls.get()) is not None:
            call, future = order
            try:
                result = call()
            except Exception as error:
                self._loop.call_soon_threadsafe(_answer, future, None, error)
            else:
                self._loop.call_soon_threadsafe(_answer, future, result, None)


def _answer(
    future: "asyncio.Future[object]", result: object, error: Exception | None
) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


@asynccontextmanager
async def in_executor(
    peer: LiteRt, inputs: Sequence[Array]
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Await an interpreter in an executor of one thread."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        yield lambda: loop.run_in_executor(pool, peer.run, inputs)


@asynccontextmanager
async def on_one_thread(
    peer: LiteRt, inputs: Sequence[Array]
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Await an interpreter on a thread of its own."""
    with OneThread() as thread:
        call = partial(peer.run, inputs)
        yield lambda: thread.run(call)
