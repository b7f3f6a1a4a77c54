"""Loading model files of any kind."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.container import save
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model_file import load, load_model
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.processes import python
from tests.runtime.onnx.files import model, tensor, written
from tests.runtime.tflite.cases import f32
from tests.runtime.tflite.files import Op, T, write


@pytest.fixture
def tflite(shared: Path) -> Path:
    return shared / "models" / "hello_world_int8.tflite"


def test_the_kind_is_known_by_the_first_bytes(tflite: Path, tmp_path: Path) -> None:
    renamed = tmp_path / "model.asyncnn"
    shutil.copyfile(tflite, renamed)
    named = load(renamed)
    container = tmp_path / "model.tflite"
    save(named, container)
    assert load(container).inputs == load(str(tflite)).inputs == named.inputs


def test_a_file_may_be_deleted_while_its_model_is_in_use(
    tflite: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "model"
    shutil.copyfile(tflite, copy)
    named = load(copy)
    copy.unlink()
    save(named, tmp_path / "again")
    assert load(tmp_path / "again").outputs == named.outputs


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the file is empty"),
        (b"abc", "neither a TFLite, an ONNX nor an asyncnn model file"),
        (b"\x20\0\0\0TFL3", "damaged TFLite file"),
        (b"ASYNCNN\0", "cut short"),
    ],
)
def test_a_file_that_is_no_model_is_named_with_the_reason(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=f"^{path}: .*{reason}"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GeneralFailureError, match=f"^{tmp_path}/m: No such file") as e:
        load(tmp_path / "m")
    assert isinstance(e.value, FileNotFoundError)
    assert e.value.status is ErrorStatus.GENERAL_FAILURE


def test_a_file_that_cannot_be_opened_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(GeneralFailureError, match="loop: Too many levels") as e:
        load(tmp_path / "loop")
    assert not isinstance(e.value, FileNotFoundError)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_loaded_like_their_file(
    tflite: Path, tmp_path: Path, kind: Callable[[bytes], bytes]
) -> None:
    expected = load(tflite)
    container = tmp_path / "model"
    save(expected, container)
    for path in (tflite, container):
        named = load(kind(path.read_bytes()))
        assert named.inputs == expected.inputs
        assert named.model.main == load(path).model.main


def test_bytes_are_not_copied(tflite: Path) -> None:
    data = tflite.read_bytes()
    (pool,) = load(data).model.pools
    assert pool.buffer is not None
    assert pool.buffer.readonly
    assert np.shares_memory(np.asarray(pool.buffer), np.frombuffer(data, np.uint8))


def test_damaged_bytes_are_one_error() -> None:
    for data in (b"", b"abc", b"\x20\0\0\0TFL3", b"ASYNCNN\0"):
        with pytest.raises(InvalidArgumentError, match=r"^the model in memory: "):
            load(data)
    with pytest.raises(InvalidArgumentError, match="the model in memory: it is empty"):
        load(b"")
    for source in (None, 5, io.BytesIO()):
        with pytest.raises(TypeError, match="from a path or bytes, not"):
            load(source)  # type: ignore[arg-type]


def test_a_file_that_is_cut_short_says_so(tflite: Path) -> None:
    data = tflite.read_bytes()
    with pytest.raises(InvalidArgumentError, match="may be cut short"):
        load(data[: len(data) // 3])


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{tmp_path}: a directory"):
        load(tmp_path)


def test_errors_of_every_kind_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    x, y = f32(2), f32(2)
    path.write_bytes(write([Op("TwistTensor", [x], [y])], [x], [y]))
    with pytest.raises(UnsupportedOperatorError, match=f"^{path}: operator 0"):
        load(path)


def test_a_message_is_one_short_line_whatever_names_are_in_it(tmp_path: Path) -> None:
    x = T(np.float32, (1, 2), name="x" * 9999)
    y = T(np.float32, (1, 2), np.zeros((1, 2), np.float32), name="y" * 9999)
    operators = ("Two\nlines", f32(1, 2)), ("N" * 9999, f32(1, 2)), ("NEG", y)
    for name, output in operators:
        with pytest.raises(AsyncnnError) as caught:
            load(write([Op(name, [x], [output])], [x], [output]))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500


def test_a_message_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"\0\0\0\0TFL3" + bytes(100))
    with pytest.raises(AsyncnnError) as caught:
        load(path)
    assert "\n" not in str(caught.value)


class TestKinds:
    """ONNX has no magic number: the fields of its outermost message tell it."""

    @pytest.mark.parametrize(
        "data",
        [
            b"\x08\x0a\x3a\x02ab",  # the IR's version, then the graph
            b"\x3a\x80\x80\x04" + bytes(9),  # a graph that is cut short
            b"\x08\x07\x12\x02me\x1a\x01x\x42\x04\x0a\x00\x10\x11\x3a\x01z",
            b"\x08\x80\x80\x80\x00\x3a\x00",  # a number longer than it needs to be
        ],
    )
    def test_a_message_with_a_graph_is_onnx(self, data: bytes) -> None:
        assert kind_of(memoryview(data)) is FileKind.ONNX

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\x08",
            b"\x08\x0a",  # no graph
            b"\x0a\x02ab\x3a\x01z",  # the IR's version is no message
            b"\x12\x7fab",  # its end is beyond the file's
            b"\x08" + b"\xff" * 40,  # a number without an end
            b"\x00" * 64,
            b"\x48\x01\x3a\x01z",  # there is no field 9
            b"\x12\x00" * 2000 + b"\x3a\x01z",
            b"PK\x03\x04" + bytes(60),
        ],
    )
    def test_anything_else_is_not(self, data: bytes) -> None:
        with pytest.raises(InvalidArgumentError, match="neither"):
            kind_of(memoryview(data))

    def test_real_files_are_known(self) -> None:
        onnx = pytest.importorskip("onnx")
        tensor = onnx.helper.make_tensor_value_info("x", 1, [1])
        y = onnx.helper.make_tensor_value_info("y", 1, [1])
        node = onnx.helper.make_node("Relu", ["x"], ["y"])
        graph = onnx.helper.make_graph([node], "model", [tensor], [y])
        data = onnx.helper.make_model(graph).SerializeToString()
        assert kind_of(memoryview(data)) is FileKind.ONNX


LARGE = 20_000_000

MEASURED = """
import gc, sys, tracemalloc
import asyncnn

