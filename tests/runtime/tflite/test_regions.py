"""Files without a HAL form run on LiteRT as they are, and no damaged one harms it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncnn.devices import DeviceSettings
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.device import Device
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.devices.cache.client import prepared_in
from tests.measuring import best_of
from tests.places import driver_of, opened
from tests.processes import python
from tests.runtime.tflite import mutating
from tests.runtime.tflite.cases import I8, Case, const, f32, i8, ramp
from tests.runtime.tflite.files import G, Op, T, given, write
from tests.runtime.tflite.flow_files import if_
from tests.runtime.tflite.graphs import conv_2d
from tests.runtime.tflite.importing import region_of_tflite
from tests.runtime.tflite.layer_cases import CASES, TYPED_CASES
from tests.runtime.tflite.region_cases import (
    FILES,
    WHERE,
    arcs,
    counting,
    i16,
    one,
    open_batch,
    same_results,
    speech,
    stale,
    stale_layer,
)
from tests.runtime.tflite.test_operators import sample

interpreter = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="LiteRT is not installed"
)


driver = driver_of("accelerated")


@pytest.fixture(params=["accelerated", "driver"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[Device]:
    async with opened(request.param, request) as device:
        yield device


UNASKED = ("BROADCAST_ARGS", "REVERSE_SEQUENCE")
"""Operators that do not ask if lengths fit, and end the process if not."""


def by_litert(file: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return what LiteRT's interpreter computes, for inputs of any lengths."""
    running = interpreter.Interpreter(model_content=file, num_threads=1)
    details = running.get_input_details()
    for detail, value in zip(details, inputs, strict=True):
        if tuple(detail["shape"]) != value.shape:
            running.resize_tensor_input(detail["index"], value.shape)
    running.allocate_tensors()
    for detail, value in zip(details, inputs, strict=True):
        running.set_tensor(detail["index"], value)
    running.invoke()
    return [running.get_tensor(each["index"]) for each in running.get_output_details()]


def shapes_of(file: bytes) -> list[tuple[int, ...]]:
    details = interpreter.Interpreter(model_content=file).get_input_details()
    return [tuple(each["shape"]) for each in details]


EMPTY = {
    "input": one("EXP", [f32(0, 3)], f32(0, 3)),
    "one of the inputs": one(
        "CONCATENATION", [f32(0, 3), f32(2, 3)], f32(2, 3), "ConcatenationOptions"
    ),
    "output": one("TILE", [f32(2, 3), const([0, 1])], f32(0, 3)),
    "constant": one("SUM", [f32(2, 3), const([])], f32(2, 3), "ReducerOptions"),
    "slice": one(
        *("STRIDED_SLICE", [f32(2, 3), const([1]), const([0]), const([1])]),
        *(f32(0, 3), "StridedSliceOptions"),
    ),
}


def samples(model: Any, below: int = 5) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    tensors = [SimpleNamespace(dtype=i.dtype, shape=i.dimensions) for i in model.inputs]
    return [sample(each, rng, positive=False, below=below) for each in tensors]  # type: ignore[arg-type]


def assert_equal(outputs: Any, expected: list[np.ndarray]) -> None:
    assert len(outputs) == len(expected)
    for got, wanted in zip(outputs.values(), expected, strict=True):
        np.testing.assert_array_equal(got, np.atleast_1d(wanted))


