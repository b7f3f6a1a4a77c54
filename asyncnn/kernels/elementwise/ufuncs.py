"""Kernels that are one NumPy function of every element, or of every pair of them."""

import numpy as np

from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel, stateless


def of_one(ufunc: np.ufunc) -> PreparedKernel:
    """Return the kernel ``output = ufunc(input 0)``.

    NumPy computes float16 elements in float32, and integers wrap around.
    """

    def run(inputs: Inputs, outputs: Outputs) -> None:
        ufunc(inputs[0], out=outputs[0])

    return stateless(run)


def of_two(ufunc: np.ufunc) -> PreparedKernel:
    """Return the kernel ``output = ufunc(input 0, input 1)``; the inputs broadcast."""

    def run(inputs: Inputs, outputs: Outputs) -> None:
        ufunc(inputs[0], inputs[1], out=outputs[0])

    return stateless(run)
