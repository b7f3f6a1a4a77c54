"""Written segments as records in caches, and written again from these.

The file itself is part of what is sealed there: a damaged one could do anything. What
lies apart of it are constants of the model, which the data cache has anyway, or numbers
that were converted from such. Neither decides what runs, or where in memory.
"""

import msgspec
import numpy as np

from asyncnn.devices.litert.graph_file import Apart, GraphFile, may_lie_apart
from asyncnn.engine.delegation import KernelRecord, Segment
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.memory.pages import TAIL_BYTES, aligned_bytes


class _Constant(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that lie apart: of an operand, or of number ``-1 - index``."""

    position: int
    size: int
    index: int


class _Decided(msgspec.Struct, frozen=True, array_like=True):
    content: bytes
    constants: tuple[_Constant, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Decided).decode


def recorded(file: GraphFile, segment: Segment) -> KernelRecord:
    """Return the record of the file that was written of ``segment``."""
    indexes = {id(value): index for index, value in _values(segment).items()}
    constants: list[_Constant] = []
    numbers: list[Array] = []
    for position, data, source in file.apart:
        index = indexes.get(id(source))
        if index is None:
            numbers.append(data)
            index = -len(numbers)
        constants.append(_Constant(position, data.size, index))
    decided = _Decided(file.content, tuple(constants))
    return KernelRecord(_encode(decided), tuple(numbers))


def restored(record: KernelRecord) -> GraphFile:
    """Return the file that was written of a segment, without writing it.

    :raises GeneralFailureError: if the record is not of it.
    """
    constant = record.constant
    assert constant is not None
    try:
        decided = _decode(record.decided)
        apart = []
        for each in decided.constants:
            is_operand = each.index >= 0
            source = constant(each.index) if is_operand else record.numbers[~each.index]
            data = source.reshape(-1).view(np.uint8)
            if data.size != each.size:
                raise ValueError(f"{data.size} bytes instead of {each.size}")
            apart.append(Apart(each.position, _readable(data), source))
    except (msgspec.MsgspecError, LookupError, ValueError) as error:
        raise GeneralFailureError(f"a segment from a cache: {error}") from error
    return GraphFile(decided.content, tuple(apart))


def _values(segment: Segment) -> dict[int, Array]:
    return {
        index: operand.value
        for step in segment.steps
        for index, operand in zip(step.inputs, step.operation.inputs, strict=True)
        if operand is not None and operand.value is not None
    }


def _readable(data: Array) -> Array:
    """Return bytes that may lie apart: these, or a copy."""
    if may_lie_apart(data):
        return data
    copy = aligned_bytes(data.size + TAIL_BYTES)[: data.size]
    copy[:] = data
    return copy
