"""Regions on ONNX Runtime compute what their graphs say, or say what is wrong."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from asyncnn import Device, NamedModel, load, open_device
from asyncnn.devices import DeviceSettings
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import ExecutionPreference, OperandType
from tests.devices.onnxruntime.graphs import (
    BFLOAT16,
    FLOAT,
    INT64,
    graph,
    looping,
    number_of,
    port,
    refused,
    region,
    relu,
    sessions,
    turned,
    turns,
)

F32 = np.float32


async def run(device: Device, model: NamedModel, *inputs: Any) -> list[Any]:
    prepared = await device.prepare(model)
    outputs = await prepared.run(list(inputs))
    return list(outputs.values())


async def test_it_computes_what_the_graph_says(device: Device) -> None:
    x = np.linspace(-1, 1, 12, dtype=F32).reshape(3, 4)
    prepared = await device.prepare(relu(3, 4))
    for _ in range(20):
        np.testing.assert_array_equal((await prepared.run([x]))["y0"], np.maximum(x, 0))


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.float32, np.float16, np.float64, np.bool_, BFLOAT16),
        *(np.int8, np.int16, np.int32, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.uint64),
    ],
    ids=lambda dtype: str(np.dtype(dtype)),
)
@pytest.mark.parametrize("elements", [3, 40_000])
async def test_it_has_all_types_that_regions_have(dtype: Any, elements: int) -> None:
    x = (
        np.arange(elements).astype(np.uint16).view(dtype)
        if dtype == BFLOAT16
        else (np.arange(elements).astype(dtype))
    )
    axes = [("x", number_of(dtype), [elements]), ("y", number_of(dtype), [elements])]
    content = graph([helper.make_node("Identity", ["x"], ["y"])], axes[:1], axes[1:])
    ends = port(dtype, elements)
    async with open_device("onnxruntime") as device:
        (y,) = await run(device, region(content, [ends], [ends]), x)
    assert y.dtype == x.dtype
    assert y.tobytes() == x.tobytes()


async def test_quantised_operands_are_their_codes() -> None:
    content = graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.UINT8, [4])],
        [("y", TensorProto.UINT8, [4])],
    )
    codes = OperandType.TENSOR_QUANT8_ASYMM, (4,), 0.5, 3
    x = np.array([0, 3, 4, 255], np.uint8)
    async with open_device("onnxruntime") as device:
        (y,) = await run(device, region(content, [codes], [codes]), x)
    np.testing.assert_array_equal(y, x)


async def test_results_may_be_as_long_as_the_data_say(device: Device) -> None:
    content = graph(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [("x", FLOAT, [4])],
        [("y", INT64, [1, "found"])],
    )
    model = region(content, [port(F32, 4)], [port(np.int64, 1, 0)])
    prepared = await device.prepare(model)
    for x, found in ([0, 1, 2, 0], [[1, 2]]), ([5, 0, 0, 0], [[0]]):
        assert (await prepared.run([np.array(x, F32)]))["y0"].tolist() == found


async def test_control_flow_runs_whole(device: Device) -> None:
    prepared = await device.prepare(looping())
    for times in (0, 1, 5, 70):
        outputs = await prepared.run(turns(times))
        np.testing.assert_allclose(outputs["y0"], turned(times), rtol=1e-6)


async def test_a_constant_input_has_always_this_value(device: Device) -> None:
    content = graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", FLOAT, [2]), ("w", FLOAT, [2])],
        [("y", FLOAT, [2])],
    )
    w = np.array([10, 20], F32)
    model = region(content, [port(F32, 2), w], [port(F32, 2)])
    (y,) = await run(device, model, np.array([1, 2], F32))
    assert y.tolist() == [11, 22]


async def test_a_region_stands_between_operations_of_the_hal() -> None:
    async with open_device("onnxruntime") as device:
        (y,) = await run(device, relu(4), np.array([-1, 0, 1, 2], F32))
        assert y.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("preference", list(ExecutionPreference))
async def test_every_preference_computes_the_same(
    preference: ExecutionPreference,
) -> None:
    x = turns(3)
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(looping(), preference=preference)
        for _ in range(30):
            np.testing.assert_allclose((await prepared.run(x))["y0"], turned(3), 1e-6)


async def test_what_loops_never_runs_on_the_event_loop() -> None:
    settings = DeviceSettings(inline_below_us=1e6, lanes=1)
    async with open_device("onnxruntime", settings=settings) as device:
        prepared = await device.prepare(looping())
        for _ in range(10):
            await prepared.run(turns(0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(prepared.run(turns(1 << 40)), 0.05)


async def test_files_of_the_same_contents_share_a_session(tmp_path: Path) -> None:
    content = graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", FLOAT, [3])],
        [("y", FLOAT, [3])],
    )
    others = graph(
        [helper.make_node("Tanh", ["x"], ["y"])],
        [("x", FLOAT, [3])],
        [("y", FLOAT, [3])],
    )
    before = sessions()
    async with open_device("onnxruntime") as device:
        prepared = []
        for number, each in enumerate((content, content, others)):
            (tmp_path / f"{number}.onnx").write_bytes(each)
            named = load(tmp_path / f"{number}.onnx")
            prepared += await asyncio.gather(*map(device.prepare, [named] * 2))
        assert sessions() == before + 2
        x = np.float32([-1, 0, 2])
        for each, expected in zip(
            prepared, [np.maximum(x, 0)] * 4 + [np.tanh(x)] * 2, strict=True
        ):
            np.testing.assert_allclose((await each.run([x]))["y"], expected, 1e-6)


async def test_clients_share_what_is_the_same_and_nothing_is_left() -> None:
    before = sessions()
    async with open_device("onnxruntime") as device:
        first = await device.prepare(relu(3))
        second = await device.prepare(relu(3))
        third = await device.prepare(relu(5))
        assert sessions() == before + 2
        for prepared, length in (first, 3), (second, 3), (third, 5):
            await prepared.run([np.ones(length, F32)])
        assert sessions() == before + 2
        del first, second, third, prepared
        for _ in range(100):
            if sessions() == before:
                break
            await asyncio.sleep(0.01)
    assert sessions() == before


class TestWhatIsWrong:
    """It is said when a model is prepared, in words, and the device goes on."""

    @pytest.fixture(autouse=True)
    async def goes_on(self, device: Device) -> Any:
        yield
        (y,) = await run(device, relu(2), np.array([-1, 1], F32))
        assert y.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("ends", "words"),
        [
            (([port(F32, 3)], [port(F32, 2)]), r"input 1 has shape \[3\]"),
            (([port(F32, 2, 1)], [port(F32, 2)]), r"input 1 has shape \[2, 1\]"),
            (([port(F32, 2)], [port(F32, 3)]), r"output 0 has shape \[3\]"),
            (([port(np.int64, 2)], [port(F32, 2)]), "input 1 is int64"),
            (([port(F32, 2)], [port(np.int32, 2)]), "output 0 is int32"),
            (([port(F32, 2)] * 2, [port(F32, 2)]), "the graph has 1 and 1"),
            (([port(F32, 2)], [port(F32, 2)] * 2), "the graph has 1 and 1"),
        ],
    )
    async def test_operands_are_those_of_the_graph(
        self, device: Device, ends: Any, words: str
    ) -> None:
        content = graph(
            [helper.make_node("Relu", ["x"], ["y"])],
            [("x", FLOAT, [2])],
            [("y", FLOAT, [2])],
        )
        await refused(device, region(content, *ends), words)

    @pytest.mark.parametrize(
        "content", [b"\0", b"\x07" * 50, b"not a graph" * 10, b"\x3a\x02\x08\x01"]
    )
    async def test_bytes_that_are_no_graph(
        self, device: Device, content: bytes
    ) -> None:
        ends = [port(F32, 2)]
        await refused(device, region(content, ends, ends), "ONNX|graph")

    async def test_operators_are_there_though_lengths_are_open(
        self, device: Device
    ) -> None:
        node = helper.make_node("NoSuchOperator", ["x"], ["y"])
        content = graph([node], [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])])
        ends = [port(F32, 0)]
        await refused(device, region(content, ends, ends), "NoSuchOperator")

    async def test_what_a_run_fails_of_is_its_error(self, device: Device) -> None:
        content = graph(
            [helper.make_node("Gather", ["x", "at"], ["y"])],
            [("x", FLOAT, [3]), ("at", INT64, [1])],
            [("y", FLOAT, [1])],
        )
        ends = [port(F32, 3), port(np.int64, 1)]
        prepared = await device.prepare(region(content, ends, [port(F32, 1)]))
        x = np.arange(3, dtype=F32)
        with pytest.raises(GeneralFailureError, match="indices element out of"):
            await prepared.run([x, np.array([5])])
        assert (await prepared.run([x, np.array([2])]))["y0"].tolist() == [2]

    async def test_declared_shapes_that_a_run_does_not_have(
        self, device: Device
    ) -> None:
        content = graph(
            [helper.make_node("NonZero", ["x"], ["y"])],
            [("x", FLOAT, [4])],
            [("y", INT64, [1, "found"])],
        )
        model = region(content, [port(F32, 4)], [port(np.int64, 1, 2)])
        prepared = await device.prepare(model)
        outputs = await prepared.run([np.array([1, 0, 2, 0], F32)])
        assert outputs["y0"].tolist() == [[0, 2]]
        with pytest.raises(GeneralFailureError):
            await prepared.run([np.ones(4, F32)])


@pytest.mark.parametrize("lengths", [[1, 4], [1, 2], [1, "n"], ["m", "n"]], ids=str)
async def test_lengths_that_values_decide_are_not_those_of_the_file(
    device: Device, lengths: list[int | str]
) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    content = graph(nodes, [("x", FLOAT, [4])], [("y", INT64, lengths)])
    prepared = await device.prepare(load(content))
    for x in ([1, 0, 2, 0], [1, 1, 1, 1], [0, 0, 0, 3]):
        (found,) = (await prepared.run([np.array(x, F32)])).values()
        np.testing.assert_array_equal(found, np.nonzero(x))


@pytest.mark.parametrize("lengths", [(3,), (0,)], ids=["fixed", "open"])
async def test_outputs_that_are_inputs_or_repeated_are_copies(
    device: Device, lengths: tuple[int]
) -> None:
    axes = [each or "n" for each in lengths]
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    ends = [("x", FLOAT, axes), ("y", FLOAT, axes)]
    content = graph(nodes, ends[:1], [*ends, ends[1]])
    end = port(F32, *lengths)
    prepared = await device.prepare(region(content, [end], [end, end, end]))
    for k in range(4):
        x = np.arange(3, dtype=F32) + k
        outputs = await prepared.run([x])
        np.testing.assert_array_equal(outputs["y0"], x)
        np.testing.assert_array_equal(outputs["y1"], 2 * x)
        np.testing.assert_array_equal(outputs["y2"], 2 * x)
        assert not np.shares_memory(outputs["y0"], x)


@pytest.mark.parametrize("lengths", [[3, 2], ["n", 7], [3], ["k", 1, 2]], ids=str)
async def test_lengths_of_results_in_a_file_with_open_ones_are_hints(
    device: Device, lengths: list[int | str]
) -> None:
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]
    content = graph(nodes, [("x", FLOAT, ["n", 2])], [("y", FLOAT, lengths)])
    prepared = await device.prepare(load(content))
    for rows in (3, 3, 3, 4, 1, 4):
        x = np.ones((rows, 2), F32)
        (found,) = (await prepared.run([x])).values()
        np.testing.assert_array_equal(found, np.concatenate([x, x]))


async def test_lengths_of_results_that_the_engine_knows_better_are_hints(
    device: Device,
) -> None:
    nodes = [helper.make_node("STFT", ["x", "step", "", "length"], ["y"])]
    step, length = (numpy_helper.from_array(np.int64(n)) for n in (8, 16))
    step.name, length.name = "step", "length"
    ends = [("x", FLOAT, [1, 64, 1])], [("y", FLOAT, ["a", "b", "c", "d"])]
    prepared = await device.prepare(load(graph(nodes, *ends, [step, length])))
    (found,) = (await prepared.run([np.ones((1, 64, 1), F32)])).values()
    assert found.shape == (1, 7, 9, 2)


def test_lengths_of_results_that_follow_are_kept() -> None:
    weights = numpy_helper.from_array(np.ones((2, 5), F32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    ends = [("x", FLOAT, ["n", 2])], [("y", FLOAT, ["n", 5])]
    assert load(graph(nodes, *ends, [weights])).outputs[0].shape == (None, 5)


@pytest.mark.parametrize("is_inner", [False, True])
async def test_inputs_that_are_omitted_at_the_end_are_not_there(
    device: Device, is_inner: bool
) -> None:
    scale = numpy_helper.from_array(np.full(4, 2, F32), "scale")
    y = [("y", FLOAT, [2, 4])]
    nodes = [helper.make_node("LayerNormalization", ["x", "scale", ""], ["y"])]
    if is_inner:
        ends = [helper.make_tensor_value_info(*y[0])]
        inner = helper.make_graph(nodes, "inner", [], ends)
        branches = {"then_branch": inner, "else_branch": inner}
        nodes = [helper.make_node("If", ["c"], ["y"], **branches)]
    ends = [("x", FLOAT, [2, 4]), ("c", TensorProto.BOOL, [])]
    content = graph(nodes, ends, y, [scale])
    prepared = await device.prepare(load(content))
    x = np.arange(8, dtype=F32).reshape(2, 4)
    for _ in range(3):
        (found,) = (await prepared.run([x, np.array(True)])).values()
        expected = 2 * (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "operator", "attributes"),
    [
        ((1, 1, 2, 3), "AveragePool", {"ceil_mode": 1, "strides": [3, 3]}),
        ((1, 1, 4, 7), "MaxPool", {"ceil_mode": 1, "strides": [3, 3]}),
        (
            (1, 1, 5, 12),
            "AveragePool",
            {"auto_pad": "SAME_UPPER", "dilations": [1, 2], "strides": [1, 2]},
        ),
        (
            (1, 1, 3, 3),
            "ConvTranspose",
            {"auto_pad": "SAME_UPPER", "output_padding": [1, 1], "strides": [3, 3]},
        ),
    ],
    ids=["average", "largest", "dilated", "transposed"],
)
async def test_shapes_are_those_of_a_run_where_onnx_infers_others(
    shape: tuple[int, ...], operator: str, attributes: dict[str, Any]
) -> None:
    import onnxruntime

    weights = [numpy_helper.from_array(np.ones((1, 1, 2, 1), F32), "w")]
    given = ["x", "w"] if operator == "ConvTranspose" else ["x"]
    node = helper.make_node(operator, given, ["y"], kernel_shape=[2, 1], **attributes)
    content = graph(
        *([node], [("x", FLOAT, shape)], [("y", FLOAT, [None] * 4)]),
        *(weights[: len(given) - 1],),
        opset_imports=[helper.make_opsetid("", 19)],
    )
    x = np.arange(np.prod(shape), dtype=F32).reshape(shape)
    expected = onnxruntime.InferenceSession(content).run(None, {"x": x})[0]
    async with open_device("onnxruntime") as device:
        (y,) = await run(device, load(content), x)
    np.testing.assert_array_equal(y, expected)
