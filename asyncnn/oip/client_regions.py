"""System shared memory: tensors lie in objects that a client has made and named.

A client can cut its object short at any time, which ends who touches a mapping of it.
So none is mapped: inputs are read from it, and outputs written to it.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from asyncnn import hal
from asyncnn.hal.errors import require_known, too_many
from asyncnn.hal.operations.bound import Array
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.pages import aligned_bytes, os_errors, read_into, write_all
from asyncnn.memory.posix_memory import open_object, own_name, posix_name
from asyncnn.offload import offload
from asyncnn.oip.admission import MAX_CHARACTERS, UnknownNameError
from asyncnn.oip.datatypes import COPIED_BYTES, check_truths, declared
from asyncnn.runtime.model import TensorInfo

REGION = "shared_memory_region"
SIZE, OFFSET = "shared_memory_byte_size", "shared_memory_offset"
PLACE_PARAMETERS = REGION, SIZE, OFFSET

_OWN = own_name("x")[:-1]
"""What names of this project's own objects begin with."""


class SharedRegion(NamedTuple):
    """Some bytes of an object that POSIX calls ``/key``."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: Descriptor


class RegionSpan(NamedTuple):
    """Where a tensor lies; ``start`` counts from the beginning of the object."""

    region: SharedRegion
    start: int
    size: int

    @property
    def parameters(self) -> dict[str, Any]:
        """What an answer says of an output that was written there."""
        offset = self.start - self.region.offset
        return {REGION: self.region.name, SIZE: self.size, OFFSET: offset}


Placed: TypeAlias = Sequence[tuple[RegionSpan, Array]]
"""Arrays, each with where its bytes lie. They are contiguous."""


class SharedRegions:
    """What clients have registered, by name; all clients know the same regions.

    None can be unless the server ``is_open`` to that: whoever reaches it has the shared
    memory of its user then, but for asyncnn's own.
    """

    def __init__(self, most: int, *, is_open: bool = False) -> None:
        self.is_open = is_open
        self._most = most
        self._known: dict[str, SharedRegion] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Know some bytes of an object by a name.

        :raises InvalidArgumentError: if the name is taken or too long, or that is no
            such object.
        :raises GeneralFailureError: if it is not there, or is of another user.
        :raises ResourceExhaustedTransientError: if there are too many.
        """
        if not self.is_open:
            raise hal.InvalidArgumentError(
                "shared memory is not served", hint="start it with --shared-memory"
            )
        if len(name) > MAX_CHARACTERS:
            raise hal.InvalidArgumentError(
                f"the name of a region has {len(name)} characters",
                hint=f"it may have {MAX_CHARACTERS}",
            )
        if name in self._known:
            raise hal.InvalidArgumentError(f"there is a region {name!r} already"[:200])
        if len(self._known) >= self._most:
            raise too_many("regions", "OipLimits.max_regions", self._most)
        path = posix_name(f"/{key.removeprefix('/')}")
        if path.startswith(_OWN):
            raise hal.InvalidArgumentError(f"{path} is asyncnn's own")
        with os_errors(path):
            file = open_object(path)
            size = os.fstat(file.fd).st_size
        if offset < 0 or byte_size < 1 or offset + byte_size > size:
            raise hal.InvalidArgumentError(
                f"{byte_size} bytes at {offset} are not within {path} of {size} bytes"
            )
        self._known[name] = SharedRegion(name, key, offset, byte_size, file)

    def unregister(self, name: str = "") -> None:
        """Forget a region, or all; runs under way go on with it."""
        if name:
            self._known.pop(name, None)
        else:
            self._known.clear()

    def records(self, name: str = "") -> list[dict[str, Any]]:
        """Return what is known of a region, or of all.

        :raises UnknownNameError: if there is none of that name.
        """
        asked: Iterable[SharedRegion] = (
            [self._find(name)] if name else self._known.values()
        )
        return [dict(zip(each._fields[:-1], each, strict=False)) for each in asked]

    def _find(self, name: object) -> SharedRegion:
        region = self._known.get(name) if isinstance(name, str) else None
        if region is None:
            raise UnknownNameError(f"there is no region {name!r}"[:200])
        return region

    def span(self, parameters: Mapping[str, Any]) -> RegionSpan:
        """Return where the parameters of a tensor say that it lies.

        :raises UnknownNameError: if there is no such region.
        :raises InvalidArgumentError: if that is not within it.
        """
        region = self._find(parameters[REGION])
        size, offset = parameters.get(SIZE), parameters.get(OFFSET, 0)
        if type(size) is not int or type(offset) is not int:
            raise hal.InvalidArgumentError(f"{SIZE} and {OFFSET} are numbers of bytes")
        if offset < 0 or size < 0 or offset + size > region.byte_size:
            raise hal.InvalidArgumentError(
                f"{size} bytes at {offset} are not within region {region.name!r} of "
                f"{region.byte_size} bytes"
            )
        return RegionSpan(region, region.offset + offset, size)


