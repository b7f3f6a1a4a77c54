"""Files whose large constants lie apart, and where they are placed."""

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest
import tflite

from asyncnn.devices.litert import graph_file
from asyncnn.devices.litert.engine import Engine
from asyncnn.devices.litert.graph_file import GraphFile, ModelMemory, may_lie_apart
from asyncnn.devices.litert.writer import write_file
from asyncnn.engine.array_memory import address_of
from asyncnn.engine.delegation import Segment
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from tests.devices.litert.running import segment_of_one
from tests.kernels.operations import F32, Q8, Q8S, bind, constant, result, tensor
from tests.processes import python

I32 = OperandType.TENSOR_INT32
ROWS, WIDTH = 4, 64


def layer(weights: Array, bias: Array) -> Segment:
    """Return a FULLY_CONNECTED of [ROWS, WIDTH] floats."""
    x = tensor(F32, np.zeros((ROWS, WIDTH)))
    inputs = [x, constant(F32, weights), constant(F32, bias), 0]
    operation = bind(
        OperationType.FULLY_CONNECTED, inputs, [result(F32, (ROWS, len(weights)))]
    )
    return segment_of_one(operation)


@pytest.fixture
def weights() -> Array:
    whole = np.random.default_rng(1).integers(-8, 9, (WIDTH + 1, WIDTH))
    return whole.astype(np.float32)[:WIDTH]  # what follows them can be read


@pytest.fixture
def file(weights: Array) -> GraphFile:
    return write_file(layer(weights, np.zeros(WIDTH, np.float32)))


def mapped_at(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines]
    return any(int(a, 16) <= address < int(b, 16) for a, b in ranges)


def test_large_weights_stay_where_they_are(file: GraphFile, weights: Array) -> None:
    (apart,) = file.apart
    assert np.shares_memory(apart.data, weights)
    assert apart.source is not None
    assert np.shares_memory(apart.source, weights)
    assert len(file.content) < weights.nbytes / 4


def test_one_piece_has_all_of_it(file: GraphFile, weights: Array) -> None:
    whole = file.joined()
    model = tflite.Model.GetRootAs(whole, 0)
    buffers = [model.Buffers(i) for i in range(model.BuffersLength())]
    (offset,) = [b.Offset() for b in buffers if b.Size()]
    assert offset % 16 == 0
    assert whole[offset : offset + weights.nbytes] == weights.tobytes()


@pytest.mark.parametrize("type_", [Q8, Q8S])
def test_codes_that_are_converted_lie_apart_without_a_source(
    type_: OperandType,
) -> None:
    # Pages of its own: what is not aligned, or has nothing behind it, is copied.
    pages = np.frombuffer(mmap.mmap(-1, 128 * 64 + mmap.PAGESIZE), np.uint8)
    codes = pages[: 128 * 64].view(np.uint8 if type_ is Q8 else np.int8)
    codes[:] = np.arange(128 * 64).astype(codes.dtype)
    x = tensor(type_, np.zeros((1, 64)), 0.5, 128 if type_ is Q8 else 0)
    filter_ = constant(type_, codes.reshape(128, 64), 0.25, 128 if type_ is Q8 else 0)
    bias = constant(I32, np.zeros(128), 0.125)
    output = result(type_, (1, 128), 64.0, 128 if type_ is Q8 else 0)
    operation = bind(OperationType.FULLY_CONNECTED, [x, filter_, bias, 0], [output])
    (apart,) = write_file(segment_of_one(operation)).apart
    assert (apart.source is None) is (type_ is Q8)


def test_integers_never_lie_apart() -> None:
    """They may be indexes: those that were checked have to be those that are used."""
    indexes = np.zeros(4096, np.int32)
    x = tensor(F32, np.zeros((2, 3)))
    operation = bind(
        OperationType.GATHER, [x, 0, constant(I32, indexes)], [result(F32, (4096, 3))]
    )
    file = write_file(segment_of_one(operation))
    assert not file.apart
    assert len(file.content) > indexes.nbytes


