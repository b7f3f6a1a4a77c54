"""Device-managed buffers for applications: tensors that stay in the driver."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from asyncnn.hal.errors import InvalidArgumentError
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
from asyncnn.runtime.model import TensorInfo, bytes_of

SHORT_BYTES = 2**21
"""Bytes that are copied in less time than the loop needs to start a thread."""

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
        """Copy arrays, many bytes on a thread; otherwise as `put_now`."""
        if sum([array.nbytes for array in given if array is not None]) > SHORT_BYTES:
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
    device: IDevice | None = None


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

        :raises InvalidArgumentError: if dtype or shape are not the buffer's.
        :raises GeneralFailureError: if something is using the buffer.
        :raises AsyncnnError: for any other status of the driver.
        """
        self._home.check("the buffer")
        array = await _contiguous(contents)
        if array.dtype != self.dtype:
            raise InvalidArgumentError(
                f"the buffer holds {self.dtype}, not {array.dtype}"
            )
        what = f"writing {list(array.shape)} to the buffer"
        self._check_shape(what, array.shape)
        status = await self.hal.copy_from(_pool(array), array.shape)
        _check(self.hal, status, what, "something else uses it")

    async def read(self, shape: tuple[int, ...] | None = None) -> Array:
        """Return a copy of the contents.

        :param shape: of the contents, needed if the slots leave it open.
        :raises InvalidArgumentError: if the shape is open, or not the contents'.
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
        self._check_shape("reading the buffer", shape)
        array = self._make_array(shape, self.dtype)
        status, why = await self.hal.copy_to(_pool(array)), "it holds nothing yet"
        _check(self.hal, status, "reading the buffer", f"{why}, or is being written")
        return array

    def _check_shape(self, what: str, shape: Dimensions) -> None:
        """Check that contents may have this shape."""
        if is_scalar(self._type) and shape:
            raise InvalidArgumentError(f"{what}: its contents are a scalar")
        _merged(what, self.dimensions, shape)

    def __array__(self, *_: Any, **__: Any) -> Array:
        raise no_place_for_buffers()

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
    names = ", ".join(slot.info.name for slot in slots)
    what = f"allocating a buffer for {names}"
    info = _combined(device, slots, dimensions, what)
    models = list({id(slot.hal): slot.hal for slot in slots}.values())
    roles: tuple[list[BufferRole], list[BufferRole]] = ([], [])
    for slot in slots:
        index = next(i for i, model in enumerate(models) if model is slot.hal)
        roles[slot.is_output].append(BufferRole(index, slot.position, 1.0))
    status, buffer, token = await device.allocate(
        BufferDesc(dimensions), models, *roles
    )
    wanted = bytes_of(info)
    why = f"the device has none of {info.dtype}, or no memory for {wanted:,} bytes"
    _check(device, status, what, why)  # the HAL does not say which of both
    assert buffer is not None
    return DeviceBuffer(buffer, token, info, make_array)


def _combined(
    device: IDevice, slots: Sequence[Slot], dimensions: Dimensions, what: str
) -> TensorInfo:
    """Return what all ``slots`` are, with as many known dimensions as there are."""
    first = slots[0].info
    kinds = [(str(s.info.dtype), s.info.scale, s.info.zero_point) for s in slots]
    roles = [(id(slot.hal), slot.is_output, slot.position) for slot in slots]
    for number, (slot, kind) in enumerate(zip(slots, kinds, strict=True)):
        info, wrong = slot.info, ""
        if slot.device not in (None, device):
            wrong = "is of another device"
        elif roles[number] in roles[:number]:
            wrong = "is given twice"
        elif kind != kinds[0]:
            wrong = f"has dtype, scale and zero point {kind}, {first.name} {kinds[0]}"
        if wrong:
            raise InvalidArgumentError(f"{what}: {info.name} {wrong}")
        dimensions = _merged(f"{what}: {info.name}", dimensions, info.dimensions)
    return msgspec.structs.replace(first, dimensions=dimensions)


def _merged(what: str, first: Dimensions, second: Dimensions) -> Dimensions:
    try:
        return combine_dimensions(first, second)
    except InvalidArgumentError as error:
        raise error.at(what) from None


def no_place_for_buffers() -> InvalidArgumentError:
    """Return the error of what goes another way than requests, which name buffers."""
    return InvalidArgumentError(
        "bursts, sessions and NumPy do not know device-managed buffers",
        hint="run, run_fenced and reusable of the prepared model take them",
    )


def _pool(array: Array) -> Memory:
    place = place_of(array)
    if place is not None and place[0].size == array.nbytes:
        return place[0]
    return from_buffer(array)


async def _contiguous(contents: ArrayLike) -> Array:
    if getattr(contents, "nbytes", 0) > SHORT_BYTES:
        return await offload(np.asarray, contents, order="C")
    return np.asarray(contents, order="C")


def _check(
    mortal: IBuffer | IDevice, status: ErrorStatus, what: str, failure: str
) -> None:
    """Check a status; ``failure`` says what GENERAL_FAILURE stands for here."""
    if status is not ErrorStatus.NONE:
        why = failure if status is ErrorStatus.GENERAL_FAILURE else status.name
        raise error_of(mortal, status, f"{what} failed: {why}")
