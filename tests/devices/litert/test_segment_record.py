"""What caches keep of written segments, and what is made of it again."""

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.devices.litert import graph_file
from asyncnn.devices.litert.segment_record import recorded, restored
from asyncnn.devices.litert.writer import write_file
from asyncnn.engine.array_memory import address_of
from asyncnn.engine.delegation import KernelRecord, Segment
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType
from asyncnn.memory.pages import TAIL_BYTES
from tests.devices.litert.running import segment_of_one
from tests.kernels.operations import F16, F32, bind, constant, result, tensor


def addition(value: Array, type_=F32) -> Segment:
    x = tensor(type_, np.zeros(value.shape))
    inputs = [x, constant(type_, value), 0]
    return segment_of_one(bind(OperationType.ADD, inputs, [result(type_, value.shape)]))


@pytest.fixture
def value() -> Array:
    return with_tail(np.arange(2048, dtype=np.float32))


def with_tail(array: Array) -> Array:
    """Return a copy with elements behind it, so that it may lie apart anywhere."""
    return np.append(array, np.zeros(TAIL_BYTES, array.dtype))[: array.size]


def among(record: KernelRecord, segment: Segment) -> KernelRecord:
    """Return a record as a cache gives it back, for a plan with these constants."""
    (step,) = segment.steps
    operands = zip(step.inputs, step.operation.inputs, strict=True)
    values = {at: each.value for at, each in operands if each is not None}
    return replace(record, constant=lambda index: values[index])


def test_constants_are_those_of_the_operands(value: Array) -> None:
    segment = addition(value)
    written = write_file(segment)
    record = recorded(written, segment)
    assert not record.numbers
    assert len(record.decided) < value.nbytes / 4
    other = with_tail(value + 1)
    again = restored(among(record, addition(other)))
    assert np.shares_memory(again.apart[0].data, other)
    assert again.joined() == write_file(addition(other)).joined()
    assert restored(among(record, segment)).joined() == written.joined()


def test_what_was_converted_is_kept_as_numbers(
    value: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether a page ends behind what is converted is left to chance.
    monkeypatch.setattr(graph_file, "has_tail", lambda *_: True)
    segment = addition((value / 4).astype(np.float16), F16)
    written = write_file(segment)
    record = recorded(written, segment)
    (numbers,) = record.numbers
    np.testing.assert_array_equal(numbers.view(np.float32), value / 4)
    again = restored(among(record, segment))
    assert again.joined() == written.joined()
    assert recorded(again, segment).decided == record.decided


def test_constants_that_cannot_be_read_in_place_are_copied(value: Array) -> None:
    segment = addition(value)
    record = recorded(write_file(segment), segment)
    raw = np.zeros(value.nbytes + 65, np.uint8)
    odd = raw[1 : 1 + value.nbytes].view(np.float32)
    odd[:] = value
    apart = restored(among(record, addition(odd))).apart[0]
    assert address_of(apart.data) % 4 == 0
    np.testing.assert_array_equal(apart.data, odd.view(np.uint8))


@pytest.mark.parametrize("wrong", ["size", "index", "number", "bytes"])
def test_a_record_of_another_segment_is_refused(value: Array, wrong: str) -> None:
    segment = addition(value)
    record = recorded(write_file(segment), segment)
    decided = msgspec.msgpack.decode(record.decided)
    if wrong == "size":
        segment = addition(value[:1024])
    elif wrong == "bytes":
        record = KernelRecord(b"rubbish")
    else:
        decided[1][0][2] = 77 if wrong == "index" else -1
        record = replace(record, decided=msgspec.msgpack.encode(decided))
    with pytest.raises(GeneralFailureError, match="a segment from a cache"):
        restored(among(record, segment))