class Placement:
    """Tensors of one request: ``arrays`` that come with it, and where others lie.

    ``inputs`` are these, each with its place, dtype and shape, ``outputs`` those that
    go to a region, and ``asked`` all that it asks for, with their parameters.
    """

    def __init__(
        self,
        regions: SharedRegions,
        takes: Mapping[str, TensorInfo],
        gives: Mapping[str, TensorInfo],
    ) -> None:
        self.takes, self._gives, self._regions = takes, gives, regions
        self.arrays: dict[str, Array] = {}
        self.inputs: dict[str, tuple[RegionSpan, np.dtype[Any], tuple[int, ...]]] = {}
        self.asked: dict[str, Mapping[str, Any]] = {}
        self.outputs: dict[str, RegionSpan] = {}

    def declare(
        self,
        name: str,
        datatype: str,
        shape: tuple[int, ...],
        parameters: Mapping[str, Any],
    ) -> np.dtype[Any] | None:
        """Return the dtype of an input that comes with the request; None of another.

        :raises InvalidArgumentError: as `declared`, or if it is given twice, or its
            place is none or has another size.
        """
        dtype = declared(self.takes, name, datatype, shape)
        if name in self.arrays or name in self.inputs:
            raise hal.InvalidArgumentError(f"input {name!r} is given twice")
        if REGION not in parameters:
            return dtype
        span = self._regions.span(parameters)
        wanted = math.prod(shape) * dtype.itemsize
        if span.size != wanted:
            raise hal.InvalidArgumentError(
                f"input {name!r} of shape {[*shape]} has {span.size} bytes in region "
                f"{span.region.name!r}, not {wanted}"
            )
        self.inputs[name] = span, dtype, shape
        return None

    def ask(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Note that an output is asked for, and where it is to be written.

        :raises InvalidArgumentError: if there is no such output or place, or it is
            asked for twice.
        """
        if name in self.asked:  # else an answer could be any number of times as long
            raise hal.InvalidArgumentError(f"output {name!r} is asked for twice")
        require_known("output", name, self._gives)
        self.asked[name] = parameters
        if REGION in parameters:
            self.outputs[name] = self._regions.span(parameters)

    async def read(self) -> None:
        """Read the inputs that are placed.

        :raises GeneralFailureError: if an object was cut short, or cannot be read.
        """
        arrays = {
            name: aligned_bytes(span.size).view(dtype).reshape(shape)
            for name, (span, dtype, shape) in self.inputs.items()
        }
        spans = [span for span, *_ in self.inputs.values()]
        await _moved(_read, [*zip(spans, arrays.values(), strict=True)])
        self.arrays |= arrays

    async def write(self, outputs: Mapping[str, Array]) -> None:
        """Write the outputs that are placed.

        :raises InvalidArgumentError: if one is larger than its place.
        :raises GeneralFailureError: if an object was cut short, or cannot be written.
        """
        placed = []
        for name, span in self.outputs.items():
            array = np.ascontiguousarray(outputs[name])
            if array.nbytes > span.size:
                raise hal.InvalidArgumentError(
                    f"output {name!r} has {array.nbytes} bytes, its place in region "
                    f"{span.region.name!r} {span.size}"
                )
            self.outputs[name] = span._replace(size=array.nbytes)
            placed.append((self.outputs[name], array))
        await _moved(_write, placed)


async def _moved(move: Callable[[Placed], None], placed: Placed) -> None:
    if sum(span.size for span, _ in placed) <= COPIED_BYTES:
        move(placed)
    else:
        await offload(move, placed)


def _read(placed: Placed) -> None:
    for span, array in placed:
        with os_errors(f"region {span.region.name!r}"):
            data = array.reshape(-1).view(np.uint8).data
            if read_into(data, span.region.file.fd, span.start) < span.size:
                raise _cut_short(span)
        check_truths(f"region {span.region.name!r}", array)


def _write(placed: Placed) -> None:
    for span, array in placed:
        fd = span.region.file.fd
        with os_errors(f"region {span.region.name!r}"):
            if os.fstat(fd).st_size < span.start + span.size:  # it would grow again
                raise _cut_short(span)
            write_all(fd, array.reshape(-1).view(np.uint8).data, span.start)


def _cut_short(span: RegionSpan) -> hal.GeneralFailureError:
    return hal.GeneralFailureError(f"region {span.region.name!r} was cut short")
