"""Graphs compute what LiteRT computes, on arrays of any kind."""

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.devices.compiled_graph import CApiUnavailableError
from asyncnn.devices.litert import engine as engines
from asyncnn.devices.litert.c_api import LiteRtLibrary
from asyncnn.devices.litert.c_api_engine import CApiEngine, CApiGraph
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import Array, Engine
from asyncnn.engine.array_memory import address_of, has_tail
from asyncnn.engine.job import COPIED_BYTES, MOST_BINDINGS
from asyncnn.engine.workspace import aligned_bytes
from asyncnn.hal.errors import (
    EngineUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
)
from tests.devices.litert.conftest import Case, at_offset

MODELS = (
    "ad01_fp32",
    "hello_world_float",
    "hello_world_int8",
    "kws_ref_model",
    "kws_ref_model_float32",
    "micro_speech_quantized",
    "pretrainedResnet",
    "vww_96_float",
    "vww_96_int8",
)
REFUSED = ("dtln_noise_suppression", "person_detect", "trained_lstm")
"""Models that LiteRT's C API does not take: ones with state, and old ones."""


LARGE = (32, 512)
"""A shape whose arrays are used in place, rather than copied."""


@pytest.fixture(scope="session")
def large() -> Chain:
    return Chain(3, *LARGE)


def random_inputs(graph: engines.CompiledGraph) -> list[Array]:
    random = np.random.default_rng(0)
    return [
        random.random(tensor.shape).astype(tensor.dtype)
        if tensor.dtype.kind == "f"
        else random.integers(-100, 100, tensor.shape).astype(tensor.dtype)
        for tensor in graph.inputs
    ]


def outputs_of(graph: engines.CompiledGraph) -> list[Array]:
    return [np.zeros(tensor.shape, tensor.dtype) for tensor in graph.outputs]


def right_outputs(content: bytes, inputs: list[Array]) -> list[Any]:
    from ai_edge_litert.interpreter import Interpreter

    peer = Interpreter(model_content=content, num_threads=1)
    peer.allocate_tensors()
    for detail, array in zip(peer.get_input_details(), inputs, strict=True):
        peer.set_tensor(detail["index"], array)
    peer.invoke()
    return [peer.get_tensor(detail["index"]) for detail in peer.get_output_details()]


@contextmanager
def before_a_guard_page(like: Array, *, writable: bool = True) -> Iterator[Array]:
    """Yield a copy whose end is that of what can be read, as the last argument."""
    pages = -(-like.nbytes // mmap.PAGESIZE)
    with mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE) as memory:
        begin = pages * mmap.PAGESIZE - like.nbytes
        array: Array = np.ndarray(like.shape, like.dtype, memory, begin)
        array[...] = like
        start = array.ctypes.data - begin
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        readable = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        whole = pages * mmap.PAGESIZE
        assert protect(start, whole, readable) == 0
        assert protect(start + whole, mmap.PAGESIZE, 0) == 0
        # As it comes from a mapping of its own: what it is a view of ends there, too.
        yield at_address(like, start + begin)
        del array


def at_address(like: Array, address: int) -> Array:
    memory = (ctypes.c_char * like.nbytes).from_address(address)
    return np.ndarray(like.shape, like.dtype, memory)


@pytest.mark.parametrize("name", MODELS)
def test_results_are_those_of_the_interpreter_bit_for_bit(
    engine: Engine, shared: Path, name: str
) -> None:
    content = (shared / "models" / f"{name}.tflite").read_bytes()
    graph = engine.compile(content)
    inputs, outputs = random_inputs(graph), outputs_of(graph)
    right = right_outputs(content, inputs)
    for _ in range(2):
        assert graph.run(inputs, outputs)
        for found, array in zip(outputs, right, strict=True):
            np.testing.assert_array_equal(found, array)
            found.fill(0)


@pytest.mark.parametrize("threads", [1, 2])
def test_models_run_on_as_many_threads_as_are_asked_for(
    engine: Engine, chain: Chain, case: Case, threads: int
) -> None:
    graph = engine.compile(chain.model(), threads=threads)
    assert graph.run([case.x], case.outputs)
    case.assert_right()


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_cannot_compile_is_said(
    c_api: Engine, shared: Path, name: str
) -> None:
    content = (shared / "models" / f"{name}.tflite").read_bytes()
    with pytest.raises(GeneralFailureError, match=r"LiteRtCreate.* failed: "):
        c_api.compile(content)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\0" * 1000])
