"""Custom operators: MediaPipe's, a user's own, and detection; beside plain formulas."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.extensions import Argument, Extension, FlexOptions, stateless
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import OperandType
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.direct import run_direct
from tests.runtime.tflite.cases import F32, f32
from tests.runtime.tflite.files import NUMBERS, Op, T, flex, given, packed, write
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.litert import run_litert
from tests.runtime.tflite.mediapipe_formulas import (
    SAME,
    VALID,
    box_matrix,
    crop_matrix,
    pooled,
    transformed_image,
    transformed_landmarks,
    transposed_convolution,
    unpooled,
)


def file_of(operator: Op) -> bytes:
    return write([operator], given(operator), operator.outputs)


async def run(operator: Op, *inputs: np.ndarray) -> list[np.ndarray]:
    """Return what a device computes that was opened before the file was known."""
    async with asyncnn.open_device("reference") as device:
        model = import_tflite(from_buffer(file_of(operator)))
        prepared = await device.prepare(model)
        return [*(await prepared.run(inputs)).values()]


def draw(
    *shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0
) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(F32)


class TestTransposedConvolution:
    @pytest.mark.parametrize("padding", [SAME, VALID])
    @pytest.mark.parametrize(
        ("strides", "window"), [((2, 2), (2, 2)), ((1, 3), (3, 4))]
    )
    async def test_it_is_that_of_the_hal_with_a_padding_of_its_own(
        self, padding: int, strides: tuple[int, int], window: tuple[int, int]
    ) -> None:
        x, weights = draw(2, 4, 5, 3), draw(6, *window, 3, seed=1)
        bias = draw(6, seed=2)
        expected = transposed_convolution(x, weights, bias, strides, padding)
        operator = Op(
            "Convolution2DTransposeBias",
            [f32(*x.shape), T.constant(weights, F32), T.constant(bias, F32)],
            [f32(*expected.shape)],
            custom=packed(padding, strides[1], strides[0], 0, 0),
        )
        (actual,) = await run(operator, x)
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


class TestPools:
    @pytest.mark.parametrize("padding", [SAME, VALID])
    @pytest.mark.parametrize("size", [2, 3])
    async def test_maxima_and_their_places(self, padding: int, size: int) -> None:
        x = draw(2, 7, 6, 3)
        maxima, places = pooled(x, (size, size), (2, 2), padding, low=0.0)
        operator = Op(
            "MaxPoolingWithArgmax2D",
            [f32(2, 7, 6, 3)],
            [f32(*maxima.shape), f32(*maxima.shape)],
            custom=packed(padding, 2, 2, size, size, 1),
        )
        actual = await run(operator, x)
        np.testing.assert_allclose(actual[0], maxima, 0, 0)
        np.testing.assert_allclose(actual[1], places, 1e-6)

    async def test_a_window_of_a_billion_lines_is_not_counted_out(self) -> None:
        x, size = draw(1, 3, 2, 1), 2**30
        operator = Op(
            "MaxPoolingWithArgmax2D",
            [f32(*x.shape)],
            [f32(*x.shape), f32(*x.shape)],
            custom=packed(SAME, 1, 1, size, size, 0),
        )
        maxima, places = await run(operator, x)
        np.testing.assert_array_equal(maxima, np.full_like(x, x.max()))
        line = np.argmax(x) // 2 - np.arange(3) + (size - 1) // 2
        expected = np.broadcast_to(line[:, None, None] * float(size), places.shape)
        np.testing.assert_allclose(places, expected, 1e-6)

    async def test_an_unpooled_image_has_the_maxima_in_their_places(self) -> None:
        x = draw(1, 4, 6, 2, low=0.1)
        pool = Op(
            "MaxPoolingWithArgmax2D",
            [a := f32(1, 4, 6, 2)],
            [b := f32(1, 2, 3, 2), c := f32(1, 2, 3, 2)],
            custom=packed(SAME, 2, 2, 2, 2, 0),
        )
        options = packed(SAME, 2, 2, 2, 2, 0)
        back = Op("MaxUnpooling2D", [b, c], [d := f32(1, 4, 6, 2)], custom=options)
        async with asyncnn.open_device("reference") as device:
            model = import_tflite(from_buffer(write([pool, back], [a], [d])))
            prepared = await device.prepare(model)
            (actual,) = (await prepared.run([x])).values()
        expected = unpooled(*pooled(x, (2, 2), (2, 2), SAME), (2, 2))
        np.testing.assert_array_equal(actual, expected.astype(F32))
        blocks = x.reshape(1, 2, 2, 3, 2, 2)
        is_largest = blocks == blocks.max(axis=(2, 4), keepdims=True)
        np.testing.assert_array_equal(actual, (blocks * is_largest).reshape(x.shape))

    async def test_places_beyond_the_image_are_left_out(self) -> None:
        operator = Op(
            "MaxUnpooling2D",
            [f32(1, 1, 3, 1), f32(1, 1, 3, 1)],
            [f32(1, 2, 6, 1)],
            custom=packed(SAME, 2, 2, 2, 2, 0),
        )
        places = np.float32([1e9, np.nan, -5]).reshape(1, 1, 3, 1)
        (actual,) = await run(operator, np.ones((1, 1, 3, 1), F32), places)
        assert not actual.any()


def matrix(seed: int, scale: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    result = np.eye(4) + rng.uniform(-scale, scale, (4, 4))
    result[:2, 3] = rng.uniform(0, 2, 2)
    return result.astype(F32)


class TestTransforms:
    @pytest.mark.parametrize("version", [1, 2])
    async def test_pixels_are_read_between_four_others(self, version: int) -> None:
        image, turn = draw(1, 6, 7, 3), matrix(4)
        expected = transformed_image(image, turn, (5, 4), centred=version == 2)
        assert np.count_nonzero(expected) > 20
        options = (
            {"mode": "bilinear", "output_size": [5, 4]}
            if version == 1
            else {"output_height": 5, "output_width": 4}
        )
        operator = Op(
            "TransformTensorBilinear",
            [f32(1, 6, 7, 3), f32(1, 4, 4)],
            [f32(1, 5, 4, 3)],
            custom=flex(options),
            version=version,
        )
        (actual,) = await run(operator, image, turn[None])
        np.testing.assert_allclose(actual, expected, 1e-4, 1e-5)

    @pytest.mark.parametrize("dimensions", [2, 3])
    async def test_landmarks_with_a_scale(self, dimensions: int) -> None:
        marks, turn = draw(1, 1, 1, 5 * dimensions), matrix(5)
        points = marks.reshape(5, dimensions)
        expected = transformed_landmarks(points, turn, scale=2.5)
        operator = Op(
            "TransformLandmarks",
            [f32(1, 1, 1, 5 * dimensions), f32(1, 4, 4)],
            [f32(1, 1, 1, 5 * dimensions)],
            custom=flex({"dimensions": dimensions, "scale": 2.5}),
        )
        (actual,) = await run(operator, marks, turn[None])
        np.testing.assert_allclose(actual.reshape(5, -1), expected, 1e-5, 1e-5)

    @pytest.mark.parametrize("dimensions", [2, 3])
    async def test_landmarks_of_version_2(self, dimensions: int) -> None:
        marks, turn = draw(1, 6, dimensions), matrix(6)
        expected = transformed_landmarks(marks, turn)
        operator = Op(
            "TransformLandmarks",
            [f32(1, 6, dimensions), f32(1, 4, 4)],
            [f32(1, 6, dimensions)],
            version=2,
        )
        (actual,) = await run(operator, marks, turn[None])
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


class TestMatrices:
    MARKS = draw(1, 8, 3, seed=9, low=10, high=100)

    async def test_a_crop_follows_two_landmarks(self) -> None:
        options = {
            "subset_idxs": [0, 3, 5, 6, 2],
            "left_rotation_idx": 1,
            "right_rotation_idx": 4,
            "target_rotation_radians": 0.25,
            "output_height": 32,
            "output_width": 48,
            "scale_x": 1.5,
            "scale_y": 1.25,
        }
        operator = Op(
            "Landmarks2TransformMatrix",
            [f32(1, 8, 3)],
            [f32(1, 4, 4)],
            custom=flex(options),
            version=2,
        )
        (actual,) = await run(operator, self.MARKS)
        expected = crop_matrix(self.MARKS, options)
        np.testing.assert_allclose(actual[0], expected, 1e-4, 1e-4)

    async def test_a_box_of_version_1(self) -> None:
        options = {
            "dimensions": 3,
            "landmarks_range": 128,
            "left_rotation_idx": 2,
            "right_rotation_idx": 7,
            "bbox_size_multiplier": 1.5,
            "input_hw": [64, 80],
            "output_hw": [16, 24],
            "subset": [0, 1, 2, 3, 5],
        }
        expected = box_matrix(self.MARKS, options)
        operator = Op(
            "Landmarks2TransformMatrix",
            [f32(1, 1, 1, 24)],
            [f32(1, 4, 4)],
            custom=flex(options),
        )
        (actual,) = await run(operator, self.MARKS.reshape(1, 1, 1, 24))
        np.testing.assert_allclose(actual[0], expected, 1e-4, 1e-3)


class TestDetection:
    @pytest.mark.parametrize("background", [0, 1])
    @pytest.mark.parametrize("is_regular", [False, True])
    def test_boxes_are_those_of_litert(self, is_regular: bool, background: int) -> None:
        rng = np.random.default_rng(3)
        count, classes, most = 30, 3, 8
        deltas = rng.uniform(-1, 1, (1, count, 4)).astype(F32)
        scores = rng.permutation(count * (classes + background)) / 200
        scores = scores.reshape(1, count, -1).astype(F32)
        anchors = rng.uniform(0.2, 0.8, (count, 4)).astype(F32)
        options = {
            "max_detections": most,
            "max_classes_per_detection": 1,
            "detections_per_class": 5,
            "use_regular_nms": is_regular,
            "nms_score_threshold": 0.2,
            "nms_iou_threshold": 0.5,
            "num_classes": classes,
            "y_scale": 10.0,
            "x_scale": 10.0,
            "h_scale": 5.0,
            "w_scale": 5.0,
        }
        outputs = [f32(1, most, 4), f32(1, most), f32(1, most), f32(1)]
        inputs = [f32(*deltas.shape), f32(*scores.shape), T.constant(anchors, F32)]
        operator = Op(
            "TFLite_Detection_PostProcess", inputs, outputs, custom=flex(options)
        )
        file = file_of(operator)
        model = import_tflite(from_buffer(file)).model
        arrays = [deltas, scores]
        actual = run_direct(SimpleNamespace(model=model, inputs=arrays))
        expected = run_litert(file, arrays)
        found = int(expected[3][0])
        assert found == int(actual[3][0]) > 2
        for got, wanted in zip(actual[:3], expected[:3], strict=True):
            np.testing.assert_allclose(got[:, :found], wanted[:, :found], 1e-5, 1e-6)


DAMAGED = {
    "pool": ("MaxPoolingWithArgmax2D", b"\1\0", 1, "options of 2 bytes"),
    "no map": ("TransformLandmarks", b"\xff\xff", 1, "damaged"),
    "key": ("TransformTensorBilinear", flex({"output_width": 3}), 2, "is missing"),
    "mode": ("TransformTensorBilinear", flex({"mode": "cubic"}), 1, "'cubic'"),
    "version": ("TransformLandmarks", b"", 7, "version 7 of TransformLandmarks"),
}


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "options", "version", "reason"), DAMAGED.values(), ids=DAMAGED
    )
    def test_options_that_contradict_are_refused(
        self, name: str, options: bytes, version: int, reason: str
    ) -> None:
        inputs = [f32(1, 4, 4, 1), f32(1, 4, 4)]
        operator = Op(name, inputs, [f32(1, 4, 4, 1)], custom=options, version=version)
        with pytest.raises(InvalidArgumentError, match=reason):
            import_tflite(from_buffer(file_of(operator)))

    def test_any_byte_of_options_may_be_wrong(self) -> None:
        good = flex({"output_size": [5, 4], "mode": "bilinear"})
        for index in range(len(good)):
            for byte in (0, 1, 0x7F, 0xFF):
                data = good[:index] + bytes([byte]) + good[index + 1 :]
                with suppress(InvalidArgumentError):
                    options = FlexOptions(data)
                    options.integers("output_size")
                    options.text("mode", "none")

    async def test_landmarks_that_are_not_there_are_refused(self) -> None:
        options = {
            "subset_idxs": [0, 9],
            "left_rotation_idx": 0,
            "right_rotation_idx": 1,
            "target_rotation_radians": 0.0,
            "output_height": 4,
            "output_width": 4,
            "scale_x": 1.0,
            "scale_y": 1.0,
        }
        operator = Op(
            "Landmarks2TransformMatrix",
            [f32(1, 3, 3)],
            [f32(1, 4, 4)],
            custom=flex(options),
            version=2,
        )
        with pytest.raises(GeneralFailureError, match="landmark 9 of 3"):
            await run(operator, np.zeros((1, 3, 3), F32))


own = Extension("com.example.twist")
TWIST = own.operation(
    "TWIST",
    0,
    inputs=[
        Argument("x", OperandType.TENSOR_FLOAT32),
        Argument("factor", OperandType.FLOAT32),
    ],
    outputs=[Argument("y", OperandType.TENSOR_FLOAT32)],
    shape=lambda operation: (operation.shape(0),),
    prepare=lambda operation: stateless(
        lambda inputs, outputs: np.multiply(
            inputs[0][::-1], operation.real(1), out=outputs[0]
        )
    ),
)
own.custom_operator(
    "TwistTensor", TWIST, options=lambda data: [FlexOptions(data).real("factor")]
)


class TestOfOnesOwn:
    FILE = file_of(Op("TwistTensor", [f32(3)], [f32(3)], custom=flex({"factor": 2.0})))

    async def test_it_is_found_in_an_extension_that_is_given(
        self, tmp_path: Any
    ) -> None:
        path = tmp_path / "twist.tflite"
        path.write_bytes(self.FILE)
        model = asyncnn.load(path, extensions=[own])
        async with asyncnn.open_device("reference", extensions=[own]) as device:
            prepared = await device.prepare(model)
            (y,) = (await prepared.run([np.float32([1, 2, 3])])).values()
        np.testing.assert_array_equal(y, [6, 4, 2])

    def test_a_name_without_a_number_is_that_of_a_custom_operator(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(NUMBERS, "CUSTOM", NUMBERS["ADD"])
        x = T(F32, (3,))
        content = file_of(Op("DISPATCH_OP", [x, x], [T(F32, (3,))]))
        with pytest.raises(UnsupportedOperatorError, match="CUSTOM DISPATCH_OP"):
            import_tflite(from_buffer(content))

    def test_without_the_extension_an_error_says_what_to_give(self) -> None:
        with pytest.raises(UnsupportedOperatorError) as caught:
            import_tflite(from_buffer(self.FILE))
        assert caught.value.operators[0].name == "CUSTOM TwistTensor"
        assert "load(path, extensions=[...])" in caught.value.hint

    @pytest.mark.parametrize("error", [KeyError, OSError, StopIteration, TypeError])
    def test_options_that_it_cannot_read_refuse_the_file(self, error: Any) -> None:
        def failing(data: bytes) -> Any:
            raise error("of its own")

        other = Extension("com.example.failing")
        operation = other.operation(
            "FAILING",
            0,
            inputs=[Argument("x", OperandType.TENSOR_FLOAT32)],
            outputs=[Argument("y", OperandType.TENSOR_FLOAT32)],
            shape=lambda operation: (operation.shape(0),),
        )
        other.custom_operator("TwistTensor", operation, options=failing)
        with pytest.raises(InvalidArgumentError, match=r"TwistTensor.*its own") as it:
            import_tflite(from_buffer(self.FILE), extensions=[other])
        assert "com.example.failing" in it.value.hint

    def test_packages_are_searched_once_for_all_operators(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        groups: list[str] = []

        def none_in(group: str) -> tuple[()]:
            groups.append(group)
            return ()

        monkeypatch.setattr("asyncnn.extensions.custom.entry_points_in", none_in)
        operators = [Op(f"Unknown{k % 7}", [x := f32(3)], [f32(3)]) for k in range(50)]
        content = write(operators, [x], operators[-1].outputs)
        with pytest.raises(UnsupportedOperatorError):
            import_tflite(from_buffer(content))
        assert len(groups) == 1

    async def test_a_device_without_it_says_so(self) -> None:
        model = import_tflite(from_buffer(self.FILE), extensions=[own])
        async with asyncnn.open_device("reference") as device:
            with pytest.raises(GeneralFailureError, match=r"com\.example\.twist"):
                await device.prepare(model)

    def test_an_operator_is_declared_once_and_by_its_extension(self) -> None:
        with pytest.raises(InvalidArgumentError, match="declared twice"):
            own.custom_operator("TwistTensor", TWIST)
        with pytest.raises(InvalidArgumentError, match=r"not of com\.example\.other"):
            Extension("com.example.other").custom_operator("TwistTensor", TWIST)


@pytest.mark.parametrize("where", ["accelerated", "framework", "driver"])
async def test_every_device_of_the_project_has_mediapipe_s(where: str) -> None:
    inputs = [f32(1, 6, 3), f32(1, 4, 4)]
    operator = Op("TransformLandmarks", inputs, [f32(1, 6, 3)], version=2)
    model = import_tflite(from_buffer(file_of(operator)))
    opened = asyncnn.connect() if where == "driver" else asyncnn.open_device(where)
    marks, turn = draw(1, 6, 3), matrix(1)
    async with opened as device:
        prepared = await device.prepare(model)
        (actual,) = (await prepared.run([marks, turn[None]])).values()
    expected = transformed_landmarks(marks, turn)
    np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)
