"""Damaged and hostile files end in one clean error, and soon."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tflite

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from asyncnn.tflite import flatbuffer
from tests.conftest import one_in
from tests.runtime.tflite.cases import I8, I32, boolean, const, f32, i8, i32, ramp
from tests.runtime.tflite.files import G, Op, Signature, T, given, write
from tests.runtime.tflite.flow_files import (
    add,
    assign,
    handle,
    if_,
    initial,
    less_than,
    named,
    once,
    read,
    while_,
)
from tests.runtime.tflite.graphs import conv_2d
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.layers import Integers, Lstm
from tests.runtime.tflite.metadata_files import Described, written


def hybrid_file() -> bytes:
    """Return a small file in which every part of the schema occurs."""
    x, hidden = i8(1, 4, 4, 2), i8(1, 4, 4, 4)
    weights = ramp((4, 1, 1, 2), I8, scale=(0.5, 0.25, 0.1, 0.2))
    bias = ramp((4,), I32, scale=(0.1,) * 4)
    operators = [
        conv_2d(x, weights, bias, hidden),
        Op("RESHAPE", [hidden, const([1, 64])], [y := i8(1, 64)], "ReshapeOptions"),
        Op("DEQUANTIZE", [y], [z := f32(1, 64)]),
        Op("SOFTMAX", [z], [out := f32(1, 64)], "SoftmaxOptions", {"Beta": 1.0}),
    ]
    return write(operators, [x], [out])


def recurrent_file() -> bytes:
    """Return a small file with state, intermediates and all parts of an LSTM layer."""
    layer = Lstm(peephole=True, normalised=True, outputs=2, inputs=2, units=2)
    operator = layer.sequence(Integers(), steps=2)
    return write([operator], given(operator), operator.outputs)


def streaming_file() -> bytes:
    """Return a small file with variables, a branch, a loop, names and metadata."""
    resource, old, new, x, y = handle(), f32(3), f32(3), f32(3), f32(3)
    yes, i, n, inner, a, z = boolean(1), i32(1), i32(1), handle(), f32(3), f32(3)
    kept, same, j, k = f32(3), f32(3), i32(1), i32(1)
    assigning = [read(inner, kept), add(a, kept, z), assign(inner, z)]
    operators = [
        once(1),
        named(resource),
        if_([yes, resource, x], [y], 2, 3),
        read(resource, old),
        add(old, y, new),
        while_([i], [n], 4, 5),
    ]
    metadata = written([Described("a", "b", (), [1], [2])] * 2, [Described("c")])
    return write(
        operators,
        [yes, x, i],
        [new, n],
        initial(T.constant([1, 2, 3], np.float32)),
        G(assigning, [inner, a], [z]),
        G([], [handle(), same], [same]),
        less_than(3),
        G([add(j, const([1]), k)], [j], [k]),
        signatures=[Signature("step", {"yes": yes}, {"sum": new})],
        metadata=metadata,
    )


def outcome(data: bytes) -> AsyncnnError | None:
    try:
        import_tflite(from_buffer(data))
    except AsyncnnError as error:
        return error
    return None


class TestHostileFiles:
    @pytest.mark.parametrize("make", [hybrid_file, streaming_file])
    def test_every_truncation_is_an_error_or_harmless(
        self, make: Callable[[], bytes]
    ) -> None:
        data = make()
        assert outcome(data) is None
        errors = [outcome(data[:length]) for length in range(len(data) // 2)]
        assert all(errors)
        for length in range(len(data) // 2, len(data)):
            outcome(data[:length])

    @pytest.mark.parametrize("byte", one_in(5, [0xFF, 0x00, 0x01, 0x7F, 0x80]))
    @pytest.mark.parametrize(
        "make",
        [
            hybrid_file,
            # What coverage can see of it, extreme words have done.
            pytest.param(
                streaming_file, marks=[pytest.mark.exhaustive, pytest.mark.unrecorded]
            ),
        ],
    )
    def test_any_byte_may_have_any_value(
        self, make: Callable[[], bytes], byte: int
    ) -> None:
        data = bytearray(make())
        for index, original in enumerate(data):
            data[index] = byte
            outcome(bytes(data))
            data[index] = original

    @pytest.mark.parametrize("make", [hybrid_file, recurrent_file, streaming_file])
    @pytest.mark.parametrize("word", one_in(3, [-1, 2**31 - 1, -(2**31)]))
    def test_any_word_may_have_an_extreme_value(
        self, make: Callable[[], bytes], word: int
    ) -> None:
        data = make()
        extreme = word.to_bytes(4, "little", signed=True)
        for index in range(0, len(data) - 3, 4):
            outcome(data[:index] + extreme + data[index + 4 :])

    @pytest.mark.parametrize("seed", range(4))
    def test_many_bytes_may_be_wrong_in_a_trained_model(
        self, shared: Path, seed: int
    ) -> None:
        data = (shared / "models" / "hello_world_int8.tflite").read_bytes()
        rng = np.random.default_rng(seed)
        for _ in range(100):
            mutant = np.frombuffer(data, np.uint8).copy()
            places = rng.integers(0, len(data), rng.integers(1, 9))
            mutant[places] = rng.integers(0, 256, len(places), np.uint8)
            outcome(mutant.tobytes())

    def test_operators_that_share_one_long_vector_are_refused_soon(self) -> None:
        builder = tflite.flatbuffers.Builder(1 << 20)
        indexes = builder.CreateNumpyVector(np.zeros(100_000, np.int32))
        tflite.OperatorStart(builder)
        tflite.OperatorAddInputs(builder, indexes)
        operator = tflite.OperatorEnd(builder)
        tflite.TensorStart(builder)
        tensor = tflite.TensorEnd(builder)
        tensors = repeated(builder, tensor, 1)
        operators = repeated(builder, operator, 50_000)
        tflite.SubGraphStart(builder)
        tflite.SubGraphAddTensors(builder, tensors)
        tflite.SubGraphAddOperators(builder, operators)
        graph = repeated(builder, tflite.SubGraphEnd(builder), 1)
        tflite.OperatorCodeStart(builder)
        codes = repeated(builder, tflite.OperatorCodeEnd(builder), 1)
        tflite.BufferStart(builder)
        buffers = repeated(builder, tflite.BufferEnd(builder), 1)
        tflite.ModelStart(builder)
        tflite.ModelAddVersion(builder, 3)
        tflite.ModelAddSubgraphs(builder, graph)
        tflite.ModelAddOperatorCodes(builder, codes)
        tflite.ModelAddBuffers(builder, buffers)
        builder.Finish(tflite.ModelEnd(builder), file_identifier=b"TFL3")
        with pytest.raises(InvalidArgumentError, match="longer than the file"):
            import_tflite(from_buffer(bytes(builder.Output())))


def repeated(builder: tflite.flatbuffers.Builder, offset: int, count: int) -> int:
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


@pytest.mark.parametrize("units", [3, 40])
def test_scales_that_reach_beyond_the_file_are_refused(units: int) -> None:
    scales = np.linspace(1, 2, units, dtype=np.float32)
    x, y = i8(1, 1, 1, 1), i8(1, 1, 1, units)
    weights = ramp((units, 1, 1, 1), I8, scale=tuple(scales.tolist()))
    data = bytearray(write([conv_2d(x, weights, None, y)], [x], [y]))
    start = data.index(scales.tobytes())
    count = (len(data) - start) // scales.itemsize + 1
    data[start - 4 : start] = count.to_bytes(4, "little")
    with pytest.raises(InvalidArgumentError, match=r"beyond its end|longer than"):
        import_tflite(from_buffer(memoryview(bytes(data))))


def table(offsets: list[int], fields: bytes) -> tuple[memoryview, int]:
    """Return bytes with a table of fields at offsets, and where it lies."""
    vtable = struct.pack(f"<{2 + len(offsets)}H", 4 + 2 * len(offsets), 12, *offsets)
    start = len(vtable)
    return memoryview(vtable + struct.pack("<i", start) + fields), start


class TestTables:
    @pytest.mark.parametrize(
        ("offsets", "expected"),
        [([4, 8], [7, -2, 0]), ([8, 4], [0xFFFFFFFE, 7, 0]), ([0, 4], [0, 7, 0])],
    )
    def test_fields_lie_in_any_order_or_are_left_out(
        self, offsets: list[int], expected: list[int]
    ) -> None:
        data, start = table(offsets, struct.pack("<Ii", 7, -2))
        assert flatbuffer.Rows(data, "Ii").row(start) == expected

    def test_a_reference_is_where_it_leads_and_more_fields_are_counted(self) -> None:
        data, start = table([4, 0, 8, 8], struct.pack("<Ii", 8, -2))
        assert flatbuffer.Rows(data, "@I").row(start) == [start + 4 + 8, 0, 2]

    @pytest.mark.parametrize(
        ("offsets", "error"),
        [([4, 6], ValueError), ([4, 9], struct.error), ([4, 65535], struct.error)],
    )
    def test_fields_neither_overlap_nor_reach_beyond_the_file(
        self, offsets: list[int], error: type[Exception]
    ) -> None:
        data, start = table(offsets, struct.pack("<Ii", 7, -2))
        with pytest.raises(error):
            flatbuffer.Rows(data, "Ii").row(start)