def test_what_is_no_model_is_refused(engine: Engine, content: bytes) -> None:
    with pytest.raises(GeneralFailureError):
        engine.compile(content)


@pytest.mark.parametrize("offset", range(4))
def test_a_model_may_lie_anywhere(
    engine: Engine, chain: Chain, case: Case, offset: int
) -> None:
    moved = bytearray(offset) + chain.model()
    graph = engine.compile(memoryview(moved)[offset:])
    assert graph.run([case.x], case.outputs)
    case.assert_right()


@pytest.mark.parametrize("offset", [0, 1, 4, 16, 32, 64, 68])
def test_arrays_may_lie_anywhere(
    engine: Engine, chain: Chain, case: Case, offset: int
) -> None:
    graph = engine.compile(chain.model())
    x = at_offset(case.x, offset)
    outputs = [at_offset(output, offset) for output in case.outputs]
    for _ in range(2):
        assert graph.run([x], outputs)
        case.assert_right(outputs)


def test_large_aligned_arrays_are_computed_on_where_they_are(
    c_api: Engine, large: Chain
) -> None:
    graph, case = c_api.compile(large.model()), Case(large, LARGE)
    assert isinstance(graph, CApiGraph)
    x, outputs = at_offset(case.x, 0), [at_offset(like, 64) for like in case.outputs]
    assert graph.run([x], outputs)
    case.assert_right(outputs)
    assert graph.bound_addresses() == [tuple(map(address_of, (x, *outputs)))]
    aside = at_offset(case.x, 4)
    assert graph.run([aside], outputs)
    case.assert_right(outputs)
    assert len(graph.bound_addresses()) == 2
    assert address_of(aside) not in graph.bound_addresses()[1]


def test_small_arrays_are_copied_wherever_they_lie(
    c_api: Engine, chain: Chain, case: Case
) -> None:
    graph = c_api.compile(chain.model())
    assert isinstance(graph, CApiGraph)
    for offset in range(0, 256, 16):
        outputs = [at_offset(output, offset) for output in case.outputs]
        assert graph.run([at_offset(case.x, offset)], outputs)
        case.assert_right(outputs)
    assert len(graph.bound_addresses()) == 1


def test_a_tail_is_in_the_last_page_or_in_what_an_array_is_a_view_of() -> None:
    page = mmap.PAGESIZE
    memory = np.zeros(4 * page, np.uint8)
    begin = -memory.ctypes.data % page

    def tail_of(array: Array) -> bool:
        return has_tail(array, array.ctypes.data)

    assert tail_of(memory[begin : begin + 64])
    assert tail_of(memory[begin : begin + 64].view(np.float32).reshape(4, 4))
    assert tail_of(memory[begin : begin + 2 * page])
    with mmap.mmap(-1, 2 * page) as mapped:
        assert tail_of(np.frombuffer(mapped, np.uint8, page))
        assert tail_of(np.frombuffer(memoryview(mapped)[:page], np.uint8))
        assert not tail_of(np.frombuffer(mapped, np.uint8))
        assert not tail_of(np.frombuffer(mapped, np.uint8, page, page))
        assert not tail_of(np.frombuffer(mapped, np.uint8, 64, 2 * page - 64))
        assert not tail_of(np.frombuffer(mapped, np.uint8, 64, 2 * page - 127))
        assert tail_of(np.frombuffer(mapped, np.uint8, 64, 2 * page - 128))


@pytest.mark.parametrize("rows", [4, 32, 512])
def test_nothing_is_read_beyond_the_end_of_a_mapping(engine: Engine, rows: int) -> None:
    chain = Chain(3, rows, 32)  # 512 bytes, a whole page, and enough to stay in place
    case = Case(chain, (rows, 32))
    graph = engine.compile(chain.model())
    with (
        before_a_guard_page(case.x, writable=False) as x,
        before_a_guard_page(case.x) as early,
        before_a_guard_page(case.x) as late,
    ):
        for _ in range(3):
            assert graph.run([x], [early, late])
            case.assert_right([early, late])
            early[...], late[...] = 0, 0


