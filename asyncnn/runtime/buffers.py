"""Device-managed buffers for applications: tensors that stay in the driver."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.interfaces import IBuffer, IDevice, IPreparedModel, error_of
from asyncnn.hal.operands import combine_dimensions, is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    BufferToken,
    Dimensions,
    ErrorStatus,
    Memory,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.slabs import place_of
from asyncnn.offload import offload
from asyncnn.runtime.home import Home
from asyncnn.runtime.model import TensorInfo

SHORT_ELEMENTS = 2**15
"""Elements that are converted, and copied, faster than by another thread."""

MakeArray: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Makes an array of a shape and dtype."""


class Places:
    """Arrays of our own, which what a caller gives is copied to.

    None stands for an input that was omitted, or whose shape is not known yet.
    """

    def __init__(self, arrays: Iterable[Array | None], make_array: MakeArray) -> None:
        self.arrays = list(arrays)
        self._make_array = make_array

    async def put(self, given: Sequence[Array | None]) -> list[Array | None]:
        """Copy arrays, many elements on a thread; otherwise as `put_now`."""
        if sum([array.size for array in given if array is not None]) > SHORT_ELEMENTS:
            return await offload(self.put_now, given)
        return self.put_now(given)

    def put_now(self, given: Sequence[Array | None]) -> list[Array | None]:
        """Copy arrays, making room where it is missing; return what had to give way."""
        last: list[Array | None] = []
        places = self.arrays.copy()  # where there is no memory, nothing changes
        for position, array in enumerate(given):
            place = places[position]
            if array is None and place is not None:
                last.append(place)
                places[position] = None
            elif array is not None and (place is None or place.shape != array.shape):
                last.append(place)
                places[position] = self._make_array(array.shape, array.dtype)
        self.arrays = places
        for place, array in zip(places, given, strict=True):
            if place is not None and array is not None:
                np.copyto(place, array)
        return last


class Slot(msgspec.Struct, frozen=True, eq=False):
    """An input or output of a prepared model, for `Device.buffer_for`.

    Made by `PreparedModel.input` and `PreparedModel.output`.
    """

    hal: IPreparedModel
    info: TensorInfo
    position: int
    is_output: bool


class DeviceBuffer:
    """A tensor in the driver, made by `Device.buffer_for`; `run` and its kin take it.

    It holds nothing until it was written or was the output of a run that has succeeded.
    A run that fails leaves its outputs without contents, and a run or copy fails if
    another one is writing the buffer. The driver frees it once it is not referred to.

    ``pool`` is what requests of the HAL name it by, ``hal`` the HAL's object.
    """

    __slots__ = (
        "__weakref__",
        "_home",
        "_make_array",
        "_type",
        "dimensions",
        "dtype",
        "hal",
        "pool",
    )

    def __init__(
        self, hal: IBuffer, token: int, info: TensorInfo, make_array: MakeArray
    ) -> None:
        self.hal = hal
        self.pool = BufferToken(token)
        self.dtype = info.dtype
        self.dimensions = info.dimensions
        self._type = info.type
        self._make_array = make_array
        self._home = Home()

    async def write(self, contents: ArrayLike) -> None:
        """Set the contents.

        :raises InvalidArgumentError: if dtype or shape are not those of the buffer.
        :raises GeneralFailureError: if something is using the buffer.
        :raises AsyncnnError: for any other status of the driver.
        """
        self._home.check("the buffer")
        array = await _contiguous(contents)
        if array.dtype != self.dtype:
            raise InvalidArgumentError(
                f"the buffer holds {self.dtype}, not {array.dtype}"
            )
        status = await self.hal.copy_from(_pool(array), array.shape)
        _check(self.hal, status, f"writing {list(array.shape)} to the buffer")

    async def read(self, shape: tuple[int, ...] | None = None) -> Array:
        """Return a copy of the contents.

        :param shape: that of the contents, needed if the slots leave it open.
        :raises InvalidArgumentError: if the shape is open, or not that of the contents.
        :raises GeneralFailureError: if there are none, or something is writing them.
        :raises AsyncnnError: for any other status of the driver.
        """
        self._home.check("the buffer")
        if shape is None:
            shape = self.dimensions
            if not is_scalar(self._type) and (not shape or 0 in shape):
                raise InvalidArgumentError(
                    f"the buffer is open to any {list(shape)}",
                    hint="say which shape its contents have",
                )
        array = self._make_array(shape, self.dtype)
        _check(self.hal, await self.hal.copy_to(_pool(array)), "reading the buffer")
        return array

    def __repr__(self) -> str:
        return f"<DeviceBuffer {self.dtype} {list(self.dimensions)}>"


async def allocate_buffer(
    device: IDevice,
    slots: Sequence[Slot],
    dimensions: Dimensions,
    make_array: MakeArray,
) -> DeviceBuffer:
    """Allocate a buffer for ``slots``.

    :raises AsyncnnError: if it cannot be allocated.
    """
    models = list({id(slot.hal): slot.hal for slot in slots}.values())
    roles: tuple[list[BufferRole], list[BufferRole]] = ([], [])
    for slot in slots:
        index = next(i for i, model in enumerate(models) if model is slot.hal)
        roles[slot.is_output].append(BufferRole(index, slot.position, 1.0))
    status, buffer, token = await device.allocate(
        BufferDesc(dimensions), models, *roles
    )
    names = ", ".join(slot.info.name for slot in slots)
    what = f"allocating a buffer for {names or 'nothing'}"
    if status is ErrorStatus.GENERAL_FAILURE:  # which is all that the HAL says of both
        raise GeneralFailureError(
            f"{what} failed: the device has none of that type, or no memory for it"
        )
    _check(device, status, what)
    assert buffer is not None
    for slot in slots:
        dimensions = combine_dimensions(dimensions, slot.info.dimensions)
    info = slots[0].info
    if dimensions != info.dimensions:
        info = msgspec.structs.replace(info, dimensions=dimensions)
    return DeviceBuffer(buffer, token, info, make_array)


def _pool(array: Array) -> Memory:
    """Return the pool that an array is all of, or make one around it."""
    place = place_of(array)
    if place is not None and place[0].size == array.nbytes:
        return place[0]
    return from_buffer(array)


async def _contiguous(contents: ArrayLike) -> Array:
    """Return an array that lies in one piece; large ones are made on a thread."""
    if getattr(contents, "size", 0) > SHORT_ELEMENTS:
        return await offload(np.asarray, contents, order="C")
    return np.asarray(contents, order="C")


def _check(mortal: IBuffer | IDevice, status: ErrorStatus, what: str) -> None:
    if status is not ErrorStatus.NONE:
        raise error_of(mortal, status, f"{what} failed: {status.name}")
