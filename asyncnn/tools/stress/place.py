"""What the body of a process under stress is given: an order, and a way to report."""

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

import asyncnn
from asyncnn.callbacks import IExecutionCallback
from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus, MeasureTiming, OutputShapes, Timing
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.tools.samples import Sample, Tolerance, compare

PATHS: tuple[AnyPath, ...] = ("async", "sync", "fenced", "burst")

_BEATS_S = 0.2
_TOLERANCE = Tolerance(lsb=16, rtol=1e-3, atol=1e-3, scales_atol=True)
"""Engines round otherwise in each layer; what another run gives is farther off."""


class FaultError(Exception):
    """What a case has found: a wrong result, or an end that came twice or never."""


class NotApplicableError(Exception):
    """A case has no meaning for a device."""


class StressOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do.

    ``body`` is a coroutine function of a `StressPlace`, as ``module:name``. The
    ``device`` is opened here unless a driver serves ``socket``. Process ``number`` of
    ``width`` draws from ``seed``. ``folder`` belongs to all of them.
    """

    body: str
    device: str
    is_remote: bool
    socket: str | None
    seed: int
    number: int
    width: int
    folder: str
    generation: int = 0


class StressSpan(msgspec.Struct, frozen=True):
    """Between which seconds of the monotonic clock, which all share, a case goes on."""

    begin: float
    end: float


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """What a process has done by now; ``is_skipped`` if there is nothing to do."""

    counts: dict[str, int] = {}
    figures: dict[str, list[float]] = {}
    problem: str = ""
    is_skipped: bool = False


class Subject(NamedTuple):
    """A model with inputs, each with the outputs that the reference kernels give."""

    named: asyncnn.NamedModel
    samples: Sequence[tuple[Sample, Sample]]

    def check(self, number: int, outputs: Sample, what: str) -> None:
        """Compare outputs with those expected.

        :raises FaultError: if they are wrong.
        """
        for name, expected in self.samples[number][1].items():
            got = compare(name, np.asarray(outputs[name]), expected, _TOLERANCE)
            if not got.passed:
                raise FaultError(
                    f"{what}: output {name} of sample {number} is off by {got.worst:g} "
                    f"in {got.differing} of {got.elements} elements {got.problem}"
                )


Body: TypeAlias = Callable[["StressPlace"], Coroutine[Any, Any, None]]


class StressPlace:
    """What a body knows of its process, and by what it reports how far it is."""

    def __init__(self, order: StressOrder, span: StressSpan, output: int) -> None:
        """Report to the descriptor ``output``."""
        self.order = order
        self.span = span
        self.output = output
        self.rng = random.Random(f"{order.seed} {order.number} {order.generation}")
        self.counts: Counter[str] = Counter()
        self.figures: dict[str, list[float]] = {}
        self._lock = threading.Lock()  # bodies may have threads
        self._reported = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it is time to end, and something was verified."""
        return time.monotonic() >= self.span.end and bool(self.counts)

    @property
    def folder(self) -> Path:
        """A folder that all processes of the case share."""
        return Path(self.order.folder)

    def opened(self, **options: Any) -> AbstractAsyncContextManager[asyncnn.Device]:
        """Return the device as a block: in this process, or by its driver."""
        if self.order.socket is not None:
            return asyncnn.connect(self.order.socket, **options)
        return asyncnn.open_device(self.order.device, settings=OWN_PROCESS, **options)

    async def require(self, device: asyncnn.Device, named: asyncnn.NamedModel) -> None:
        """Check that a device computes a model.

        :raises NotApplicableError: if it does not.
        """
        _, computes = await device.hal.get_supported_operations_1_3(named.model)
        if not all(computes):
            raise NotApplicableError("the device does not compute the model")

    def done(self, what: str, count: int = 1) -> None:
        """Count what was verified; that is reported now and then."""
        with self._lock:
            self.counts[what] += count
            if time.monotonic() > self._reported + _BEATS_S:
                self.report()

    def report(self, problem: str = "", *, is_skipped: bool = False) -> None:
        """Write a line to the process that watches."""
        self._reported = time.monotonic()
        beat = Beat(
            counts=dict(self.counts),
            figures=self.figures,
            problem=problem,
            is_skipped=is_skipped,
        )
        os.write(self.output, msgspec.json.encode(beat) + b"\n")


class CountedCallback(IExecutionCallback):
    """A callback that is awaited, and counts its notifications.

    ``most`` is how many any of this process has got, however late.
    """

    most = 0

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self._status: asyncio.Future[ErrorStatus]
        self._status = asyncio.get_running_loop().create_future()

    def notify_1_3(
        self, status: ErrorStatus, output_shapes: OutputShapes, timing: Timing
    ) -> None:
        """Count a notification."""
        self.count += 1
        CountedCallback.most = max(CountedCallback.most, self.count)
        if not self._status.done():
            self._status.set_result(status)

    async def ended(self) -> ErrorStatus:
        """Return the first status once it is there, and the loop has turned."""
        status = await self._status
        await asyncio.sleep(0)
        self.check()
        return status

    @classmethod
    def check(cls) -> None:
        """Check that each in this process was notified once at most.

        :raises FaultError: if one was more often.
        """
        if cls.most > 1:
            raise FaultError(f"a callback was notified {cls.most} times")


async def run_by_callback(
    prepared: asyncnn.PreparedModel, inputs: Sample
) -> tuple[ErrorStatus, dict[str, Array], CountedCallback]:
    """Execute by the HAL's call with a callback, which is notified once."""
    build = RequestBuilder(prepared.inputs, prepared.outputs)
    outputs = {
        info.name: np.zeros(info.dimensions, info.dtype) for info in prepared.outputs
    }
    request = build([inputs[i.name] for i in prepared.inputs], [*outputs.values()])
    callback = CountedCallback()
    prepared.hal.execute_1_3(request, MeasureTiming.NO, None, None, callback)
    return await callback.ended(), outputs, callback


async def all_of(calls: Sequence[Awaitable[object]]) -> list[object]:
    """Return what calls give, or the errors that they raise, once all have ended."""
    return list(await asyncio.gather(*calls, return_exceptions=True))
