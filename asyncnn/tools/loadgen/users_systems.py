"""Systems under test that a user would write, and bounds of what any can reach.

An executor around LiteRT's interpreter, ONNX Runtime in `asyncio.to_thread`, threads
without an event loop, and systems that compute nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from threading import local
from typing import Any

from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.loadgen.library import Library
from asyncnn.tools.loadgen.systems import (
    Answering,
    AwaitExecute,
    BlockingSystem,
    Execute,
    System,
    ThreadsSystem,
    await_and_answer,
)
from asyncnn.tools.onnx_writer import OnnxRuntime
from asyncnn.tools.other_runtimes import LiteRt


def litert_execute(path: Path, library: Library) -> Execute:
    """Return what executes samples on a LiteRT interpreter of one thread.

    :raises PeerMissingError: if LiteRT is not installed.
    :raises PeerRefusedError: if it cannot load the model.
    """
    peer = LiteRt(path)
    inputs = library.inputs
    peer.run(inputs[0])
    return lambda number: peer.run(inputs[number])


class TaskSystem(Answering):
    """A task for each query, as an application has one for each request.

    LoadGen's thread hands queries to the loop as they come. ``execute`` awaits one.
    """

    def __init__(self, execute: AwaitExecute) -> None:
        self._loop = asyncio.get_running_loop()
        self._execute = execute
        self._tasks: set[asyncio.Task[None]] = set()

    def issue(self, queries: Sequence[Any]) -> None:
        """See `System`."""
        self._answers.expect(len(queries))
        self._loop.call_soon_threadsafe(self._start, queries)

    def _start(self, queries: Sequence[Any]) -> None:
        for query in queries:
            answering = await_and_answer(self._execute, query, self._answers)
            task = self._loop.create_task(answering)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Wait for what was begun."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def executor_system(
    path: Path, library: Library, threads: int
) -> AsyncIterator[System]:
    """LiteRT in an executor, with an interpreter for each of its ``threads``."""
    executes = [litert_execute(path, library) for _ in range(threads)]
    own = local()

    def take() -> None:
        own.execute = executes.pop()

    def execute(number: int) -> Sequence[Array]:
        result: Sequence[Array] = own.execute(number)
        return result

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(threads, initializer=take) as pool:
        system = TaskSystem(lambda number: loop.run_in_executor(pool, execute, number))
        yield system
        await system.aclose()


@asynccontextmanager
async def to_thread_system(
    named: NamedModel, library: Library
) -> AsyncIterator[System]:
    """ONNX Runtime in `asyncio.to_thread`, on an ONNX file of the same model.

    :raises PeerMissingError: if ONNX Runtime or the package onnx is not installed.
    :raises PeerRefusedError: if the model cannot be rewritten as ONNX.
    """
    session = OnnxRuntime(named)
    feeds = [session.converted(inputs) for inputs in library.inputs]
    session.run(feeds[0])

    async def execute(number: int) -> Sequence[Array]:
        return await asyncio.to_thread(session.run, feeds[number])

    system = TaskSystem(execute)
    yield system
    await system.aclose()


@asynccontextmanager
async def threads_system(
    path: Path, library: Library, threads: int
) -> AsyncIterator[System]:
    """Plain threads with an interpreter each and one queue, without an event loop."""
    executes = [litert_execute(path, library) for _ in range(threads)]
    with ThreadsSystem(executes).serving() as system:
        yield system


def _nothing(number: int) -> Sequence[Array]:
    return ()


async def _awaited_nothing(number: int) -> Sequence[Array]:
    return ()


@asynccontextmanager
async def at_once_system(*, by_loop: bool) -> AsyncIterator[System]:
    """A system that computes nothing: on LoadGen's thread, or through the loop."""
    if not by_loop:
        yield BlockingSystem(_nothing)
        return
    system = TaskSystem(_awaited_nothing)
    yield system
    await system.aclose()
