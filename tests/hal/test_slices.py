"""Models in slices: what a driver takes apart off its loop, piece by piece."""

import msgspec
import pytest

from asyncnn.hal import slices
from asyncnn.hal.errors import InvalidArgumentError, ResourceExhaustedPersistentError
from asyncnn.hal.slices import joined, sliced
from asyncnn.hal.types import DataLocation, Operation, RequestArgument
from asyncnn.service import wire
from asyncnn.service.decoding import decode_to_driver, encode_given
from tests.networks import chain

MODEL = chain(1000, 2, 2).model


def sent(head: slices.SlicedModel, data: bytes) -> bytes:
    """Return a message as a client of its own mind would encode it."""
    message = wire.PrepareModel(1, head, (), 1, 1, None)
    start = msgspec.msgpack.encode(message)
    return b"\xc1" + len(start).to_bytes(4) + start + data


def test_a_large_model_is_cut_into_small_slices() -> None:
    head, parts = sliced(MODEL)
    assert len(head.main.operations) == 4
    assert max(len(part) for part in parts) <= slices.MAX_SLICE_BYTES
    assert joined(head, memoryview(b"".join(parts))) == MODEL


def test_an_operation_of_many_operands_has_a_slice_for_itself() -> None:
    wide = Operation(0, tuple(range(70_000)), (3,))
    main = msgspec.structs.replace(MODEL.main, operations=(wide, wide))
    model = msgspec.structs.replace(MODEL, main=main)
    assert decode_to_driver(
        wire.encode(wire.GetSupportedOperations(1, model, ()))
    ) == wire.GetSupportedOperations(1, model, ())


def test_what_a_client_does_not_cut_is_refused() -> None:
    head, parts = sliced(MODEL)
    whole = msgspec.msgpack.encode(MODEL.main.operations * 3)
    uncut = msgspec.structs.replace(
        head, main=msgspec.structs.replace(head.main, operations=(len(whole),))
    )
    data = b"".join((*parts[: len(head.main.operands)], whole))
    with pytest.raises(InvalidArgumentError, match="is too large"):
        decode_to_driver(sent(uncut, data))


def test_slices_must_be_as_many_as_the_model_says() -> None:
    head, parts = sliced(MODEL)
    data = b"".join(parts)
    with pytest.raises(InvalidArgumentError, match="missing"):
        decode_to_driver(sent(head, data[:-1]))
    with pytest.raises(InvalidArgumentError, match="more slices"):
        decode_to_driver(sent(head, data + b"\0"))


def test_messages_without_a_model_are_bounded() -> None:
    arguments = (RequestArgument(False, DataLocation(0, 0, 4)),) * 50_000
    message = wire.Execute(1, 1, arguments, (), (), 0, None, None)
    with pytest.raises(InvalidArgumentError, match="not sliced"):
        decode_to_driver(wire.encode(message))
    with pytest.raises(ResourceExhaustedPersistentError, match="too large"):
        encode_given(message)


def test_the_head_of_a_model_is_bounded() -> None:
    head, parts = sliced(MODEL)
    endless = msgspec.structs.replace(head, referenced=(head.main,) * 100_000)
    with pytest.raises(InvalidArgumentError, match="not sliced"):
        decode_to_driver(sent(endless, b"".join(parts)))
