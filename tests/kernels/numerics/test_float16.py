"""Float32 kernels on float16 operands."""

import numpy as np

from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import HeapScratch, stateless
from asyncnn.kernels.numerics import widen_float16
from tests.kernels.operations import F16, F32, I32, bind, constant, result, tensor


def triple(inputs, outputs):
    np.multiply(inputs[0], inputs[1], out=outputs[0])
    np.multiply(outputs[0], np.float32(1 / 3), out=outputs[0])


def test_float16_tensors_are_computed_in_float32_and_rounded_once() -> None:
    x = np.linspace(1, 300, 64).astype(np.float16)
    factor = constant(I32, [301])
    operation = bind(OperationType.MUL, [tensor(F16, x), factor], [result(F16, (64,))])
    output = np.empty(64, np.float16)
    widen_float16(operation, stateless(triple))(HeapScratch())(
        [x, factor.array], [output]
    )
    exact = x.astype(np.float32) * 301 * np.float32(1 / 3)
    np.testing.assert_array_equal(output, exact.astype(np.float16))


def test_other_operations_keep_their_kernel() -> None:
    kernel = stateless(triple)
    operation = bind(OperationType.MUL, [tensor(F32, [1.0]), None], [result(F32, (1,))])
    assert widen_float16(operation, kernel) is kernel
