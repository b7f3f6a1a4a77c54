"""Compositions at values that random inputs seldom meet, and what LiteRT has not."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperandLifeTime, OperationType
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.direct import run_direct
from tests.runtime.tflite.cases import F32, I8, I32, boolean, case, const, f32, i32
from tests.runtime.tflite.files import Op, T, write
from tests.runtime.tflite.graphs import conv_2d, imported
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.litert import run_litert


def run(file: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    model = import_tflite(from_buffer(file)).model
    return run_direct(SimpleNamespace(model=model, inputs=list(inputs)))


def both(name: str, *arrays: Any, dtype: Any = F32, **fields: Any) -> list[np.ndarray]:
    """Return what the operator becomes, and what LiteRT computes, of vectors."""
    inputs = [np.asarray(array, dtype) for array in arrays]
    tensors = [T(dtype, each.shape) for each in inputs]
    chosen = case(name, tensors, T(dtype, inputs[0].shape), **fields)
    (actual,) = run(chosen.file(), *inputs)
    (expected,) = run_litert(chosen.file(), inputs)
    return [actual, expected]


class TestValues:
    def test_ties_are_rounded_to_even_numbers(self) -> None:
        ties = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -0.49999997, 8388609.0]
        actual, expected = both("ROUND", ties)
        np.testing.assert_array_equal(actual, expected)
        np.testing.assert_array_equal(actual[:6], [-2, -2, 0, 0, 2, 2])

    def test_quotients_of_integers_are_rounded_towards_zero(self) -> None:
        first, second = [7, -7, 7, -7, 0, 6], [2, 2, -2, -2, 5, -3]
        actual, expected = both("DIV", first, second, dtype=I32)
        np.testing.assert_array_equal(actual, expected)
        assert actual.tolist() == [3, -3, -3, 3, 0, -2]

    def test_the_angle_is_right_in_all_octants_and_on_the_axes(self) -> None:
        angles = np.linspace(-np.pi, np.pi, 65)[:-1]
        y = [*np.sin(angles), 0, 0, 1, -1, 3]
        x = [*np.cos(angles), 1, 0, 0, 0, 3]
        actual, expected = both("ATAN2", y, x)
        np.testing.assert_allclose(actual[1:], expected[1:], 1e-6, 5e-7)

    @pytest.mark.parametrize("is_rough", [False, True])
    def test_gelu_is_right_far_from_zero(self, is_rough: bool) -> None:
        x = [-20, -6, -3, -1e-3, 0, 1e-3, 3, 6, 20]
        actual, expected = both("GELU", x, Approximate=is_rough)
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-6)

    def test_signs_of_zeros_are_zero(self) -> None:
        actual, expected = both("SIGN", [-0.0, 0.0, 1e-30, -1e30])
        np.testing.assert_array_equal(actual, expected)

    def test_sums_of_many_terms_are_as_close_as_litert_s(self) -> None:
        x = np.random.default_rng(3).uniform(-1, 1, (3, 1000)).astype(F32)
        chosen = case("CUMSUM", [f32(3, 1000), const(1)], f32(3, 1000))
        (actual,) = run(chosen.file(), x)
        exact = np.cumsum(x.astype(np.float64), axis=1)
        np.testing.assert_allclose(actual, exact, 1e-5, 1e-5)

    def test_infinities_do_not_spoil_sums_before_them(self) -> None:
        chosen = case("CUMSUM", [f32(4), const(0)], f32(4))
        (actual,) = run(chosen.file(), np.array([1, 2, np.inf, 3], F32))
        np.testing.assert_array_equal(actual, [1, 3, np.inf, np.inf])


class TestWithoutKernels:
    def test_a_clamp_keeps_within_its_bounds(self) -> None:
        inputs = [const([-1], F32), f32(4), const([2], F32)]
        chosen = case("STABLEHLO_CLAMP", inputs, f32(4))
        (actual,) = run(chosen.file(), np.array([-3, -1, 0.5, 9], F32))
        np.testing.assert_array_equal(actual, [-1, -1, 0.5, 2])

    def test_booleans_are_stacked(self) -> None:
        chosen = case("PACK", [boolean(3), boolean(3)], boolean(2, 3), ValuesCount=2)
        first, second = np.array([1, 0, 1], bool), np.array([0, 0, 1], bool)
        (actual,) = run(chosen.file(), first, second)
        np.testing.assert_array_equal(actual, np.stack([first, second]))

    def test_draws_follow_the_logits(self) -> None:
        inputs = [f32(2, 3), const(4000)]
        chosen = case("MULTINOMIAL", inputs, i32(2, 4000), Seed=5, Seed2=9)
        logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], F32))
        (actual,) = run(chosen.file(), logits)
        for row, weights in zip(actual, np.exp(logits), strict=True):
            shares = np.bincount(row, minlength=3) / 4000
            np.testing.assert_allclose(shares, weights, atol=0.05)


class TestSpectra:
    """RFFT2D and what makes real numbers of its results."""

    def file(self, name: str, shape: tuple[int, ...], *lengths: int) -> bytes:
        half = (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
        x, middle, y = T(F32, shape), T(np.complex64, half), T(F32, half)
        transform = Op("RFFT2D", [x, const(lengths)], [middle], "Rfft2dOptions")
        return write([transform, Op(name, [middle], [y])], [x], [y])

    @pytest.mark.parametrize("name", ["REAL", "IMAG", "COMPLEX_ABS"])
    @pytest.mark.parametrize(
        ("shape", "lengths"),
        [
            ((3, 1, 32), (1, 32)),
            ((1, 400), (1, 512)),
            ((2, 3, 6, 10), (4, 8)),
            ((5, 6), (8, 16)),
        ],
    )
    def test_parts_are_those_of_litert(
        self, name: str, shape: tuple[int, ...], lengths: tuple[int, int]
    ) -> None:
        file = self.file(name, shape, *lengths)
        x = np.random.default_rng(1).uniform(-1, 1, shape).astype(F32)
        (actual,) = run(file, x)
        (expected,) = run_litert(file, [x])
        np.testing.assert_allclose(actual, expected, 1e-5, 3e-5)

    @pytest.mark.parametrize("name", ["RESHAPE", "SQUEEZE"])
    async def test_spectra_lose_axes_as_in_files_of_tensorflow(self, name: str) -> None:
        x, row, y = f32(2, 64), f32(2, 1, 64), f32(2, 33)
        whole, spectrum = T(np.complex64, (2, 1, 33)), T(np.complex64, (2, 33))
        read = [whole, const([2, 33])] if name == "RESHAPE" else [whole]
        options = {"SqueezeDims": [1]} if name == "SQUEEZE" else {}
        kind = f"{name.capitalize()}Options"
        file = write(
            [
                Op("RESHAPE", [x, const([2, 1, 64])], [row]),
                Op("RFFT2D", [row, const([1, 64])], [whole], "Rfft2dOptions"),
                Op(name, read, [spectrum], kind, options),
                Op("COMPLEX_ABS", [spectrum], [y]),
            ],
            [x],
            [y],
        )
        sound = np.random.default_rng(1).uniform(-1, 1, (2, 64)).astype(F32)
        (expected,) = run_litert(file, [sound])
        named = asyncnn.load(file)
        assert len(named.model.main.operations) == 1  # a region
        (given,) = named.inputs
        for where in ("auto", "reference"):
            async with asyncnn.open_device(where) as device:
                prepared = await device.prepare(named)
                (actual,) = (await prepared.run({given.name: sound})).values()
            np.testing.assert_allclose(actual, expected, 1e-5, 3e-5)

    def test_a_spectrum_of_unbounded_length_is_no_region(self) -> None:
        file = self.file("COMPLEX_ABS", (2, 8), 4, 2**26)
        with pytest.raises(InvalidArgumentError):
            asyncnn.load(file)

    def test_a_spectrum_cannot_be_an_output(self) -> None:
        x, y = f32(1, 8), T(np.complex64, (1, 5))
        operator = Op("RFFT2D", [x, const([1, 8])], [y], "Rfft2dOptions")
        with pytest.raises(UnsupportedOperatorError, match="COMPLEX64"):
            imported(operator)

    def test_a_spectrum_from_elsewhere_is_refused(self) -> None:
        x, y = T(np.complex64, (1, 5)), f32(1, 5)
        with pytest.raises(UnsupportedOperatorError, match="COMPLEX64"):
            imported(Op("REAL", [x], [y]))


class TestHalfPrecision:
    def test_weights_of_float16_stay_in_the_file(self) -> None:
        weights = T.constant(np.linspace(-1, 1, 72).reshape(4, 3, 3, 2), np.float16)
        bias = T.constant([1, 2, 3, 4], np.float16)
        real, shift = f32(4, 3, 3, 2), f32(4)
        x, y = f32(1, 5, 5, 2), f32(1, 5, 5, 4)
        operators = [
            Op("DEQUANTIZE", [weights], [real]),
            Op("DEQUANTIZE", [bias], [shift]),
            conv_2d(x, real, shift, y),
        ]
        file = write(operators, [x], [y])
        named = import_tflite(from_buffer(file))
        kinds = [operation.type for operation in named.model.main.operations]
        assert kinds.count(OperationType.CAST) <= 1
        data = np.random.default_rng(0).uniform(-1, 1, x.shape).astype(F32)
        (actual,) = run(file, data)
        (expected,) = run_litert(file, [data])
        np.testing.assert_allclose(actual, expected, 1e-5, 1e-5)

    def test_large_weights_of_float16_are_not_copied(self) -> None:
        weights = T.constant(np.ones((80, 80)), np.float16)
        x, real, y = f32(2, 80), f32(80, 80), f32(2, 80)
        layer = Op("FULLY_CONNECTED", [x, real, None], [y], "FullyConnectedOptions")
        operators = [Op("DEQUANTIZE", [weights], [real]), layer]
        memory = from_buffer(write(operators, [x], [y]))
        main = import_tflite(memory).model.main
        cast = next(op for op in main.operations if op.type == OperationType.CAST)
        operand = main.operands[cast.inputs[0]]
        assert operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE


class TestFolding:
    def test_a_shape_computed_from_shapes_needs_no_operation(self) -> None:
        x, shape, count, y = f32(2, 3, 4), i32(3), i32(1), f32(2, 12)
        inner, pair = i32(), i32(2)
        operators = [
            Op("SHAPE", [x], [shape]),
            Op(
                "STRIDED_SLICE",
                [shape, const([0]), const([1]), const([1])],
                [count],
                "StridedSliceOptions",
            ),
            Op("REDUCE_PROD", [i := i32(2), const([0])], [inner], "ReducerOptions"),
        ]
        slices = [const([1]), const([2])]
        operators[2:2] = [Op("SLICE", [shape, *slices], [i])]
        line = i32(1)
        operators += [
            Op("RESHAPE", [inner, const([1])], [line]),
            Op("CONCATENATION", [count, line], [pair], "ConcatenationOptions"),
            Op("RESHAPE", [x, pair], [y]),
        ]
        names = [
            OperationType(operation.type).name
            for operation in imported(*operators).model.main.operations
        ]
        assert names == ["RESHAPE"]

    def test_an_axis_that_is_computed_is_known(self) -> None:
        x, rank, axis, y = f32(2, 3), i32(), i32(), i32(2)
        operators = [
            Op("RANK", [x], [rank]),
            Op("SUB", [rank, const(1)], [axis], "SubOptions"),
            Op("ARG_MAX", [x, axis], [y], "ArgMaxOptions", {"OutputType": 2}),
        ]
        (actual,) = run(
            write(operators, [x], [y]), np.array([[1, 5, 2], [9, 0, 3]], F32)
        )
        assert actual.tolist() == [1, 0]

    def test_a_division_by_zero_is_left_to_the_model(self) -> None:
        y = i32(2)
        operator = Op("FLOOR_DIV", [const([1, 2]), const([0, 1])], [y])
        names = [op.type for op in imported(operator).model.main.operations]
        assert names == [OperationType.DIV]

    def test_constants_that_a_small_file_implies_are_limited(self) -> None:
        operator = Op("FILL", [const([2**14, 2**14]), const(1)], [i32(2**14, 2**14)])
        names = [op.type for op in imported(operator).model.main.operations]
        assert names == [OperationType.FILL]

    def test_bytes_without_a_scale_are_cast_by_value(self) -> None:
        x, y = T(I8, (4,)), i32(4)
        file = write([Op("CAST", [x], [y], "CastOptions")], [x], [y])
        (actual,) = run(file, np.array([-128, -1, 0, 127], I8))
        assert actual.tolist() == [-128, -1, 0, 127]


class TestBounds:
    """What a small file asks for is refused before memory is taken for it."""

    @pytest.mark.parametrize(
        "operator",
        [
            Op("ONE_HOT", [i32(1), const(2**28), const(1), const(0)], [i32(1, 2**28)]),
            Op("CUMSUM", [i32(2**28), const(0)], [i32(2**28)]),
            Op("TRANSPOSE", [i32(2**14, 2**14), const([1, 0])], [i32(2**14, 2**14)]),
            Op("RFFT2D", [f32(1, 8), const([1, 2**20])], [T(np.complex64, (1, 5))]),
            Op("MATRIX_DIAG", [f32(2**14)], [f32(2**14, 2**14)]),
        ],
        ids=lambda operator: operator.name,
    )
    def test_constants_beyond_the_allowance_are_refused(self, operator: Op) -> None:
        with pytest.raises(InvalidArgumentError, match="that the file does not hold"):
            imported(operator)

    def test_long_options_of_custom_operators_are_refused(self) -> None:
        operator = Op(
            "TransformLandmarks",
            [f32(1, 1, 1, 3), f32(1, 4, 4)],
            [f32(1, 1, 1, 3)],
            custom=bytes(2**17),
        )
        with pytest.raises(InvalidArgumentError, match="options of 131072 bytes"):
            imported(operator)
