"""What LiteRT gets of a file behind a head is what was checked, whatever is in it."""

import struct
from collections.abc import Callable

import numpy as np
import pytest

from asyncnn.devices.litert.region_file import region_file
from asyncnn.engine.costs import USUAL
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.memory.pages import TAIL_BYTES
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import completed
from asyncnn.tflite import contents as files
from asyncnn.tflite import flatbuffer, runnable
from asyncnn.tflite.tables import Contents, Tensor, extents
from tests.runtime.tflite.cases import F32, I8, const, f32, i8, ramp
from tests.runtime.tflite.files import Op, T, write
from tests.runtime.tflite.graphs import conv_2d
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.test_sparse import compressed

WIDE = (512, 1024)


def read(data: bytes | bytearray) -> Contents:
    found = completed(files.reading_contents(memoryview(data)))
    assert not runnable.refusal(found)
    runnable.check(found)
    return found


def headed(found: Contents) -> bytes:
    """Return the file that LiteRT gets, in one piece."""
    main = found.graphs[0]
    shapes = [main.tensors[index].shape for index in main.inputs]
    return region_file(found, shapes, USUAL).joined()


def constants(found: Contents) -> list[Tensor]:
    return [each for each in found.graphs[0].tensors if each.stored is not None]


def wide_file() -> bytearray:
    """Return a file of 2 MiB of weights, which lie apart, and a small bias.

    Kernels read beyond weights, so that these lie apart only where more follows.
    """
    weights = const(np.linspace(-1, 1, WIDE[0] * WIDE[1]).reshape(WIDE), np.float32)
    x, y, bias = f32(1, WIDE[1]), f32(1, WIDE[0]), ramp((WIDE[0],))
    operator = Op("FULLY_CONNECTED", [x, weights, bias], [y], "FullyConnectedOptions")
    return bytearray(write([operator], [x], [y]) + bytes(TAIL_BYTES))


def lead(data: bytearray, place: int, to: int) -> None:
    """Have the reference of a field lead to another place."""
    assert to > place
    struct.pack_into("<I", data, place, to - place)


def shape_in(found: Contents, inside: int, data: bytearray) -> None:
    struct.pack_into("<3I", data, inside, 2, *WIDE)
    weights, _ = constants(found)
    lead(data, flatbuffer.places(found.data, weights.table, 1)[0], inside)


def bias_in(found: Contents, inside: int, data: bytearray) -> None:
    struct.pack_into("<I", data, inside, 4 * WIDE[0])
    _, bias = constants(found)
    buffer = found.buffers[bias.buffer].table
    lead(data, flatbuffer.places(found.data, buffer, 1)[0], inside)


def test_weights_are_copied_where_that_takes_less_time() -> None:
    x, y = f32(1, 512), f32(1, 512)
    weights = const(np.linspace(-1, 1, 1 << 18).reshape(512, 512), np.float32)
    operator = Op("FULLY_CONNECTED", [x, weights], [y], "FullyConnectedOptions")
    for padding, are_apart in ((1 << 19, False), (1 << 20, True)):
        found = read(write([operator], [x], [y]) + bytes(padding + TAIL_BYTES))
        file = region_file(found, [(1, 512)], USUAL)
        assert bool(file.apart) == bool(file.holes) == are_apart


class TestHoles:
    def test_weights_that_lie_apart_are_what_was_read(self) -> None:
        found = read(wide_file())
        again = completed(files.reading_contents(memoryview(headed(found))))
        for one, other in zip(constants(again), constants(found), strict=True):
            np.testing.assert_array_equal(one.stored, other.stored)

    @pytest.mark.parametrize("move", [shape_in, bias_in])
    def test_nothing_that_was_checked_lies_in_one(
        self, move: Callable[[Contents, int, bytearray], None]
    ) -> None:
        data = wide_file()
        found = read(data)
        weights, _ = constants(found)
        move(found, found.buffers[weights.buffer].start + 4096, data)
        changed = read(data)
        with pytest.raises(InvalidArgumentError, match="weights lie where"):
            headed(changed)

    def test_all_that_describes_a_graph_is_known(self) -> None:
        """Without constants and root, next to nothing of a file is left."""
        x, hidden, y = i8(1, 4, 4, 2), i8(1, 4, 4, 4), i8(1, 64)
        weights = ramp((4, 1, 1, 2), I8, scale=(0.5, 0.25, 0.1, 0.2))
        shape = Op("RESHAPE", [hidden, const([1, 64])], [y], "ReshapeOptions")
        found = read(write([conv_2d(x, weights, None, hidden), shape], [x], [y]))
        known = np.zeros(len(found.data), bool)
        for start, end in extents(found):
            assert 0 <= start <= end <= len(found.data)
            known[start:end] = True
        for tensor in found.graphs[0].tensors:
            assert known[tensor.table]
        assert known.mean() > 0.4


