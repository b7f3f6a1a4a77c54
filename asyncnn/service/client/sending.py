"""Sending models, the only messages of a client that may be large.

To copy constants that do not travel, and to encode a model and write it to a file,
takes long if they are large: that is done on a thread, and the message sent from the
loop afterwards.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from msgspec.structs import replace

from asyncnn.errors import ResourceExhaustedTransientError
from asyncnn.hal.types import Memory, Model
from asyncnn.memory.shared import shareable
from asyncnn.offload import offload
from asyncnn.service import wire
from asyncnn.service.client.offered import OfferedPools
from asyncnn.service.limits import is_large
from asyncnn.service.message_files import MessageFile

LARGE_BYTES = 256 * 1024
"""To copy more keeps the loop for longer than a thread takes to start."""

MakeMessage: TypeAlias = Callable[[Model, tuple[int, ...]], wire.WithModel]
"""Makes the message with a model that has no pools, but their numbers."""


class Send(Protocol):
    """Sends a message, or raises an `AsyncnnError`."""

    def __call__(
        self, message: wire.ToDriver | MessageFile, fds: Sequence[int] = ()
    ) -> None:
        """Send ``message`` with descriptors beside it."""
        ...


class ModelSender:
    """Sends messages with models. Belongs to the event loop."""

    def __init__(self, send: Send, pools: OfferedPools) -> None:
        self._send = send
        self._pools = pools

    def takes_long(self, model: Model) -> bool:
        """Tell whether to send ``model`` at once would keep the loop for long."""
        copied = sum([pool.size for pool in model.pools if not pool.handle.fds])
        return is_large(model) or copied + len(model.operand_values) > LARGE_BYTES

    def send_now(
        self, model: Model, make: MakeMessage, fds: Sequence[int] = ()
    ) -> None:
        """Send a message with ``model``.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        pools = _all_shareable(model.pools)
        self._send(make(replace(model, pools=()), self._pools.numbers_of(pools)), fds)

    async def send(
        self,
        model: Model,
        make: MakeMessage,
        fds: Sequence[int] = (),
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send a message with ``model`` unless it has ceased to be wanted by then.

        :raises AsyncnnError: if it cannot be sent, because the driver is gone, say.
        """
        pools = await offload(_all_shareable, model.pools)
        if not is_wanted():
            return
        message = make(replace(model, pools=()), self._pools.numbers_of(pools))
        file = await offload(_encoded, message)
        if is_wanted():
            self._send(file, fds)


def _all_shareable(pools: Sequence[Memory]) -> list[Memory]:
    return [shareable(memory) for memory in pools]


def _encoded(message: wire.ToDriver) -> MessageFile:
    try:
        return MessageFile(wire.encode_given(message))
    except OSError as error:
        raise ResourceExhaustedTransientError(
            f"a message cannot be sent: {error.strerror}"
        ) from error
