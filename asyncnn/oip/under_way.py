"""What is under way for clients of a server: admitted, counted, ended with it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

from asyncnn.execution import Outputs
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.operations.bound import Array
from asyncnn.oip.admission import AskedRun
from asyncnn.oip.client_regions import Placement
from asyncnn.oip.repository import Repository, ServedModel

END_S = 5
"""Seconds that answers have to get to their clients once nothing is computed."""


async def _nobody_told() -> None:
    pass


class Door:
    """Where requests of one server come in; ``tell`` is awaited when it is to stop."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.under_way: set[Admitted] = set()
        self.is_closing = False
        self.tell: Callable[[], Awaitable[None]] = _nobody_told
        repository.doors.add(self.close)

    @property
    def is_ready(self) -> bool:
        """Whether requests are let in, and the device is there."""
        return self.repository.is_ready and not self.is_closing

    async def close(self) -> None:
        """Let no more in, and return when those under way have been answered.

        What takes longer than `OipLimits.grace_s` stops computing, and is answered by
        DEVICE_UNAVAILABLE.
        """
        if self.is_closing:
            return
        self.is_closing = True
        await self.tell()
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


class Admitted:
    """One request for a model from its first byte on: admitted, timed and counted.

    A context, in which ``served`` is set before `run`; of ``task``, which answers it.
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

    async def run(
        self,
        arrays: dict[str, Array],
        placement: Placement,
        wanted: AskedRun,
        asked: Iterable[Any],
    ) -> Outputs:
        """Run the model; what lies in shared memory is read before, or written behind.

        Its bytes count as the request's.

        :param asked: the outputs that the request asks for, each with its ``name``.
        :raises DeviceUnavailableError: if the model was loaded anew since they were
            checked, and has one of them no longer.
        :raises AsyncnnError: as `Repository.run`, or if there is no room in or for
            shared memory.
        """
        served, repository = self.served, self._repository
        assert served is not None
        if placement.inputs:
            size = sum(each.span.size for each in placement.inputs.values())
            repository.admission.grow(self._size, size)
            self._size += size
            arrays |= await placement.read()
        self._read = time.perf_counter_ns()
        outputs = await repository.run(served, arrays, wanted)
        self._inferred = time.perf_counter_ns()
        for output in asked:
            if output.name not in outputs:
                raise DeviceUnavailableError(
                    f"the model was loaded anew, and has no output {output.name!r}"
                )
        if placement.outputs:
            await placement.write(outputs)
        return outputs

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
        if not is_success:
            tallies.fail.add(now - self._start)
            return
        tallies.success.add(now - self._start)
        tallies.compute_input.add(self._read - self._start)
        tallies.compute_infer.add(self._inferred - self._read)
        tallies.compute_output.add(now - self._inferred)


def stopping() -> DeviceUnavailableError:
    """Return the error of requests that a server has no time for."""
    return DeviceUnavailableError("the server is about to stop")