def test_what_kernels_cannot_read_beyond_or_align_is_copied() -> None:
    pages = np.frombuffer(mmap.mmap(-1, 2 * mmap.PAGESIZE), np.uint8)
    assert may_lie_apart(pages[: mmap.PAGESIZE])
    assert not may_lie_apart(pages[mmap.PAGESIZE :])  # nothing follows
    assert not may_lie_apart(pages[1 : mmap.PAGESIZE + 1])
    assert not may_lie_apart(pages[: mmap.PAGESIZE - 4])  # not worth it


class TestPlaces:
    def test_it_is_placed_below_what_lies_apart(self, file: GraphFile) -> None:
        memory = ModelMemory(file)
        data = file.apart[0].data
        assert memory.address < address_of(data)
        assert memory.address + memory.size == address_of(data) + data.nbytes
        assert memory.size > 2**30  # it was not copied

    def test_its_memory_goes_with_it(self, file: GraphFile) -> None:
        memory = ModelMemory(file)
        address = memory.address
        assert mapped_at(address)
        del memory
        assert not mapped_at(address)

    @pytest.mark.parametrize("fails", ["above", "refused"])
    def test_it_is_joined_where_the_system_has_no_such_place(
        self, file: GraphFile, monkeypatch: pytest.MonkeyPatch, fails: str
    ) -> None:
        if fails == "above":
            above = address_of(file.apart[0].data) + 2**34
            place = above - above % 2**21
            monkeypatch.setattr(graph_file, "_next_place", lambda size: place)
        else:
            failed = graph_file._MAP_FAILED
            monkeypatch.setattr(graph_file._c, "mmap", lambda *args: failed)
        memory = ModelMemory(file)
        assert memory.size == len(file.joined())


def test_engines_compute_what_one_piece_gives(
    engine: Engine, file: GraphFile, weights: Array
) -> None:
    x = np.random.default_rng(2).integers(-8, 9, (ROWS, WIDTH)).astype(np.float32)
    graphs = [engine.compile(each) for each in (file, file, file.joined())]
    want = x @ weights.T
    del file
    gc.collect()
    for graph in graphs:
        got = np.full((ROWS, WIDTH), np.nan, np.float32)
        assert graph.run([x], [got])
        np.testing.assert_array_equal(got, want)


WITHOUT_MEMORY = """
import resource, sys
from pathlib import Path
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.hal.errors import ResourceExhaustedError

engine, model = load_engine("c_api"), Chain(2, 4, 1024).model()
folder = Path(sys.argv[1])
refused = 0
for weights in (None, PackedWeights("a" * 16), PackedWeights("b" * 16, folder)):
    for mib in range(0, 16, 3):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (taken + mib * 2**20, -1))
        try:
            engine.compile(model, weights=weights).close()
        except ResourceExhaustedError as error:
            assert "memory" in str(error)
            refused += 1
        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
assert refused > 3, refused
"""


def test_without_memory_for_weights_a_graph_is_refused(tmp_path: Path) -> None:
    """XNNPACK would end the process."""
    done = python("-c", WITHOUT_MEMORY, tmp_path / "weights")
    assert done.returncode == 0, done.stderr


WITHOUT_FILES = """
import resource, sys
from pathlib import Path
import numpy as np
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.litert.weights import PackedWeights

engine, chain = load_engine("c_api"), Chain(2, 4, 64)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**10, -1))
x = np.ones((4, 64), np.float32)
for weights in PackedWeights("a" * 16), PackedWeights("b" * 16, Path(sys.argv[1])):
    outputs = [x.copy(), x.copy()]
    assert engine.compile(chain.model(), weights=weights).run([x], outputs)
    for found, right in zip(outputs, chain.expected(x)):
        np.testing.assert_array_equal(found, right)
"""


def test_where_files_must_be_small_a_graph_packs_for_itself(tmp_path: Path) -> None:
    """XNNPACK would end the process."""
    done = python("-c", WITHOUT_FILES, tmp_path / "weights")
    assert done.returncode == 0, done.stderr
