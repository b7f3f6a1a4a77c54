"""Regions of tensors without elements, and what ends no process."""

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from asyncnn import Device, ModelBuilder, load, open_device
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Operand, OperandType, OperationType
from tests.devices.onnxruntime.graphs import FLOAT, INT64, graph, port, region

F32 = np.float32


@pytest.mark.parametrize("path", ["async", "sync", "burst"])
async def test_inputs_and_outputs_may_have_no_elements(
    device: Device, path: Any
) -> None:
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("ReduceSum", ["past"], ["sum"], keepdims=0),
    ]
    ends = [("past", FLOAT, ["n", 2]), ("x", FLOAT, ["m", 2])]
    outputs = [("present", FLOAT, ["k", 2]), ("sum", FLOAT, [])]
    ports = [port(F32, 0, 2), port(F32, 0, 2)], [port(F32, 0, 2), port(F32, 1)]
    prepared = await device.prepare(region(graph(nodes, ends, outputs), *ports))
    async with prepared.runner(path) as run_one:
        for rows, more in ((0, 1), (0, 0), (2, 0), (0, 1), (2, 3), (2, 3), (0, 0)):
            past, x = np.ones((rows, 2), F32), np.zeros((more, 2), F32)
            found = await run_one([past, x])
            np.testing.assert_array_equal(found["y0"], np.concatenate([past, x]))
            assert found["y1"].tolist() == [2 * rows]


async def test_inputs_without_elements_are_refused_that_would_end_the_process(
    device: Device,
) -> None:
    nodes = [helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=1)]
    weights = [
        numpy_helper.from_array(np.ones((1, 3, size), F32), name)
        for name, size in (("w", 2), ("r", 1))
    ]
    ends = [("x", FLOAT, ["n", 1, 2])], [("y", FLOAT, ["n", 1, 1, 1])]
    content = graph(nodes, *ends, weights)
    named = region(content, [port(F32, 0, 1, 2)], [port(F32, 0, 1, 1, 1)])
    prepared = await device.prepare(named)
    with pytest.raises(InvalidArgumentError, match="has no elements"):
        await prepared.run([np.empty((0, 1, 2), F32)])
    (y,) = (await prepared.run([np.ones((3, 1, 2), F32)])).values()
    assert y.shape == (3, 1, 1, 1)


def sliced_off(within: bool) -> bytes:
    """Return a file with a GRU, maybe in a branch, of what ``b`` leaves of ``x``."""
    nodes = [
        helper.make_node("Slice", ["x", "b", "end"], ["rest"]),
        helper.make_node("GRU", ["rest", "w", "r"], ["y"], hidden_size=1),
    ]
    if within:
        ends = [helper.make_tensor_value_info("y", FLOAT, None)]
        inner = helper.make_graph(nodes, "inner", [], ends)
        branches = {"then_branch": inner, "else_branch": inner}
        nodes = [helper.make_node("If", ["so"], ["y"], **branches)]
    weights = [
        numpy_helper.from_array(array, name)
        for name, array in {
            "w": np.ones((1, 3, 2), F32),
            "r": np.ones((1, 3, 1), F32),
            "end": np.array([4]),
            "so": np.array(True),
        }.items()
    ]
    ends = [("x", FLOAT, [4, 1, 2]), ("b", INT64, [1])], [("y", FLOAT, None)]
    return graph(nodes, *ends, weights)


def framed() -> bytes:
    """Return a file with a spectrum of frames of ``b`` elements of ``x``."""
    nodes = [helper.make_node("STFT", ["x", "step", "", "b"], ["y"])]
    ends = [("x", FLOAT, [1, 16, 1]), ("b", INT64, [1])], [("y", FLOAT, None)]
    return graph(nodes, *ends, [numpy_helper.from_array(np.array(2), "step")])


