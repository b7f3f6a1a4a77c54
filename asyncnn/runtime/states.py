"""What a model keeps from step to step: the requests that carry it, and its places.

Callers name inputs and outputs alone. `StatefulRequests` adds the state, which the HAL
knows as further inputs and outputs; `StatePlaces` are where it lies.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from asyncnn.hal.errors import (
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.hal.interfaces import IDevice, IMortal, IPreparedModel
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Request, RequestArgument
from asyncnn.memory.slabs import place_of
from asyncnn.runtime.buffers import DeviceBuffer, MakeArray, Slot, allocate_buffer
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.requests import RequestBuilder, Tensor

logger = logging.getLogger(__name__)

_Arguments: TypeAlias = tuple[tuple[RequestArgument, ...], tuple[RequestArgument, ...]]

MAX_ARGUMENTS = 16
"""Arguments that requests share; models with open shapes may have any number."""


class StatefulRequests:
    """Makes requests of a model with state from the inputs and outputs of its callers.

    A call is that of a `RequestBuilder`: a run of its own, which begins with the first
    values, and whose state is thrown away. ``make_array`` is that of the device.
    """

    def __init__(self, model: NamedModel, make_array: MakeArray) -> None:
        self.infos = infos = tuple(state.info for state in model.states)
        self._build = RequestBuilder((*model.inputs, *infos), (*model.outputs, *infos))
        self.first = tuple(state.first_value() for state in model.states)
        self._make_array = make_array
        self._first_shared: tuple[Array, ...] | None = None
        self._arguments: dict[_Arguments, _Arguments] = {}

    def __call__(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Request:
        """Return the request of a run that has no step before or after it."""
        first = self.first
        make: MakeArray = np.empty
        # Beside arrays that the driver sees, as those of bursts are, it sees the state.
        if self._make_array is not np.empty and _are_shared((*inputs, *outputs)):
            if self._first_shared is None:
                self._first_shared = tuple(map(self.placed, first))
            first, make = self._first_shared, self._make_array
        # Of each run its own: kernels may compute in the memory of outputs.
        unused = [make(info.dimensions, info.dtype) for info in self.infos]
        return self._build((*inputs, *first), (*outputs, *unused))

    def between(
        self,
        before: Sequence[Tensor],
        after: Sequence[Tensor],
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
    ) -> Request:
        """Return the request of a step that reads ``before`` and writes ``after``."""
        request = self._build((*inputs, *before), (*outputs, *after))
        arguments = request.inputs, request.outputs
        known = self._arguments.get(arguments)
        if known is None:
            if len(self._arguments) == MAX_ARGUMENTS:
                self._arguments.clear()
            known = self._arguments[arguments] = arguments
        return Request(*known, request.pools)

    def placed(self, array: Array) -> Array:
        """Return a copy of an array that the device works on where it is."""
        place = self._make_array(array.shape, array.dtype)
        place[...] = array
        return place

    def checked(self, state: Mapping[str, Any]) -> tuple[Array, ...]:
        """Return copies of arrays by name, in the order of the states.

        :raises InvalidArgumentError: if one is missing, unknown, or of the wrong dtype
            or shape.
        """
        names = [info.name for info in self.infos]
        if set(state) != set(names):
            raise InvalidArgumentError(
                f"the state consists of {names}, not {sorted(state)}"
                if names
                else "the model keeps no state, so none can be given",
            )
        arrays: list[Array] = []
        for info in self.infos:
            array = np.asarray(state[info.name])
            if array.dtype != info.dtype or array.shape != info.dimensions:
                raise InvalidArgumentError(
                    f"state {info.name} is {info.dtype} {list(info.dimensions)}, not "
                    f"{array.dtype} {list(array.shape)}"
                )
            arrays.append(array.copy())
        return tuple(arrays)


def _are_shared(tensors: Sequence[Tensor | None]) -> bool:
    return all(
        place_of(tensor) is not None
        for tensor in tensors
        if isinstance(tensor, np.ndarray)
    )


class StatePlaces:
    """Two places for each state, which steps use in turn: read one, write the other.

    They are device-managed buffers, or arrays where the device has none of those.
    ``are_managed`` tells which, ``cause_of_death`` why what lies in them is lost.
    """

    __slots__ = ("are_managed", "cause_of_death", "pair")

    def __init__(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        self.pair = tuple(first), tuple(second)
        mortals = [place.hal for place in first if isinstance(place, DeviceBuffer)]
        self.are_managed = bool(mortals)
        self.cause_of_death: Callable[[], DeviceUnavailableError | None] = _immortal
        # All are of one driver.
        if mortals and isinstance(mortals[0], IMortal):
            self.cause_of_death = mortals[0].cause_of_death

    @classmethod
    async def allocate(
        cls,
        device: IDevice | None,
        slots: Sequence[tuple[Slot, Slot]],
        make_array: MakeArray,
        kept: Sequence[Tensor] | None = None,
    ) -> Self:
        """Allocate places; those ``kept`` are the first ones.

        :raises AsyncnnError: if the driver is gone, or has too many buffers.
        """
        if kept is None:
            kept = await _allocated(device, slots, make_array)
        return cls(kept, await _allocated(device, slots, make_array))

    async def read(self, index: int) -> tuple[Array, ...]:
        """Return copies of what lies in one place of each pair.

        :raises AsyncnnError: if the driver is gone.
        """
        return tuple(await asyncio.gather(*map(_copied, self.pair[index])))


def _immortal() -> None:
    return None


async def _copied(place: Tensor) -> Array:
    # A copy in memory of this process alone: states are kept for long.
    return (await place.read() if isinstance(place, DeviceBuffer) else place).copy()


async def _allocated(
    device: IDevice | None, slots: Sequence[tuple[Slot, Slot]], make_array: MakeArray
) -> list[Tensor]:
    places: list[Tensor] = []
    for pair in slots:
        try:
            if device is None:
                raise GeneralFailureError("nothing is known of the device")
            places.append(await allocate_buffer(device, pair, (), make_array))
        except GeneralFailureError as error:
            logger.info("state %s stays in an array: %s", pair[0].info.name, error)
            places.append(make_array(pair[0].info.dimensions, pair[0].info.dtype))
    return places


def slots_of(
    hal: IPreparedModel, infos: Sequence[TensorInfo], inputs: int, outputs: int
) -> list[tuple[Slot, Slot]]:
    """Return what stands for each state after ``inputs`` and ``outputs`` others."""
    return [
        (
            Slot(hal, info, inputs + position, False),
            Slot(hal, info, outputs + position, True),
        )
        for position, info in enumerate(infos)
    ]
