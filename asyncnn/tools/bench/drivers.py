"""Driver processes on a CPU of their own."""

import contextlib
from collections.abc import AsyncIterator

from asyncnn.runtime.device import Device, connect
from asyncnn.service.process import driver_process
from asyncnn.tools.bench.noop import serve_no_op
from asyncnn.tools.bench.placement import pinned
from asyncnn.tools.bench.processes import process, temporary_folder


@contextlib.asynccontextmanager
async def driver_on(cpu: int) -> AsyncIterator[Device]:
    """Start a driver process on one CPU and connect to it."""
    with contextlib.ExitStack() as stack:
        with pinned(cpu):
            driver = stack.enter_context(driver_process())
        async with connect(driver.path) as device:
            yield device


@contextlib.asynccontextmanager
async def no_op_driver_on(cpu: int) -> AsyncIterator[Device]:
    """Start a driver process that computes nothing, likewise."""
    with temporary_folder() as path, process(cpu, serve_no_op, path / "driver.sock"):
        async with connect(path / "driver.sock") as device:
            yield device
