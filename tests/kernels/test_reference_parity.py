"""Quantised kernels give the very bits of LiteRT's reference kernels."""

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.litert import options, run_reference
from tests.kernels.operations import (
    Q8S,
    compute,
    constant,
    random_values,
    result,
    tensor,
)

CODES = np.arange(-128, 128, dtype=np.int8)
PAIRS = (np.repeat(CODES, 256).reshape(1, -1), np.tile(CODES, 256).reshape(1, -1))


def random_quantization(generator):
    scale = float(np.float32(generator.uniform(0.005, 0.2)))
    return scale, int(generator.integers(-128, 128))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("activation", [0, 3])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_binary_arithmetic(name, activation, seed) -> None:
    generator = np.random.default_rng(seed)
    first, second, output = (random_quantization(generator) for _ in range(3))
    inputs = [tensor(Q8S, PAIRS[0], *first), tensor(Q8S, PAIRS[1], *second)]
    described = result(Q8S, PAIRS[0].shape, *output)
    fused = options(name.capitalize(), fusedActivationFunction=activation)
    np.testing.assert_array_equal(
        compute(OperationType[name], [*inputs, activation], described),
        run_reference(name, inputs, described, fused),
    )


@pytest.mark.parametrize("seed", range(3))
def test_prelu(seed) -> None:
    generator = np.random.default_rng(seed)
    first, second, output = (random_quantization(generator) for _ in range(3))
    x = tensor(Q8S, PAIRS[0].reshape(1, 1, 1, -1), *first)
    alpha = constant(Q8S, PAIRS[1].reshape(1, 1, -1), *second)
    described = result(Q8S, x.array.shape, *output)
    np.testing.assert_array_equal(
        compute(OperationType.PRELU, [x, alpha], described),
        run_reference("PRELU", [x, alpha], described),
    )


@pytest.mark.parametrize("scale", [0.004, 0.02, 0.1, 1.7])
@pytest.mark.parametrize(
    ("name", "output"), [("LOGISTIC", (1 / 256, -128)), ("TANH", (1 / 128, 0))]
)
def test_sigmoids(name, output, scale) -> None:
    given = tensor(Q8S, CODES.reshape(1, -1), scale, 5)
    described = result(Q8S, (1, 256), *output)
    np.testing.assert_array_equal(
        compute(OperationType[name], [given], described),
        run_reference(name, [given], described),
    )


@pytest.mark.parametrize("size", [(2, 2), (3, 3), (2, 5), (8, 8)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
def test_pools(name, padding, stride, size) -> None:
    image = tensor(Q8S, random_values(Q8S, (1, 8, 8, 5)), 0.1, 3)
    side = (
        [-(-8 // stride)] * 2
        if padding == "SAME"
        else [(8 - length) // stride + 1 for length in size]
    )
    described = result(Q8S, (1, *side, 5), 0.1, 3)
    rows, columns = size
    scheme = {"SAME": 1, "VALID": 2}[padding]
    pool = options(
        "Pool2D",
        padding=scheme - 1,
        strideW=stride,
        strideH=stride,
        filterWidth=columns,
        filterHeight=rows,
        fusedActivationFunction=0,
    )
    scalars = [scheme, stride, stride, columns, rows, 0]
    np.testing.assert_array_equal(
        compute(OperationType[name], [image, *scalars], described),
        run_reference(name, [image], described, pool),
    )