def test_a_vtable_of_an_odd_size_is_refused() -> None:
    # Readers in C++ see a second field in it.
    data = struct.pack("<3HBx", 7, 8, 4, 0) + struct.pack("<iI", 8, 1)
    for row in (
        lambda: flatbuffer.places(memoryview(data), 8, 2),
        lambda: flatbuffer.Rows(memoryview(data), "II").row(8),
    ):
        with pytest.raises(ValueError, match="a vtable of 7 bytes"):
            row()


@pytest.mark.parametrize("change", [-1, 1, 1 << 20])
def test_a_string_ends_where_it_says(change: int) -> None:
    x, y = f32(2, 3), f32(2, 3)
    weights = T.constant(np.ones((2, 3)), np.float32, name="a name of no use")
    data = bytearray(write([Op("ADD", [x, weights], [y], "AddOptions")], [x], [y]))
    start = data.index(b"a name of no use")
    struct.pack_into("<I", data, start - 4, 16 + change)
    data[start + 17] = 1  # of the padding
    with pytest.raises(InvalidArgumentError, match=r"beyond its end|longer than"):
        import_tflite(from_buffer(bytes(data)))


def test_data_of_buffer_0_are_data_of_a_constant_to_litert_too() -> None:
    x, y = f32(2, 3), f32(2, 3)
    added = const(np.arange(6).reshape(2, 3), np.float32)
    data = bytearray(write([Op("ADD", [x, added], [y], "AddOptions")], [x], [y]))
    found = read(data)
    (constant,) = constants(found)
    root = flatbuffer.places(found.data, flatbuffer.target(found.data, 0), 5)
    start, _ = flatbuffer.vector(found.data, root[4])
    lead(data, start, found.buffers[constant.buffer].table)
    struct.pack_into("<I", data, flatbuffer.places(found.data, constant.table, 3)[2], 0)
    changed = read(data)
    assert constants(changed)[0].buffer == 0
    again = completed(files.reading_contents(memoryview(headed(changed))))
    (kept,) = constants(again)
    assert kept.buffer > 0
    np.testing.assert_array_equal(kept.stored, constant.stored)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_custom_quantisation_is_not_handed_on(dtype: type[np.generic]) -> None:
    """Of a type that the HAL lacks, too, which an engine may have."""
    tensor = T(dtype, (2, 4), scale=(1.0,), details=1)
    y = T(dtype, (2, 4))
    data = write([Op("ADD", [tensor, tensor], [y], "AddOptions")], [tensor], [y])
    found = completed(files.reading_contents(memoryview(data)))
    assert [each.is_plain for each in found.graphs[0].tensors] == [False, True]


def test_dense_forms_of_sparse_constants_are_written_once() -> None:
    dense = np.zeros((64, 64), np.float32)
    dense[::4, ::4] = 1
    sparse, stored = compressed(dense, (0, 1), {}, (True, False))
    weights = T(F32, dense.shape, stored, sparse=sparse)
    whole, x, y = f32(64, 64), f32(1, 64), f32(1, 64)
    operators = [
        Op("DENSIFY", [weights], [whole], "DensifyOptions"),
        Op("FULLY_CONNECTED", [x, whole], [y], "FullyConnectedOptions"),
    ]
    found = read(write(operators, [x], [y]))
    main = found.graphs[0]
    shapes = [main.tensors[index].shape for index in main.inputs]
    assert (
        dense.nbytes
        < len(region_file(found, shapes, USUAL).content)
        < 1.5 * dense.nbytes
    )


def test_memory_that_is_mapped_anew_each_time_is_not_kept_by_its_address() -> None:
    whole = from_buffer(bytes(wide_file()))
    found = read(bytes(whole.buffer or b""))
    mapped = Memory(whole.name, whole.size, whole.handle)
    files.keep_checked(mapped, 4096, found)
    assert files.checked(4096, whole.size) is None