class TestResults:
    @pytest.mark.parametrize("make", FILES.values(), ids=FILES)
    async def test_what_has_no_hal_form_runs_as_it_is(
        self, device: Device, make: Callable[[], bytes]
    ) -> None:
        file = make()
        with pytest.raises(UnsupportedOperatorError):
            load(file, strict=True)
        model = load(file)
        prepared = await device.prepare(model)
        inputs = samples(model)
        expected = by_litert(file, inputs)
        for path in ("async", "sync", "burst", "fenced"):
            async with prepared.runner(path) as run:
                assert_equal(await run(inputs), expected)

    @pytest.mark.parametrize("name", ["RESHAPE", "BROADCAST_TO", "TILE"])
    async def test_values_of_inputs_may_say_lengths(
        self, device: Device, name: str
    ) -> None:
        file = one(name, [f32(1, 6), T(np.int32, (2,))], f32(1, 6))
        lengths = np.array([3, 2] if name == "RESHAPE" else [4, 6], np.int32)
        inputs = [np.arange(6, dtype=np.float32)[None], lengths]
        outputs = await (await device.prepare(load(file))).run(inputs)
        assert_equal(outputs, by_litert(file, inputs))

    async def test_a_branch_may_give_a_result_twice(self, device: Device) -> None:
        prepared = await device.prepare(load(same_results()))
        x = np.array([0, 7, 1], np.int32)  # LiteRT itself leaves the second one out
        outputs = await prepared.run([np.array([True]), x])
        assert_equal(outputs, [x ^ 1, x ^ 1, x])

    async def test_shapes_that_a_run_tells_are_those_of_its_results(
        self, device: Device
    ) -> None:
        prepared = await device.prepare(load(WHERE))
        for given_ in ([[1, 0, 1], [0, 0, 1]], [[0, 0, 0], [1, 0, 0]]):
            x = np.array(given_, np.bool_)
            outputs = await prepared.run([x])
            assert_equal(outputs, by_litert(WHERE, [x]))

    @pytest.mark.parametrize("file", EMPTY.values(), ids=EMPTY)
    async def test_tensors_may_have_no_elements(
        self, device: Device, file: bytes
    ) -> None:
        model = load(file)
        inputs = [np.ones(shape, np.float32) for shape in shapes_of(file)]
        outputs = await (await device.prepare(model)).run(inputs)
        assert_equal(outputs, by_litert(file, inputs))

    @pytest.mark.parametrize("make", [stale, stale_layer])
    async def test_shapes_in_a_file_are_hints(
        self, device: Device, make: Callable[[], bytes]
    ) -> None:
        await check(device, make())

    @pytest.mark.parametrize("batch", [1, 4])
    async def test_lengths_that_are_left_open_are_given(
        self, device: Device, batch: int
    ) -> None:
        file = open_batch()
        assert load(file).open_inputs == ("t0",)
        await check(device, file, input_shapes=[(batch, 3)])

    async def test_a_session_keeps_what_outputs_are_the_next_inputs(
        self, device: Device
    ) -> None:
        model = load(counting(), states={"state_in": "state_out"})
        prepared = await device.prepare(model)
        state, x = np.zeros(3, np.int32), np.array([3, 5, 9], np.int32)
        async with prepared.session() as session:
            for _ in range(3):
                outputs = await session.run({"t0": x})
                np.testing.assert_array_equal(outputs["t4"], (x ^ state) + x)
                state = state + x

    async def test_a_region_from_its_cache_gives_the_same(self, tmp_path: Path) -> None:
        file = FILES["activations of 16 bits"]()
        inputs = samples(load(file))
        for _ in range(2):
            async with open_device("accelerated") as device:
                prepared = await prepared_in(tmp_path, device, load(file))
                assert_equal(await prepared.run(inputs), by_litert(file, inputs))

    async def test_runs_of_one_region_overlap(self, device: Device) -> None:
        file = FILES["volumes"]()
        prepared = await device.prepare(load(file))
        inputs = [[np.full((1, 4, 5, 6, 2), k, np.float32)] for k in range(8)]
        results = await asyncio.gather(*map(prepared.run, inputs))
        for given_, outputs in zip(inputs, results, strict=True):
            assert_equal(outputs, by_litert(file, given_))

    async def test_a_device_without_litert_says_what_it_lacks(self) -> None:
        async with open_device("reference") as device:
            with pytest.raises(GeneralFailureError, match="CONV_3D"):
                await device.prepare(load(FILES["volumes"]()))

    async def test_models_of_others_give_what_litert_does(
        self, shared: Path, device: Device
    ) -> None:
        names = ("ad01_fp32", "kws_ref_model", "pretrainedResnet", "vww_96_int8")
        for name in names:
            file = (shared / "models" / f"{name}.tflite").read_bytes()
            model = region_of_tflite(from_buffer(file))
            inputs = samples(model, 0)
            outputs = await (await device.prepare(model)).run(inputs)
            assert_equal(outputs, by_litert(file, inputs))

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("case", [*CASES, *TYPED_CASES], ids=lambda case: case.name)
    async def test_each_operator_gives_what_it_does_in_litert(self, case: Case) -> None:
        file = case.litert_file()
        rng = np.random.default_rng(7)
        inputs = [
            sample(t, rng, positive=case.positive, below=case.below)
            for t in case.inputs
        ]
        try:
            model = region_of_tflite(from_buffer(file))
        except UnsupportedOperatorError as error:
            reason = (
                "operator 0 is"
                if case.name.split()[0] in UNASKED
                else "kept from run to run"
            )
            assert reason in str(error)  # noqa: PT017
            return
        async with open_device("accelerated") as device:
            prepared = await device.prepare(model)
            outputs = await prepared.run([*map(np.atleast_1d, inputs)])
        if case.name != "DENSIFY":  # where LiteRT itself fails
            assert_equal(outputs, by_litert(file, inputs))


