"""What is under way for clients of a server: admitted, counted, ended with it."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Self, TypeVar

from asyncnn.execution import Outputs
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.offload import offload
from asyncnn.oip.admission import AskedRun
from asyncnn.oip.client_regions import Placement
from asyncnn.oip.repository import Repository, ServedModel

T = TypeVar("T")

END_S = 5
"""Seconds that answers have to get to their clients once nothing is computed."""


class Door:
    """Where requests of one server come in; ``stop`` is called when it is to stop."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.under_way: set[Admitted] = set()
        self._closing: asyncio.Task[None] | None = None
        self.stop: Callable[[], Awaitable[None]] | None = None
        repository.doors.add(self.close)

    @property
    def is_ready(self) -> bool:
        """Whether requests are let in, and the device is there."""
        return self.repository.is_ready and not self.is_closing

    @property
    def is_closing(self) -> bool:
        """Whether no more are let in."""
        return self._closing is not None

    async def close(self) -> None:
        """Let no more in, and return when those under way have been answered.

        What takes longer than `OipLimits.grace_s` stops computing, and is answered by
        DEVICE_UNAVAILABLE.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        # Whoever closes it as well waits, too; who stops waiting leaves the rest alone.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self.stop is not None:
            await self.stop()
        answering = {each.task for each in self.under_way}
        late = await _left(answering, self.repository.limits.grace_s)
        for each in self.under_way:
            each.cut()
        await _left(late, END_S)
        self.repository.doors.discard(self.close)


async def _left(
    tasks: "set[asyncio.Task[Any]]", seconds: float
) -> "set[asyncio.Task[Any]]":
    """Return which tasks have not ended after some seconds."""
    return (await asyncio.wait(tasks, timeout=seconds))[1] if tasks else tasks


class ModelRequest(ABC, Generic[T]):
    """A request for a run, as one of both faces has it.

    Outputs of up to ``short_answer`` bytes are written in a moment.
    """

    short_answer: int

    @property
    @abstractmethod
    def is_short(self) -> bool:
        """Whether it is read in a moment."""

    @abstractmethod
    def read(self, placement: Placement) -> None:
        """Find its tensors.

        :raises InvalidArgumentError: if it is none, or does not fit the model.
        """

    @abstractmethod
    def wanted(self) -> AskedRun:
        """Return how it is to be run, once it is read.

        :raises InvalidArgumentError: if a parameter has a value that it cannot have.
        """

    @abstractmethod
    def write(self, served: ServedModel, outputs: Outputs, placement: Placement) -> T:
        """Return its answer, with those outputs that do not lie elsewhere."""


class Admitted:
    """One request for a model from its first byte on: admitted, timed and counted.

    A context; ``task`` is in it.
    """

    def __init__(self, door: Door, size: int) -> None:
        """Be one of the requests under way.

        :raises DeviceUnavailableError: if the server is to stop.
        :raises ResourceExhaustedError: if there is no room for its bytes.
        """
        self._door, self._repository, self._size = door, door.repository, size
        if door.is_closing:
            raise stopping()
        self._repository.admission.enter(size)
        task = asyncio.current_task()
        assert task is not None
        self.task, self._cancelled_before = task, task.cancelling()
        self._is_cut = False
        self.served: ServedModel | None = None
        self._start = self._read = self._inferred = time.perf_counter_ns()

    async def answer(
        self,
        name: str,
        version: str,
        request: ModelRequest[T],
        once_sent: Callable[[Callable[..., None]], object] | None = None,
    ) -> T:
        """Run a model for a request, and return its answer.

        What lies in shared memory is read before, or written behind; its bytes count as
        the request's. Bytes of the answer count until what ``once_sent`` is given is
        called.

        :raises DeviceUnavailableError: if the model is not ready, or was loaded anew
            meanwhile and has an output no longer.
        :raises AsyncnnError: as `Repository.run`, or if the request does not fit the
            model, or there is no room in or for shared memory.
        """
        repository = self._repository
        served = self.served = repository.usable(name, version)
        placement = Placement(repository.regions, served.inputs, served.outputs)
        if request.is_short:
            request.read(placement)
        else:
            await offload(request.read, placement)
        if placement.inputs:
            size = sum(span.size for span, *_ in placement.inputs.values())
            repository.admission.grow(self._size, size)
            self._size += size
            await placement.read()
        self._read = time.perf_counter_ns()
        outputs = await repository.run(served, placement.arrays, request.wanted())
        self._inferred = time.perf_counter_ns()
        for missing in placement.asked.keys() - outputs.keys():
            raise DeviceUnavailableError(
                f"the model was loaded anew, and has no output {missing!r}"
            )
        if placement.outputs:
            await placement.write(outputs)
        sent = (placement.asked or outputs).keys() - placement.outputs.keys()
        size = sum([outputs[each].nbytes for each in sent])
        if once_sent is not None:
            repository.admission.hold(size)
            once_sent(lambda *_: repository.admission.release(size))
        if size <= request.short_answer:
            return request.write(served, outputs, placement)
        return await offload(request.write, served, outputs, placement)

    def cut(self) -> None:
        """Have it end now, as its server does."""
        self._is_cut = True
        self.task.cancel()

    def __enter__(self) -> Self:
        self._door.under_way.add(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Count it.

        :raises DeviceUnavailableError: if it was cut, and nobody else cancels it.
        """
        self._door.under_way.discard(self)
        self._repository.admission.leave(self._size)
        if self.served is not None:  # what is not for a model counts for none
            self._count(self.served, is_success=kind is None)
        if self._is_cut and self.task.uncancel() <= self._cancelled_before:
            raise stopping()

    def _count(self, served: ServedModel, *, is_success: bool) -> None:
        tallies, now = served.tallies, time.perf_counter_ns()
        tallies.last_ms = time.time_ns() // 1_000_000
        tallies.add("success" if is_success else "fail", now - self._start)
        if is_success:
            tallies.add("compute_input", self._read - self._start)
            tallies.add("compute_infer", self._inferred - self._read)
            tallies.add("compute_output", now - self._inferred)


def stopping() -> DeviceUnavailableError:
    """Return the error of requests that a server has no time for."""
    return DeviceUnavailableError("the server is about to stop")