def anonymous_kib():
    with open("/proc/self/smaps_rollup") as file:
        (line,) = [line for line in file if line.startswith("Anonymous:")]
    return int(line.split()[1])

strict = sys.argv[3] == "strict"
warm = [asyncnn.load(sys.argv[1], strict=each) for each in (strict, True)]
gc.collect()
before = anonymous_kib()
tracemalloc.start()
named = asyncnn.load(sys.argv[2], strict=strict)
_, most = tracemalloc.get_traced_memory()
tracemalloc.stop()
pooled = sum(pool.size for pool in named.model.pools)
own = sum(pool.size for pool in named.model.pools if not pool.handle.fds)
print(most >> 10, anonymous_kib() - before - (own >> 10), pooled)
"""


@pytest.mark.parametrize(
    ("kind", "how"), [("tflite", ""), ("asyncnn", ""), ("onnx", ""), ("onnx", "strict")]
)
def test_weights_are_in_the_pools_and_nowhere_else(
    tmp_path: Path, kind: str, how: str
) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    for path, count in ((small, 1000), (large, LARGE // 4)):
        _write_weights(path, kind, count)
    ran = python("-c", MEASURED, small, large, how)
    assert ran.returncode == 0, ran.stderr
    traced_kib, anonymous_kib, pooled = map(int, ran.stdout.split())
    assert pooled >= LARGE
    assert traced_kib < 1 << 10
    assert anonymous_kib < 4 << 10


def _write_weights(path: Path, kind: str, count: int) -> None:
    weights = np.ones((count // 500, 500), np.float32)
    if kind == "onnx":
        path.write_bytes(_product_in_onnx(weights))
        return
    x, y = f32(1, 500), f32(1, len(weights))
    constant = T(np.float32, weights.shape, weights)
    operator = Op("FULLY_CONNECTED", [x, constant], [y], "FullyConnectedOptions")
    path.write_bytes(write([operator], [x], [y]))
    if kind == "asyncnn":
        save(load(path.read_bytes()), path)


def _product_in_onnx(weights: np.ndarray) -> bytes:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    x = helper.make_tensor_value_info("x", 1, [1, weights.shape[1]])
    y = helper.make_tensor_value_info("y", 1, [1, len(weights)])
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "graph",
        [x],
        [y],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    # Weights that are not aligned in the file have to be copied.
    for padding in range(4):
        model.producer_name = "x" * padding
        data: bytes = model.SerializeToString()
        if data.index(weights[:1].tobytes()) % 4 == 0:
            return data
    raise AssertionError("no padding aligns the weights")


TURNING = """
import asyncio, sys, time
from asyncnn import load_model  # what applications do before they serve

async def main():
    turns = []

    async def turn():
        while True:
            turns.append(time.perf_counter())
            await asyncio.sleep(0.001)

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0)
    assert "onnx" not in sys.modules
    await load_model(sys.argv[1])
    turns.append(time.perf_counter())
    turning.cancel()
    gaps = [after - before for before, after in zip(turns, turns[1:])]
    print(max(gaps), turns[-1] - turns[0], len(gaps))

asyncio.run(main())
"""


@pytest.mark.alone
def test_the_event_loop_turns_while_the_first_onnx_file_is_loaded(
    tmp_path: Path,
) -> None:
    """The package is imported, and the file is large."""
    path, count = tmp_path / "many.onnx", 600
    weight = np.ones((64, 64), np.float32)
    nodes = [
        helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"])
        for k in range(count)
    ]
    weights = {f"w{k}": weight for k in range(count)}
    made = model(nodes, [tensor("x0", (1, 64))], [f"x{count}"], weights)
    path.write_bytes(made.SerializeToString())
    ran = python("-c", TURNING, path, check=True)
    longest_s, whole_s, turns = map(float, ran.stdout.split())
    # Shared libraries are loaded in one go each, whatever the interpreter does.
    assert longest_s < whole_s / 3
    assert turns > 20


async def test_to_load_is_awaited_with_the_same_outcome(tmp_path: Path) -> None:
    path = tmp_path / "relu"
    made = written("float[?, 3] x => float[] y", "y = Relu(x)")
    path.write_bytes(made.SerializeToString())
    for source in (path, str(path), path.read_bytes()):
        named = await load_model(source, input_shapes=[(2, 3)])
        assert named.inputs[0].dimensions == (2, 3)
    with pytest.raises(FileNotFoundError, match="none: No such file"):
        await load_model(tmp_path / "none")
    with pytest.raises(InvalidArgumentError, match=r"^the model in memory: neither"):
        await load_model(b"abc")
    with pytest.raises(TypeError, match="not int"):
        await load_model(3)  # type: ignore[arg-type]
    with pytest.raises(MissedDeadlineError, match=f"loading {path} was not done in"):
        await load_model(path, timeout=0)