async def check(device: Device, file: bytes, **options: Any) -> None:
    """Check that a file, loaded so, gives what LiteRT does."""
    model = load(file, **options)
    inputs = samples(model)
    outputs = await (await device.prepare(model)).run(inputs)
    assert_equal(outputs, by_litert(file, inputs))


def loops(first: int) -> bytes:
    """Return a file whose graph 1 runs another, or itself."""
    x, y, inner, z = T(np.bool_, (1,)), f32(2), T(np.bool_, (1,)), f32(2)
    branch = G([if_([inner], [z], first, first)], [inner], [z])
    return write([if_([x], [y], 1, 1)], [x], [y], branch)


X, Y = f32(2, 3), f32(2, 3)
IMAGE, KERNEL = f32(1, 4, 4, 2), ramp((3, 2, 2, 2))
UNSOUND = {
    "reads what nobody makes": write([Op("ADD", [X, f32(2, 3)], [Y])], [X], [Y]),
    "writes to its input": write([Op("TANH", [X], [X])], [X], [X]),
    "writes to a constant": write([Op("TANH", [X], [c := ramp((2, 3))])], [X], [c]),
    "makes a tensor twice": write([Op("TANH", [X], [Y])] * 2, [X], [Y]),
    "makes no output": write([Op("TANH", [X], [Y])], [X], [Y, f32(1)]),
    "leaves an input out": write([Op("TANH", [None], [Y])], [], [Y]),
    "stride of 0": write(
        [conv_2d(IMAGE, KERNEL, None, Z := f32(1, 3, 3, 3), StrideW=0)], [IMAGE], [Z]
    ),
    "endless calls": loops(1),
    "calls beyond the file": loops(7),
    "no scales": write(
        [Op("ADD", [b := T(I8, (3,)), b], [e := T(I8, (3,))])], [b], [e]
    ),
    "no bias, nor its place": write(
        [Op("DEPTHWISE_CONV_2D", [IMAGE, KERNEL], [D := f32(1, 3, 3, 3)])], [IMAGE], [D]
    ),
    "nothing to sum up": write(
        [Op("LOG_SOFTMAX", [n := f32(0)], [m := f32(0)])], [n], [m]
    ),
    "no axes": write([Op("REVERSE_V2", [X, const([])], [Y])], [X], [Y]),
    "no stride of windows": speech(stride=0),
    "windows that are no number": speech(window_size=float("nan")),
    "scale of 0": write([Op("TANH", [q := i8(3, scale=0.0)], [r := i8(3)])], [q], [r]),
}


