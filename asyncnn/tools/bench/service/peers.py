"""Other ways to have another process work on an image; see also ``echoes``."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.tools.bench.processes import READY, SPAWN, Pipe, process
from asyncnn.tools.bench.rounds import Call

IMAGE_SHAPE = (1, 224, 224, 3)
RESULT_SHAPE = (1, 7, 143, 1)
"""1001 numbers."""


def cut(image: Array) -> Array:
    """Return the 1001 numbers that stand for a result; costs as good as nothing."""
    _, rows, columns, channels = RESULT_SHAPE
    return np.ascontiguousarray(image[:, :rows, :columns, :channels])


@contextlib.asynccontextmanager
async def pipe_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe` with NumPy arrays, blocking at both ends."""
    with process(cpu, _serve_pipe_image) as pipe:

        def call() -> Array:
            pipe.send(image)
            result: Array = pipe.recv()
            return result

        yield call


@contextlib.asynccontextmanager
async def executor_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`ProcessPoolExecutor` of one process with NumPy arrays, awaited."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(
        1, SPAWN, initializer=os.sched_setaffinity, initargs=(0, {cpu})
    ) as executor:

        def call() -> Awaitable[Array]:
            return loop.run_in_executor(executor, cut, image)

        yield call


def _serve_pipe_image(pipe: Pipe) -> None:
    pipe.send_bytes(READY)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(cut(pipe.recv()))
