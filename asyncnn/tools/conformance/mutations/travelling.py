"""Cases in memory that goes to a driver as it is, and is seen to be left alone."""

from functools import cached_property
from typing import Self

from msgspec.structs import replace

from asyncnn.burst.packets import DATUM_BYTES, DEFAULT_QUEUE_LENGTH, RequestShape
from asyncnn.hal.types import MeasureTiming, Memory, Model, Request
from asyncnn.memory.pools import view
from asyncnn.memory.shared import shareable
from asyncnn.tools.conformance.requests import build_request
from asyncnn.tools.conformance.vectors import Case

_UNTOUCHED = 0xA5


def travelling(model: Model) -> Model:
    """Return the model with pools that need no copy on the way to a driver."""
    return replace(model, pools=tuple(map(shareable, model.pools)))


class TravellingRequest:
    """A request of two pools, the second of which, the outputs', is marked."""

    def __init__(self, request: Request, pools: tuple[Memory, Memory]) -> None:
        self.request = request
        self.pools = pools
        _, outputs = pools
        view(outputs)[:] = bytes([_UNTOUCHED]) * outputs.size

    @classmethod
    def of(cls, case: Case) -> Self:
        """Return the request of a case."""
        request = build_request(case).request
        inputs, outputs = (shareable(p) for p in request.pools if isinstance(p, Memory))
        return cls(replace(request, pools=(inputs, outputs)), (inputs, outputs))

    @cached_property
    def packet(self) -> bytes:
        """The packet of the request, to be measured; its pools are slots 0 and 1."""
        return self._shape.encode((0, 1), MeasureTiming.YES)

    @property
    def fits_in_a_packet(self) -> bool:
        """Whether queues of the usual length have room for the packet."""
        return self._shape.size_bytes <= DATUM_BYTES * DEFAULT_QUEUE_LENGTH

    def traces_of(self, label: str) -> list[str]:
        """Return that outputs have been written, if they have, by what ``label`` is."""
        _, outputs = self.pools
        if view(outputs).tobytes().count(_UNTOUCHED) == outputs.size:
            return []
        return [f"{label}: outputs were written"]

    @cached_property
    def _shape(self) -> RequestShape:
        request = self.request
        return RequestShape.of(request.inputs, request.outputs, len(self.pools))
