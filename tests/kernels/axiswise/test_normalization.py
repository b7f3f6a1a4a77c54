"""Normalisations against their formulas in float64."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    Q8,
    Q8S,
    TOLERANCE,
    clamp_to,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

SHAPES = [(5,), (3, 4), (2, 3, 4), (2, 3, 4, 5)]


def scalars(type_, *values):
    return [np.float16(value) if type_ is F16 else float(value) for value in values]


class TestL2:
    @staticmethod
    def normalize(type_, x, axis, zero_point=0):
        middle = {Q8: 128}.get(type_, 0)
        output = result(type_, x.shape, 1 / 128, middle)
        inputs = [tensor(type_, x, 0.3, zero_point), axis]
        return compute(OperationType.L2_NORMALIZATION, inputs, output)

    @pytest.mark.parametrize("axis", [0, -1])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("type_", [F32, F16])
    def test_floats_have_norm_one(self, type_, shape, axis) -> None:
        x = random_values(type_, shape)
        wide = x.astype(np.float64)
        exact = wide / np.sqrt((wide**2).sum(axis, keepdims=True))
        np.testing.assert_allclose(
            self.normalize(type_, x, axis), exact, **TOLERANCE[type_]
        )

    @pytest.mark.parametrize("axis", [0, -1])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("type_", [Q8, Q8S])
    def test_codes_are_rounded_from_the_exact_value(self, type_, shape, axis) -> None:
        shift = 128 if type_ is Q8 else 0
        x = random_values(Q8S, shape).astype(int)
        wide = x - 7.0
        exact = wide / np.sqrt((wide**2).sum(axis, keepdims=True))
        np.testing.assert_array_equal(
            self.normalize(type_, x + shift, axis, 7 + shift),
            clamp_to(type_, half_away(128 * exact) + shift),
        )

    @pytest.mark.parametrize("type_", [F32, F16, Q8, Q8S])
    def test_slices_of_zeros_stay_zero(self, type_) -> None:
        zeros = np.full((2, 3), 9 if type_ in (Q8, Q8S) else 0)
        zero_out = 128 if type_ is Q8 else 0
        normalized = self.normalize(type_, zeros, -1, 9)
        np.testing.assert_array_equal(normalized, np.full((2, 3), zero_out))

    def test_the_axis_is_the_last_one_by_default(self) -> None:
        x = random_values(F32, (3, 4))
        output = result(F32, x.shape)
        omitted = compute(OperationType.L2_NORMALIZATION, [tensor(F32, x)], output)
        np.testing.assert_array_equal(omitted, self.normalize(F32, x, -1))


class TestLocalResponse:
    @staticmethod
    def exact(x, radius, bias, alpha, beta, axis):
        x = np.moveaxis(x.astype(np.float64), axis, -1)
        sums = np.stack(
            [
                (x[..., max(i - radius, 0) : i + radius + 1] ** 2).sum(-1)
                for i in range(x.shape[-1])
            ],
            -1,
        )
        return np.moveaxis(x * (bias + alpha * sums) ** -beta, -1, axis)

    @pytest.mark.parametrize("radius", [0, 1, 2, 20])
    @pytest.mark.parametrize("axis", [0, -1])
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("type_", [F32, F16])
    def test_follows_the_formula(self, type_, shape, axis, radius) -> None:
        x = random_values(type_, shape)
        inputs = [tensor(type_, x), radius, *scalars(type_, 9, 4, 0.5), axis]
        np.testing.assert_allclose(
            compute(
                OperationType.LOCAL_RESPONSE_NORMALIZATION, inputs, result(type_, shape)
            ),
            self.exact(x, radius, 9, 4, 0.5, axis),
            **TOLERANCE[type_],
        )

    def test_infinity_reaches_no_further_than_the_radius(self) -> None:
        x = np.array([np.inf, 1, 1, 1], np.float32)
        inputs = [tensor(F32, x), 1, 1.0, 1.0, 1.0]
        operation = OperationType.LOCAL_RESPONSE_NORMALIZATION
        computed = compute(operation, inputs, result(F32, (4,)))
        np.testing.assert_allclose(computed[1:], [0, 1 / 4, 1 / 3], rtol=1e-6)


class TestInstance:
    @pytest.mark.parametrize("nchw", [False, True])
    @pytest.mark.parametrize("type_", [F32, F16])
    def test_follows_the_formula(self, type_, nchw) -> None:
        x = random_values(type_, (2, 3, 4, 5))
        axes = (2, 3) if nchw else (1, 2)
        wide = x.astype(np.float64)
        deviation = np.sqrt(wide.var(axes, keepdims=True) + 0.25)
        exact = (wide - wide.mean(axes, keepdims=True)) * 1.5 / deviation + 2
        inputs = [tensor(type_, x), *scalars(type_, 1.5, 2, 0.25), nchw]
        np.testing.assert_allclose(
            compute(
                OperationType.INSTANCE_NORMALIZATION, inputs, result(type_, x.shape)
            ),
            exact,
            **TOLERANCE[type_],
        )
