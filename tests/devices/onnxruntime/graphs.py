"""Regions of small graphs, made with the `onnx` package."""

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from asyncnn import Device, NamedModel, load
from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices.onnxruntime.sessions import RegionSession
from asyncnn.extensions.regions import ONNX, RegionPort, region_model, type_of
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.memory.pools import from_buffer
from tests.preparing import launch_preparation
from tests.runtime.onnx.files import parsed

F32 = np.float32
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
BFLOAT16 = np.dtype("V2")

SIDE = 64

Axes = Sequence[int | str]
Info = tuple[str, int, Axes]
"""Name, element type and axes of a port."""


def graph(
    nodes: Sequence[Any],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    initializers: Sequence[Any] = (),
    **options: Any,
) -> bytes:
    """Return an ONNX file of these nodes."""
    made = helper.make_graph(
        nodes,
        "region",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        initializers,
    )
    options.setdefault("opset_imports", [helper.make_opsetid("", 18)])
    content: bytes = helper.make_model(
        made, ir_version=9, **options
    ).SerializeToString()
    return content


def port(dtype: Any, *dimensions: int) -> RegionPort:
    """Return an input or output of a region; 0 is an open length."""
    return type_of(ONNX, np.dtype(dtype)), dimensions, 0.0, 0


def region(
    content: bytes, inputs: Sequence[RegionPort | Array], outputs: Sequence[RegionPort]
) -> NamedModel:
    """Return the model of one region, with inputs ``x0``... and outputs ``y0``..."""
    model = region_model(ONNX, from_buffer(content), inputs, outputs)
    given = sum(not isinstance(each, np.ndarray) for each in inputs)
    return NamedModel.of(
        model,
        [f"x{number}" for number in range(given)],
        [f"y{number}" for number in range(len(outputs))],
    )


def one_node(
    type_: str, dtype: Any, *dimensions: int, domain: str = "", **attributes: Any
) -> NamedModel:
    """Return a region of one operator of one input, whose output is like that."""
    element = number_of(dtype)
    node = helper.make_node(type_, ["x"], ["y"], domain=domain, **attributes)
    axes = [each or "n" for each in dimensions]
    info = graph([node], [("x", element, axes)], [("y", element, axes)])
    return region(info, [port(dtype, *dimensions)], [port(dtype, *dimensions)])


def number_of(dtype: Any) -> int:
    """Return ONNX's number of an element type."""
    if np.dtype(dtype) == BFLOAT16:
        return int(TensorProto.BFLOAT16)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def relu(*dimensions: int) -> NamedModel:
    """Return a region that computes RELU of float32."""
    return one_node("Relu", np.float32, *dimensions)


def tiling(*lengths: int | str) -> NamedModel:
    """Return a model that repeats ``x`` as often as its other input says."""
    nodes = [helper.make_node("Tile", ["x", "times"], ["y"])]
    ends = [("x", FLOAT, lengths), ("times", INT64, [1])]
    return load(graph(nodes, ends, [("y", FLOAT, ["long"])]))


def looping() -> NamedModel:
    """Return a region that multiplies ``x1`` by a matrix ``x0`` times: one of turns.

    The matrix moves columns by one. With `ENDLESS` it only ends if it is told to.
    """
    side = f"float[{SIDE}, {SIDE}]"
    body = parsed(
        f"int64 number, bool go_on, {side} before => bool goes_on, {side} after",
        "goes_on = Identity(go_on); after = MatMul(before, turned)",
    )
    content = graph(
        [helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)],
        [("times", INT64, [1]), ("x", FLOAT, [SIDE, SIDE])],
        [("y", FLOAT, [SIDE, SIDE])],
        [
            numpy_helper.from_array(
                np.roll(np.eye(SIDE, dtype=np.float32), 1, 1), "turned"
            )
        ],
    )
    square = port(np.float32, SIDE, SIDE)
    return region(content, [port(np.int64, 1), square], [square])


ENDLESS = 1 << 40
X = np.random.default_rng(0).random((SIDE, SIDE), np.float32)


def turns(times: int) -> list[Array]:
    """Return the inputs of `looping`."""
    return [np.array([times], np.int64), X]


def turned(times: int) -> Array:
    """Return what `looping` computes."""
    return np.roll(X, times, 1)


async def refused(device: Device, model: NamedModel, words: str) -> None:
    """Check that the HAL device refuses a region; `Device` may know another way."""
    callback = PreparedModelFuture()
    launch_preparation(device.hal, model.model, callback)
    with pytest.raises(AsyncnnError, match=words):
        await callback


def sessions() -> int:
    """Count the sessions that there are."""
    gc.collect()
    return sum(isinstance(each, RegionSession) for each in gc.get_objects())