PACKED = np.arange(24, dtype=np.uint8) * 37
FOUR_BITS = one(
    "FULLY_CONNECTED",
    [
        f32(2, 8),
        T(ml_dtypes.int4, (6, 8), PACKED, scale=(0.1,) * 6, zero_point=(0,) * 6),
    ],
    f32(2, 6),
    "FullyConnectedOptions",
)
"""Weights of which two are in a byte, the first in its lower half."""


async def test_weights_of_four_bits_are_used_as_they_are(device: Device) -> None:
    prepared = await device.prepare(load(FOUR_BITS))
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    assert_equal(await prepared.run([x]), by_litert(FOUR_BITS, [x]))


async def test_weights_of_four_bits_are_translated() -> None:
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    halves = np.stack([PACKED & 15, PACKED >> 4], 1).reshape(6, 8).astype(np.int8)
    weights = (np.where(halves > 7, halves - 16, halves) * 0.1).astype(np.float32)
    async with open_device("reference") as device:
        prepared = await device.prepare(load(FOUR_BITS, strict=True))
        (found,) = (await prepared.run([x])).values()
    np.testing.assert_allclose(found, x @ weights.T, rtol=1e-5)


AS_CODES = {
    "MAXIMUM": one("MAXIMUM", [i8(2, 3), i8(2, 3, scale=0.3)], i8(2, 3)),
    "REDUCE_MIN": one(
        "REDUCE_MIN", [i8(2, 3), const([1])], i8(2, scale=0.3), "ReducerOptions"
    ),
    "NEG": one("NEG", [i8(2, 3)], i8(2, 3)),
    "QUANTIZE": one("QUANTIZE", [i16(2, 3)], i16(2, 3, scale=2e-3)),
}


@pytest.mark.parametrize("file", AS_CODES.values(), ids=AS_CODES)
async def test_codes_that_litert_takes_as_they_are_are_not_translated(
    device: Device, file: bytes
) -> None:
    with pytest.raises(UnsupportedOperatorError):
        load(file, strict=True)
    await check(device, file)


async def test_slices_of_which_litert_reads_more_ends_than_there_are_are_translated(
    device: Device,
) -> None:
    bounds = [const([1]), const([1]), const([1])]
    inputs, options = [f32(3, 5), *bounds], ("StridedSliceOptions", {"Offset": True})
    file = one("STRIDED_SLICE", inputs, f32(1, 5), *options)
    with pytest.raises(UnsupportedOperatorError, match="offsets of some axes only"):
        region_of_tflite(from_buffer(file))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    outputs = await (await device.prepare(load(file))).run([x])
    assert_equal(outputs, [x[1:2]])


class TestUnsound:
    """What would end the process in LiteRT, or may, is refused before."""

    @pytest.mark.parametrize("file", UNSOUND.values(), ids=UNSOUND)
    def test_a_graph_that_is_unsound_is_no_region(self, file: bytes) -> None:
        with pytest.raises(InvalidArgumentError):
            region_of_tflite(from_buffer(file))

    @pytest.mark.parametrize("file", UNSOUND.values(), ids=UNSOUND)
    async def test_a_device_looks_for_itself(self, device: Device, file: bytes) -> None:
        sound = FILES["bits"]()
        model = region_of_tflite(from_buffer(sound))
        hostile = model.model.pools[0]
        padded = file + bytes(max(0, len(sound) - len(file)))
        operand = model.model.main.operands[0]
        changed = _with_graph(model, operand, from_buffer(padded), hostile)
        with pytest.raises(AsyncnnError):
            await device.prepare(changed)

    async def test_what_is_written_to_a_file_later_changes_nothing(self) -> None:
        file = FILES["activations of 16 bits"]()
        memory = bytearray(file)
        async with open_device("accelerated") as device:
            model = region_of_tflite(from_buffer(memory))
            prepared = await device.prepare(model)
            inputs = samples(model)
            memory[:] = bytes(len(memory))
            assert_equal(await prepared.run(inputs), by_litert(file, inputs))
            assert_equal(  # by another lane, whose graph is compiled by now or then
                (await asyncio.gather(*[prepared.run(inputs) for _ in range(8)]))[-1],
                by_litert(file, inputs),
            )

    async def test_operators_that_do_not_ask_for_lengths_are_asked_before(
        self, device: Device
    ) -> None:
        with pytest.raises(GeneralFailureError):
            await device.prepare(load(arcs(1, 3)))

    def test_what_is_not_litert_s_own_is_no_region(self) -> None:
        operator = Op("com.example.Twist", [f32(3)], [f32(3)])
        file = write([operator], given(operator), operator.outputs)
        with pytest.raises(UnsupportedOperatorError, match="Twist"):
            load(file)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES[::7], ids=lambda case: case.name)
