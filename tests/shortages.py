"""Devices used to the full, in processes to which the system gives little."""

import asyncio
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import asyncnn
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening import Opening
from tests.networks import F32, addition, chain

X = np.ones(4, np.float32)
LONG = np.ones(2**18, np.float32)
PATHS = ("async", "sync", "fenced")

THREADS = "thread|process"
DESCRIPTORS = "ulimit -Hn|open files|descriptor"
MEMORY = "memory|thread"
"""What errors say of each shortage; a thread needs memory."""

OPENERS: dict[str, Callable[..., Opening[Any]]] = {
    "default": asyncnn.open_device,
    "accelerated": partial(asyncnn.open_device, "accelerated"),
    "reference": partial(asyncnn.open_device, "reference"),
    "framework": partial(asyncnn.open_device, "framework"),
    "sample": partial(asyncnn.open_devices, "sample-float-fast"),
    "connect": asyncnn.connect,
    "supervised": partial(asyncnn.connect, supervised=True),
    "isolated": partial(asyncnn.open_device, isolated=True),
}
"""Ways to open a device."""


def weighty() -> asyncnn.NamedModel:
    """Return a convolution, whose weights LiteRT packs."""
    builder = asyncnn.ModelBuilder()
    shape = (1, 32, 32, 16)
    image = builder.input("image", F32, shape)
    weights = np.full((16, 3, 3, 16), 0.01, np.float32)
    operands = [image, builder.constant(weights), builder.constant(weights[:, 0, 0, 0])]
    scalars = [builder.scalar(value) for value in (1, 1, 1, 0)]
    kind, result = asyncnn.OperationType.CONV_2D, asyncnn.hal.Operand(F32, shape)
    builder.output(builder.operation(kind, [*operands, *scalars], result), "out")
    return builder.build()


LONG_MODEL, WEIGHTY = chain(300, 4), weighty()
IMAGE = np.ones((1, 32, 32, 16), np.float32)
SUMS = {"": (addition(X.size), X), " long": (addition(LONG.size), LONG)}
"""Made before there is little: what a user has no room for is the user's own."""


class Outcomes:
    """How calls have ended: well, or for want of what errors ``say``."""

    def __init__(self, say: str) -> None:
        self._say = say
        self.failed: dict[str, Exception] = {}

    async def of(self, what: str, call: Any) -> Any:
        """Return what a call gives, None if it has failed."""
        try:
            async with asyncio.timeout(60):
                return await call
        except Exception as error:
            self.failed[what] = error
            self._check(what, error)
            return None

    def _check(self, what: str, error: Exception) -> None:
        where = f"{what}: {type(error).__name__}: {error}"
        if what.startswith("burst") and type(error) is asyncnn.ExecutionFailedError:
            assert "another path" in str(error), where  # packets have no such status
            return
        if what == "buffer" and type(error) is asyncnn.GeneralFailureError:
            assert "no memory" in str(error), where  # as the HAL demands
            return
        assert isinstance(error, asyncnn.ResourceExhaustedError), where
        # Calls of the HAL that return a status alone say no more.
        bare = f"{error.status.name}$|takes no burst"
        said = re.search(f"{self._say}|{bare}", str(error))
        assert said, where


async def use(device: Device, outcomes: Outcomes) -> None:
    """Do with a device all that it is for; what can be computed is right."""
    await outcomes.of("long model", device.prepare(LONG_MODEL))
    weights = await outcomes.of("weights", device.prepare(WEIGHTY))
    if weights is not None:
        await outcomes.of("convolution", weights.run(IMAGE))
    for name, (model, x) in SUMS.items():
        prepared = await outcomes.of(f"sum{name}", device.prepare(model))
        if prepared is None:
            continue
        inputs = {"x": x, "y": x}
        for path in PATHS:
            outputs = await outcomes.of(path + name, prepared.run(inputs, path=path))
            assert outputs is None or _are_all(outputs["z"], 2)
        await outcomes.of(f"burst{name}", _in_a_burst(prepared, inputs))
        await outcomes.of(f"chain{name}", _in_a_chain(prepared, inputs))
        slots = prepared.output("z"), prepared.input("x")
        await outcomes.of("buffer", device.buffer_for(*slots))
    await outcomes.of("statistics", device.statistics())


async def _in_a_burst(prepared: asyncnn.PreparedModel, inputs: dict[str, Any]) -> None:
    async with prepared.burst() as burst:
        assert _are_all((await burst.run(inputs))["z"], 2)


async def _in_a_chain(prepared: asyncnn.PreparedModel, inputs: dict[str, Any]) -> None:
    """Run twice, and have the end told to another process."""
    out = asyncnn.shared_array(inputs["x"].shape)
    first = prepared.run_fenced(inputs, out=[out])
    last = prepared.run_fenced([out, inputs["y"]], wait_for=[first])
    try:
        last.fence.fileno()
    finally:
        await first
        outputs = await last
    assert _are_all(outputs["z"], 3)


def _are_all(array: np.ndarray, value: float) -> bool:
    """Compare without memory for a result."""
    return bool(array.min() == array.max() == value)


async def open_and_use(opener: str, say: str, **options: Any) -> dict[str, Exception]:
    """Open a device and use it; return what has failed, for want of what errors say."""
    outcomes = Outcomes(say)
    device = await outcomes.of("opening", OPENERS[opener](**options))
    if device is not None:
        async with device:
            await use(device, outcomes)
    return outcomes.failed


def held() -> tuple[int, int, int]:
    """Return how many descriptors, threads and tasks this process has."""
    return (
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        len(asyncio.all_tasks()),
    )


def taken_bytes(pid: int | str = "self") -> int:
    """Return how many bytes of address space a process has taken."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[0]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
