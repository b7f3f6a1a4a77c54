"""Bursts whose driver's side is in another process, on the client's side."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from asyncnn.callbacks import CallbackObject, IBurstCallback
from asyncnn.errors import AsyncnnError
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.types import ErrorStatus, Handle
from asyncnn.service import wire
from asyncnn.service.client.answers import BurstCallbacks


class Send(Protocol):
    """Sends a message, or raises an `AsyncnnError`."""

    def __call__(self, message: wire.ToDriver, fds: Sequence[int] = ()) -> None:
        """Send ``message`` with descriptors beside it."""
        ...


_Answer: TypeAlias = "tuple[ErrorStatus, RemoteBurst | None]"


class RemoteBurst(CallbackObject):
    """The `IBurstContext` of burst ``number`` of a connection."""

    def __init__(self, bursts: "RemoteBursts", number: int) -> None:
        super().__init__()
        self._bursts = bursts
        self._number = number

    def free_memory(self, slot: int) -> None:
        """Have the driver forget the memory of a slot."""
        self._bursts.tell(wire.FreeMemory(self._number, slot))

    def cancel(self, request: int) -> None:
        """Have the driver stop an execution."""
        self._bursts.tell(wire.CancelBurstRequest(self._number, request))

    def close(self) -> None:
        """Have the driver release the burst."""
        self.unlink_to_death()
        self._bursts.release(self._number)


class RemoteBursts:
    """The bursts of a connection by number. Belongs to the event loop.

    ``send_if_open`` sends a message unless the driver is gone.
    """

    def __init__(
        self,
        send: Send,
        send_if_open: Callable[[wire.ToDriver], None],
        callbacks: BurstCallbacks,
    ) -> None:
        self._send = send
        self.tell = send_if_open
        self._callbacks = callbacks
        self._opening: dict[int, asyncio.Future[_Answer]] = {}
        self._open: dict[int, RemoteBurst] = {}

    async def configure(
        self,
        prepared: int,
        callback: IBurstCallback,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Open a burst of a prepared model; cancelling the call releases it."""
        number = self._callbacks.serve(callback)
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._opening[number] = answer
        burst: IBurstContext | None = None
        try:
            self._send(
                wire.ConfigureBurst(
                    number,
                    prepared,
                    request_channel.ints,
                    result_channel.ints,
                    len(request_channel.fds),
                ),
                (*request_channel.fds, *result_channel.fds),
            )
            status, burst = await answer
        except AsyncnnError as error:
            status = error.status
        except asyncio.CancelledError:
            self._open.pop(number, None)
            self.tell(wire.ReleaseBurst(number))
            raise
        finally:
            self._opening.pop(number, None)
            if burst is None:
                self._callbacks.forget(number)
        return status, burst

    def configured(self, number: int, status: ErrorStatus) -> None:
        """Take the driver's answer to `configure`."""
        answer = self._opening.get(number)
        if answer is None or answer.done():
            return
        burst = None
        if status is ErrorStatus.NONE:
            # Not later, by who waits: the next message may tell that it has ended.
            burst = self._open[number] = RemoteBurst(self, number)
        answer.set_result((status, burst))

    def ended(self, number: int) -> None:
        """Learn that the driver has ended a burst."""
        self._callbacks.forget(number)
        burst = self._open.pop(number, None)
        if burst is not None:
            burst.die()

    def release(self, number: int) -> None:
        """Have the driver release a burst, unless it has ended."""
        self._callbacks.forget(number)
        if self._open.pop(number, None) is not None:
            self.tell(wire.ReleaseBurst(number))

    def close(self) -> None:
        """Let all bursts end: the driver is gone."""
        for answer in self._opening.values():
            if not answer.done():
                answer.set_result((ErrorStatus.DEVICE_UNAVAILABLE, None))
        for number in tuple(self._open):
            self.ended(number)
