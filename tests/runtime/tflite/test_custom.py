"""Custom operators: MediaPipe's, a user's own, and detection; beside plain formulas."""

import struct
from collections.abc import Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

import asyncnn
from asyncnn.extensions import Argument, Extension, FlexOptions, stateless
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import OperandType
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import UnsupportedOperatorError, import_tflite
from tests.direct import run_direct
from tests.runtime.tflite.cases import F32, f32
from tests.runtime.tflite.files import Op, T, given, write
from tests.runtime.tflite.litert import run_litert

SAME, VALID = 1, 2


def flex(options: Mapping[str, Any]) -> bytes:
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in options.items():
            builder.Key(key)
            if isinstance(value, list):
                builder.TypedVectorFromElements(value)
            else:
                kinds = {bool: builder.Bool, int: builder.Int, float: builder.Float}
                kinds.get(type(value), builder.String)(value)
    return bytes(builder.Finish())


def packed(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


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


def windows(length: int, size: int, stride: int, padding: int) -> tuple[int, int]:
    """Return how many windows there are along an axis, and the padding before it."""
    if padding == VALID:
        return (length - size) // stride + 1, 0
    count = -(-length // stride)
    return count, max(0, (count - 1) * stride + size - length) // 2


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
        lengths, befores = [], []
        for axis in range(2):
            cut = window[axis] - (x.shape[1 + axis] - 1) % strides[axis] - 1
            cut = max(0, cut) if padding == SAME else 0
            whole = strides[axis] * (x.shape[1 + axis] - 1) + window[axis]
            lengths.append(whole - cut)
            befores.append(cut // 2)
        expected = np.zeros((2, *lengths, 6)) + bias.astype(float)
        for place in np.ndindex(4, 5, *window):
            line, column = (
                place[axis] * strides[axis] - befores[axis] + place[2 + axis]
                for axis in range(2)
            )
            if 0 <= line < lengths[0] and 0 <= column < lengths[1]:
                products = (
                    x[:, place[0], place[1]].astype(float)
                    @ weights[:, place[2], place[3]].astype(float).T
                )
                expected[:, line, column] += products
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
        lines, top = windows(7, size, 2, padding)
        columns, left = windows(6, size, 2, padding)
        maxima, places = np.zeros((2, 2, lines, columns, 3))
        for n, i, j, c in np.ndindex(2, lines, columns, 3):
            best, where = -np.inf, 0
            for u, v in np.ndindex(size, size):
                y, z = i * 2 - top + u, j * 2 - left + v
                if 0 <= y < 7 and 0 <= z < 6 and x[n, y, z, c] > best:
                    best, where = float(x[n, y, z, c]), u * size + v
            maxima[n, i, j, c], places[n, i, j, c] = max(best, 0.0), where + 0.1
        operator = Op(
            "MaxPoolingWithArgmax2D",
            [f32(2, 7, 6, 3)],
            [f32(*maxima.shape), f32(*maxima.shape)],
            custom=packed(padding, 2, 2, size, size, 1),
        )
        actual = await run(operator, x)
        np.testing.assert_allclose(actual[0], maxima, 0, 0)
        np.testing.assert_allclose(actual[1], places, 1e-6)

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
        m = turn.astype(float)
        expected = np.zeros((1, 5, 4, 3))
        for line, column in np.ndindex(5, 4):
            half = 0.5 if version == 2 else 0.0
            place = m[:2, :2] @ [column + half, line + half] + m[:2, 3] - half
            if (place < 0).any() or place[0] > 6 or place[1] > 5:
                continue
            left, top = np.floor(place).astype(int)
            for u, v in np.ndindex(2, 2):
                weight = (1 - abs(place[0] - left - u)) * (1 - abs(place[1] - top - v))
                if weight > 0 and top + v < 6 and left + u < 7:
                    expected[0, line, column] += weight * image[0, top + v, left + u]
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
        points = marks.reshape(5, dimensions).astype(float)
        expected = points.copy()
        m = turn.astype(float)
        expected[:, :2] = points[:, :2] @ m[:2, :2].T + m[:2, 3] * 2.5
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
        expected = marks.astype(float)
        m = turn.astype(float)
        expected[0, :, :2] = marks[0, :, :2] @ m[:2, :2].T + m[:2, 3]
        operator = Op(
            "TransformLandmarks",
            [f32(1, 6, dimensions), f32(1, 4, 4)],
            [f32(1, 6, dimensions)],
            version=2,
        )
        (actual,) = await run(operator, marks, turn[None])
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


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
        points = self.MARKS[0, :, :2].astype(float)
        across, down = points[4] - points[1]
        angle = 0.25 - np.arctan2(down, across)
        turned = points[[0, 3, 5, 6, 2]] @ rotation(angle).T
        low, high = turned.min(axis=0), turned.max(axis=0)
        centre = rotation(-angle) @ ((low + high) / 2)
        box = np.array([1.5, 1.25]) * (high - low) / [48, 32]
        back, shift, scale, middle = (np.eye(4) for _ in range(4))
        back[:2, :2] = rotation(-angle)
        shift[:2, 3] = centre
        scale[[0, 1], [0, 1]] = box
        middle[:2, 3] = [-24, -16]
        operator = Op(
            "Landmarks2TransformMatrix",
            [f32(1, 8, 3)],
            [f32(1, 4, 4)],
            custom=flex(options),
            version=2,
        )
        (actual,) = await run(operator, self.MARKS)
        expected = shift @ back @ scale @ middle
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
        points = self.MARKS[0, :, :2].astype(float)
        across, down = points[7] - points[2]
        angle = -np.arctan(down / across)
        turned = points[[0, 1, 2, 3, 5]] @ rotation(angle).T
        low, high = turned.min(axis=0), turned.max(axis=0)
        middle = rotation(-angle) @ ((low + high) / 2)
        size = (high - low) * 1.5
        scale = np.diag([size[0] / 128, size[1] / 128, 1.0])
        turn = np.eye(3)
        turn[:2, :2] = rotation(-angle)
        turn[:2, 2] = middle / 128 * 2 - 1
        relative = np.array([[2 / 23, 0, -1], [0, 2 / 15, -1], [0, 0, 1.0]])
        absolute = np.array([[79 / 2, 0, 79 / 2], [0, 63 / 2, 63 / 2], [0, 0, 1.0]])
        whole = absolute @ turn @ scale @ relative
        expected = np.eye(4)
        expected[:2, :2], expected[:2, 3] = whole[:2, :2], whole[:2, 2]
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
    expected = marks[0, :, :2] @ turn[:2, :2].T + turn[:2, 3]
    np.testing.assert_allclose(actual[0, :, :2], expected, 1e-5, 1e-5)