def test_what_kernels_read_beyond_an_input_is_the_graphs_own(
    engine: Engine, shared: Path
) -> None:
    # XNNPACK's convolutions of three channels read on, in vectors.
    content = (shared / "models/vww_96_int8.tflite").read_bytes()
    graph = engine.compile(content)
    inputs, outputs = random_inputs(graph), outputs_of(graph)
    with before_a_guard_page(inputs[0], writable=False) as x:
        assert graph.run([x], outputs)
    for found, right in zip(outputs, right_outputs(content, inputs), strict=True):
        np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_written_to_inputs(c_api: Engine, shared: Path, name: str) -> None:
    content = (shared / "models" / f"{name}.tflite").read_bytes()
    graph = c_api.compile(content)
    inputs = random_inputs(graph)
    with mmap.mmap(-1, inputs[0].nbytes + mmap.PAGESIZE) as memory:
        # Its pages cannot be written to: that would end the process.
        x: Array = np.ndarray(inputs[0].shape, inputs[0].dtype, memory)
        x[...] = inputs[0]
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        assert protect(x.ctypes.data, len(memory), mmap.PROT_READ) == 0
        x.flags.writeable = False
        outputs = outputs_of(graph)
        assert graph.run([x], outputs)
        for found, right in zip(outputs, right_outputs(content, inputs), strict=True):
            np.testing.assert_array_equal(found, right)
        assert isinstance(graph, CApiGraph)
        ((place, *_),) = graph.bound_addresses()
        assert (place == address_of(x)) == (x.nbytes > COPIED_BYTES)
        del x


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no input", "0 inputs were given; the graph has 1"),
        ("no output", "1 outputs were given; the graph has 2"),
        ("longer", r"input 0 is float32\[5, 32\]; the graph has float32\[4, 32\]"),
        ("integers", r"input 0 is int32\[4, 32\]; the graph has float32\[4, 32\]"),
        ("strided", "input 0 is not C-contiguous"),
        ("shorter output", r"output 1 is float32\[3, 32\]; the graph has"),
        ("read-only output", "output 0 is read-only"),
        ("split otherwise", "2 inputs were given; the graph has 1"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    engine: Engine, chain: Chain, case: Case, kind: str, message: str
) -> None:
    graph = engine.compile(chain.model())
    assert graph.run([case.x], case.outputs)
    inputs, outputs = [case.x], list(case.outputs)
    read_only = outputs[0].copy()
    read_only.flags.writeable = False
    match kind:
        case "no input":
            inputs = []
        case "no output":
            outputs.pop()
        case "longer":
            inputs = [np.zeros((5, 32), np.float32)]
        case "integers":
            inputs = [case.x.astype(np.int32)]
        case "strided":
            inputs = [np.zeros((4, 64), np.float32)[:, ::2]]
        case "shorter output":
            outputs[1] = outputs[1][:3]
        case "read-only output":
            outputs[0] = read_only
        case "split otherwise":
            inputs, outputs = [case.x, outputs[0]], outputs[1:]
    with pytest.raises(InvalidArgumentError, match=message):
        graph.run(inputs, outputs)
    assert graph.run([case.x], case.outputs)
    case.assert_right()


def test_shapes_do_not_matter(engine: Engine, chain: Chain, case: Case) -> None:
    graph = engine.compile(chain.model())
    assert graph.inputs[0].shape == case.x.shape
    flat = [output.reshape(-1) for output in case.outputs]
    assert graph.run([case.x.reshape(2, -1, 4)], flat)
    case.assert_right()


def test_arrays_that_take_anothers_place_are_seen(
    engine: Engine, chain: Chain, case: Case
) -> None:
    graph = engine.compile(chain.model())
    for number in range(3 * MOST_BINDINGS):
        x = np.full_like(case.x, number % 7)
        outputs = [np.empty_like(x), np.empty_like(x)]
        assert graph.run([x], outputs)
        for found, right in zip(outputs, chain.expected(x), strict=True):
            np.testing.assert_array_equal(found, right)
        del x, outputs


def test_few_arrays_are_remembered(c_api: Engine, large: Chain) -> None:
    graph, case = c_api.compile(large.model()), Case(large, LARGE)
    assert isinstance(graph, CApiGraph)
    kept = []
    for _ in range(2 * MOST_BINDINGS):
        outputs = [at_offset(output, 0) for output in case.outputs]
        assert graph.run([case.x], outputs)
        case.assert_right(outputs)
        kept.append(outputs)
    assert len(graph.bound_addresses()) == MOST_BINDINGS


