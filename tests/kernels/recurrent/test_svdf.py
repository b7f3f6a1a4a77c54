"""SVDF against the HAL's two filters in plain loops."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    TOLERANCE,
    compute_all,
    constant,
    random_values,
    result,
    tensor,
)
from tests.kernels.recurrent.float_cells import ACTIVATIONS

SVDF = OperationType.SVDF


class Filter:
    """A random filter of some units, each of so many ranks, and its memory."""

    def __init__(self, type_=F32, batches=2, units=3, rank=2, inputs=4, memory=5):
        def values(seed, *shape):
            return random_values(type_, shape, seed, -1, 1)

        filters = units * rank
        self.type, self.rank, self.shape = type_, rank, (batches, units)
        self.features, self.times = (
            values(0, filters, inputs),
            values(1, filters, memory),
        )
        self.bias = values(2, units)
        self.state = values(3, batches, filters * memory)
        self.data = values(4, batches, inputs)

    def run(self, activation=0, bias=True):
        inputs = [
            tensor(self.type, self.data),
            constant(self.type, self.features),
            constant(self.type, self.times),
            constant(self.type, self.bias) if bias else None,
            tensor(self.type, self.state),
            self.rank,
            activation,
        ]
        described = [result(self.type, self.state.shape), result(self.type, self.shape)]
        return compute_all(SVDF, inputs, described)

    def expected(self, activation=0, bias=True):
        """Return state and output in float64, filter by filter."""
        batches, units = self.shape
        filters, length = self.times.shape
        memory = self.state.astype(np.float64).reshape(batches, filters, length)
        sums = np.tile(self.bias.astype(np.float64) * bias, (batches, 1))
        for b in range(batches):
            for f in range(filters):
                feature = self.features[f].astype(np.float64) @ self.data[b]
                memory[b, f, -1] = feature
                sums[b, f // self.rank] += memory[b, f] @ self.times[f]
                memory[b, f] = [*memory[b, f, 1:], 0]
        output = np.vectorize(ACTIVATIONS[activation])(sums)
        return memory.reshape(self.state.shape), output.reshape(batches, units)


def check(computed, expected, type_=F32) -> None:
    for got, wanted in zip(computed, expected, strict=True):
        np.testing.assert_allclose(got, wanted, **TOLERANCE[type_])


@pytest.mark.parametrize("type_", [F32, F16])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("memory", [1, 2, 6])
def test_both_filters_follow_the_formula(memory, rank, type_) -> None:
    layer = Filter(type_, rank=rank, memory=memory)
    check(layer.run(), layer.expected(), type_)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_activation_follows_the_bias(activation) -> None:
    layer = Filter()
    check(layer.run(activation), layer.expected(activation))


def test_the_bias_is_optional() -> None:
    layer = Filter()
    check(layer.run(bias=False), layer.expected(bias=False))


def test_the_state_is_what_the_next_step_begins_with() -> None:
    layer = Filter(memory=3)
    for _ in range(4):
        expected = layer.expected()
        layer.state, output = layer.run()
        check((layer.state, output), expected)
    features = layer.data.astype(np.float64) @ layer.features.T
    by_filter = layer.state.reshape(2, 6, 3)
    np.testing.assert_allclose(by_filter[..., 1], features, rtol=1e-5, atol=1e-6)
    assert not by_filter[..., 2].any()
