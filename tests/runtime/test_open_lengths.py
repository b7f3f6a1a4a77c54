"""Errors say that a file leaves lengths open where these are why, and only there."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

import asyncnn
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.refusals import refuse_preparation
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from tests.runtime.onnx.files import imported as imported_onnx
from tests.runtime.onnx.files import model, tensor, written
from tests.runtime.tflite.cases import f32, ramp
from tests.runtime.tflite.files import Op, T, write
from tests.runtime.tflite.graphs import conv_2d
from tests.runtime.tflite.importing import import_tflite

HINT = "the file leaves shapes to the application: load it with your own, "


def sound(padding: int = 1, stride: int = 1) -> NamedModel:
    """Return a model with a filter of four over sound of any length, by example 1."""
    x = T(shape=(1, 1, 1, 1), signature=(-1, 1, -1, 1), name="x")
    y, fields = f32(1, 1, 1, 5), {"Padding": padding, "StrideW": stride}
    operator = conv_2d(x, ramp((5, 1, 4, 1)), ramp((5,)), y, **fields)
    return import_tflite(from_buffer(write([operator], [x], [y])))


@pytest.fixture(params=["reference", "accelerated"])
async def device(request: pytest.FixtureRequest) -> Any:
    async with asyncnn.open_device(request.param) as opened:
        yield opened


class TestPreparing:
    async def test_what_no_example_fits_is_told(self, device: Device) -> None:
        named = sound()
        assert named.open_inputs == ("x",)
        with pytest.raises(GeneralFailureError, match="does not fit in 1") as caught:
            await device.prepare(named)
        assert caught.value.hint.startswith(HINT)

    async def test_an_argument_that_no_length_helps_is_not(
        self, device: Device
    ) -> None:
        with pytest.raises(GeneralFailureError, match="-2 is not positive") as caught:
            await device.prepare(sound(stride=-2))
        assert caught.value.hint == ""

    async def test_a_device_that_fails_is_not(self) -> None:
        class Exhausted(ReferenceDevice):
            def prepare_model_1_3(self, *arguments: Any) -> ErrorStatus:
                *_, callback = arguments
                return refuse_preparation(
                    callback, GeneralFailureError("no descriptor is left")
                )

        x = T(shape=(1, 4), signature=(-1, 4), name="x")
        operator = Op("RELU", [x], [f32(1, 4)])
        named = import_tflite(from_buffer(write([operator], [x], operator.outputs)))
        async with Exhausted() as hal:
            with pytest.raises(GeneralFailureError, match="no descriptor") as caught:
                await Device("exhausted", hal).prepare(named)
        assert named.open_inputs == ("x",)
        assert caught.value.hint == ""


def test_a_tflite_file_that_is_wrong_says_only_that() -> None:
    with pytest.raises(InvalidArgumentError, match="padding 7 is neither") as caught:
        sound(padding=7)
    assert caught.value.hint == ""


class TestReadingOnnxFiles:
    def test_what_no_length_helps_is_not_told(self) -> None:
        proto = written("float[batch, 3, height] x => float[] y", "y = Unheard(x)")
        with pytest.raises(asyncnn.AsyncnnError, match="Unheard") as caught:
            imported_onnx(proto)
        assert caught.value.hint == ""

    @pytest.mark.parametrize("shape", [(6, "n"), ("n", 6)])
    def test_what_some_length_helps_is(self, shape: tuple[Any, ...]) -> None:
        proto = model(
            [helper.make_node("Reshape", ["x", "shape"], ["y"])],
            [tensor("x", shape)],
            ["y"],
            {"shape": np.int64([2, 3])},
        )
        with pytest.raises(InvalidArgumentError) as caught:
            imported_onnx(proto)
        assert "leaves axes of its inputs open" in caught.value.hint
        assert imported_onnx(proto, input_shapes=[(6, 1) if shape[0] == 6 else (1, 6)])