def test_memory_that_comes_again_needs_no_new_buffers(
    c_api: Engine, large: Chain
) -> None:
    graph, case = c_api.compile(large.model()), Case(large, LARGE)
    assert isinstance(graph, CApiGraph)
    x = at_offset(case.x, 0)
    outputs = [at_offset(output, 0) for output in case.outputs]
    for _ in range(3):
        assert graph.run([x.view()], [output.view() for output in outputs])
        case.assert_right(outputs)
    assert len(graph.bound_addresses()) == 1


def test_memory_is_let_go_of_after_a_run(
    engine: Engine, chain: Chain, case: Case
) -> None:
    graph = engine.compile(chain.model())
    for _ in range(3):
        with mmap.mmap(-1, 16 * mmap.PAGESIZE) as memory:
            x: Array = np.ndarray(case.x.shape, np.float32, memory)
            x[...] = case.x
            assert graph.run([x], case.outputs)
            case.assert_right()
            del x  # unmapping fails as long as something refers to the memory
    assert graph.run([case.x], case.outputs)
    graph.close()


@pytest.mark.parametrize("backend", ["c_api", "interpreter"])
def test_nothing_is_written_to_standard_error(backend: str) -> None:
    script = f"""
import numpy as np
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.engine import load_engine
graph = load_engine({backend!r}).compile(Chain(2, 4, 4).model())
x = np.zeros((4, 4), np.float32)
assert graph.run([x], [x.copy(), x.copy()])
graph.interrupt()
assert not graph.run([x], [x.copy(), x.copy()])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_package_is_not_imported_before_an_engine_is_loaded() -> None:
    script = """
import sys
import asyncnn.devices.litert.engine
assert not [name for name in sys.modules if name.startswith("ai_edge_litert")]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.fixture
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_engines", {})


@pytest.mark.usefixtures("nothing_loaded")
class TestLoading:
    def test_one_engine_serves_a_process(self) -> None:
        engine = engines.load_engine()
        assert engines.load_engine() is engine
        assert engines.load_engine("c_api") is engine
        assert (engine.name, engine.version[:2]) == ("c_api", "2.")
        assert engines.load_engine("interpreter").name == "interpreter"

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engines, "PACKAGE", "asyncnn_has_no_such_package")
        with pytest.raises(EngineUnavailableError) as caught:
            engines.load_engine()
        assert str(caught.value) == (
            "ai-edge-litert is not installed "
            "(install it with: pip install asyncnn[accelerated])"
        )

    def test_what_speaks_against_the_c_api_makes_it_the_interpreter(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engines, "reason_against", lambda *_: "it is Monday")
        assert engines.load_engine().name == "interpreter"
        with pytest.raises(EngineUnavailableError, match="c_api: it is Monday"):
            engines.load_engine("c_api")

    def test_a_library_that_lacks_functions_is_not_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engines, "reason_against", lambda *_: "")
        monkeypatch.setattr(engines, "_LIBRARY", "libpywrap_litert_common.so")
        assert engines.load_engine().name == "interpreter"
        with pytest.raises(EngineUnavailableError, match="has no function LiteRt"):
            engines.load_engine("c_api")

    def test_a_library_that_is_not_there_is_not_used(self, tmp_path: Path) -> None:
        with pytest.raises(CApiUnavailableError, match="cannot be loaded"):
            CApiEngine(tmp_path / "libLiteRt.so", "2.3.0")

    def test_neither_working_is_one_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(version: str) -> Engine:
            raise ImportError(f"no interpreter in {version}")

        monkeypatch.setattr(engines, "reason_against", lambda *_: "it crashes")
        monkeypatch.setattr(engines, "InterpreterEngine", broken)
        with pytest.raises(EngineUnavailableError, match=r"it crashes.*no interpreter"):
            engines.load_engine()


def test_a_failed_call_names_its_function(c_api: Engine) -> None:
    assert isinstance(c_api, CApiEngine)
    library = c_api._library
    assert isinstance(library, LiteRtLibrary)
    memory = aligned_bytes(64)
    memory.fill(0)
    with pytest.raises(
        GeneralFailureError,
        match=r"LiteRtCreateModelFromBuffer failed: .* \(status \d+\)",
    ):
        library.create(
            "CreateModelFromBuffer", library.environment, memory.ctypes.data, 64
        )