@pytest.mark.parametrize(
    ("content", "shape", "good", "bad", "words"),
    [
        (sliced_off(False), (4, 1, 2), 1, 4, "rest is read, and has no elements"),
        (sliced_off(True), (4, 1, 2), 1, 4, "cannot be reshaped"),
        (framed(), (1, 16, 1), 4, 0, "b is not positive"),
        (framed(), (1, 16, 1), 4, -4, "HannWindow"),
    ],
    ids=["GRU", "GRU in a branch", "no frames", "negative frames"],
)
async def test_what_is_computed_ends_no_process(
    device: Device,
    content: bytes,
    shape: tuple[int, ...],
    good: int,
    bad: int,
    words: str,
) -> None:
    prepared = await device.prepare(load(content))
    x = np.ones(shape, F32)
    for _ in range(2):
        with pytest.raises(GeneralFailureError, match=words):
            await prepared.run([x, np.array([bad])])
        (y,) = (await prepared.run([x, np.array([good])])).values()
        assert y.size
        assert np.isfinite(y).all()


async def test_outputs_without_a_name_end_no_process(device: Device) -> None:
    nodes = [helper.make_node("Split", ["x"], ["", "y"], num_outputs=2)]
    content = graph(nodes, [("x", FLOAT, [4])], [("y", FLOAT, [2])])
    prepared = await device.prepare(load(content))
    (y,) = (await prepared.run([np.arange(4, dtype=F32)])).values()
    assert y.tolist() == [2, 3]


@pytest.mark.parametrize("options", [{}, {"axis": 0}], ids=str)
async def test_none_are_all_different_but_along_an_axis(
    device: Device, options: dict[str, int]
) -> None:
    nodes = [helper.make_node("Unique", ["x"], ["y"], **options)]
    content = graph(nodes, [("x", FLOAT, [3, "n"])], [("y", FLOAT, None)])
    ends = [port(F32, 3, 0)], [port(F32)]
    prepared = await device.prepare(region(content, *ends))
    if options:
        with pytest.raises(InvalidArgumentError, match="has no elements"):
            await prepared.run([np.empty((3, 0), F32)])
    else:
        (y,) = (await prepared.run([np.empty((3, 0), F32)])).values()
        assert y.shape == (0,)


WEIGHTS = {
    "w": np.ones((1, 4, 2), F32),
    "r": np.ones((1, 4, 1), F32),
    "k": np.ones((2, 3, 2, 2), F32),
}


@pytest.mark.parametrize(
    ("shape", "made", "type_", "read", "options"),
    [
        ((0, 3, 2), (0, 1, 3, 1), "LSTM", "xwr", {"hidden_size": 1}),
        ((0, 2, 4, 4), (0, 3, 5, 5), "ConvTranspose", "xk", {}),
        ((0, 3), (0, 3), "Unique", "x", {"axis": 0}),
        ((0, 1), (2, 1, 1, 1), "GRU", "zgs", {"hidden_size": 1}),
    ],
)
async def test_operators_are_given_none_that_they_can_do_without(
    device: Device,
    shape: tuple[int, ...],
    made: tuple[int, ...],
    type_: str,
    read: str,
    options: dict[str, int],
) -> None:
    arrays = WEIGHTS | {
        "z": np.ones((2, 1, 2), F32),
        "g": np.ones((1, 3, 2), F32),
        "s": np.ones((1, 3, 1), F32),
    }
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    axes = [each or "n" for each in shape]
    nodes = [
        helper.make_node(type_, [*read], ["y"], **options),
        helper.make_node("Identity", ["x"], ["copy"]),
    ]
    ends = [("x", FLOAT, axes)], [("y", FLOAT, None), ("copy", FLOAT, axes)]
    content = graph(nodes, *ends, weights)
    prepared = await device.prepare(load(content))
    x = np.empty(shape, F32)
    found = await prepared.run([x])
    assert found["copy"].shape == shape
    assert found["y"].shape == made


async def test_only_regions_take_inputs_without_elements() -> None:
    builder = ModelBuilder()
    x = builder.input("x", OperandType.TENSOR_FLOAT32, (0, 2))
    like = Operand(OperandType.TENSOR_FLOAT32, (0, 2))
    builder.output(builder.operation(OperationType.ABS, [x], like), "y")
    async with open_device("reference") as device:
        prepared = await device.prepare(builder.build())
        with pytest.raises(InvalidArgumentError, match="not fully specified"):
            await prepared.run([np.empty((0, 2), F32)])
