"""Turns packets into requests with their memories, on the driver's side."""

from typing import NamedTuple

from asyncnn.burst.memories import SlotCache
from asyncnn.burst.requests import RequestShape, decode_request
from asyncnn.callbacks import IBurstCallback
from asyncnn.hal.types import MeasureTiming, Memory, Request
from asyncnn.sparse_log import SparseLogger

MAX_SHAPES = 8
"""Shapes of packets that are known again; all are forgotten at once."""


class BoundRequest(NamedTuple):
    """What a packet asks for."""

    packet: bytes
    request: Request
    measure: MeasureTiming


class Binder:
    """Binds the packets of one burst.

    A packet equal to the last one is the same `Request` object again, and one that
    differs in slots alone has the same arguments, so that validation has seen them.
    """

    def __init__(self, callback: IBurstCallback, log: SparseLogger) -> None:
        self._memories = SlotCache(callback, log)
        self._shape = RequestShape.of((), (), 0)
        self._shapes: list[RequestShape] = []
        self._last: BoundRequest | None = None
        self._was_freed = False

    def bind_nowait(self, packet: bytes) -> BoundRequest | None:
        """Return what a packet asks for; None if `bind` has to ask for memories.

        :raises PacketError: if the packet is malformed.
        """
        last = self._last
        if last is not None and packet == last.packet:
            return last
        slots, measure = self._decode(packet)
        pools = self._memories.find(slots)
        return None if pools is None else self._keep(packet, pools, measure)

    async def bind(self, packet: bytes) -> BoundRequest:
        """Return what a packet asks for, asking for the memories that are unknown.

        :raises PacketError: if the packet is malformed.
        :raises AsyncnnError: if the application does not provide the memories.
        """
        slots, measure = self._decode(packet)
        self._was_freed = False
        pools = await self._memories.fetch(slots)
        bound = self._keep(packet, pools, measure)
        if self._was_freed:
            self._last = None
        return bound

    def free(self, slot: int) -> None:
        """Forget the memory of a slot."""
        self._memories.free(slot)
        self._last = None
        self._was_freed = True

    def clear(self) -> None:
        """Forget everything that keeps memories alive."""
        self._memories.clear()
        self._last = None

    def _decode(self, packet: bytes) -> tuple[tuple[int, ...], MeasureTiming]:
        known = self._shape.decode(packet)
        if known is not None:
            return known
        for shape in self._shapes:
            known = shape.decode(packet)
            if known is not None:
                self._shape = shape
                return known
        self._shape, slots, measure = decode_request(packet)
        if len(self._shapes) == MAX_SHAPES:
            self._shapes.clear()
        self._shapes.append(self._shape)
        return slots, measure

    def _keep(
        self, packet: bytes, pools: tuple[Memory, ...], measure: MeasureTiming
    ) -> BoundRequest:
        request = Request(self._shape.inputs, self._shape.outputs, pools)
        self._last = BoundRequest(packet, request, measure)
        return self._last