def test_no_change_of_a_file_ends_the_process(case: Case, tmp_path: Path) -> None:
    file = case.litert_file()
    try:
        region_of_tflite(from_buffer(file))
    except UnsupportedOperatorError:
        return
    path = tmp_path / "model.tflite"
    path.write_bytes(file)
    ran = python("-m", mutating.__name__, path, "1", "0", "100", timeout=300)
    assert "ran" in ran.stdout, (ran.stdout[-10:], ran.returncode, ran.stderr[-500:])


def _with_graph(model: Any, operand: Any, memory: Any, _: Any) -> Any:
    from msgspec.structs import replace

    hal = model.model
    location = replace(operand.location, length=memory.size)
    graph = replace(operand, dimensions=(memory.size,), location=location)
    main = replace(hal.main, operands=(graph, *hal.main.operands[1:]))
    return replace(model, model=replace(hal, main=main, pools=(memory,)))


def dense_layers(count: int = 24, width: int = 1024) -> bytes:
    """Return layers each of which halves its input, and takes some milliseconds."""
    weights = T.constant(np.eye(width) / 2, np.float32)
    x = value = f32(64, width)
    operators = []
    for _ in range(count):
        after = f32(64, width)
        options = "FullyConnectedOptions", {}
        operators.append(
            Op("FULLY_CONNECTED", [value, weights, None], [after], *options)
        )
        value = after
    return write(operators, [x], [value])


@pytest.mark.alone
class TestInterrupts:
    """A run of some 50 ms, in parts of a few: what comes meanwhile need not wait."""

    async def test_cancelling_a_run_frees_its_lane_soon(self) -> None:
        async with open_device(
            "accelerated", settings=DeviceSettings(lanes=1)
        ) as device:
            prepared = await device.prepare(
                region_of_tflite(from_buffer(dense_layers()))
            )
            x = np.ones((64, 1024), np.float32)
            await prepared.run(x)
            started = time.perf_counter()
            await prepared.run(x)
            whole_s = time.perf_counter() - started
            quick = await device.prepare(load(FILES["bits"]()))
            bits = [np.ones((2, 3), np.int32)] * 2

            async def until_free() -> float:
                task = asyncio.create_task(prepared.run(x))
                await asyncio.sleep(whole_s / 8)
                began = time.perf_counter()
                if not task.cancel():
                    return float("inf")  # the loop was late
                with pytest.raises(asyncio.CancelledError):
                    await task
                await quick.run(bits)
                return (time.perf_counter() - began) / whole_s

            await best_of(5, until_free, 3 / 24)
            outputs = await prepared.run(x)
            np.testing.assert_allclose(next(iter(outputs.values())), x / 2.0**24)

    async def test_a_deadline_ends_a_run_in_the_middle(self, device: Device) -> None:
        prepared = await device.prepare(region_of_tflite(from_buffer(dense_layers())))
        x = np.ones((64, 1024), np.float32)
        await prepared.run(x)
        started = time.perf_counter()
        await prepared.run(x)
        whole_s = time.perf_counter() - started

        async def until_missed() -> float:
            began = time.perf_counter()
            try:
                await prepared.run(x, timeout=whole_s / 4)
            except MissedDeadlineTransientError:
                return (time.perf_counter() - began) / whole_s
            return float("inf")

        await best_of(5, until_missed, 0.6)
