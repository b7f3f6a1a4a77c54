"""An engine that ends its process where a region of it says so.

It is the extension of ONNX regions, whose graphs are words here: what they end, if
anything. All others double their input.
"""

import os

import numpy as np

from asyncnn import NamedModel
from asyncnn.extensions.regions import ONNX, region_extension, region_model
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperandType
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel, stateless
from asyncnn.memory.pools import from_buffer

LENGTH = 4


def prepare(operation: BoundOperation) -> PreparedKernel:
    words = operation.value(0).tobytes()
    if words == b"prepare":
        os.abort()

    def run(inputs: Inputs, outputs: Outputs) -> None:
        if words == b"run":
            os.abort()
        np.multiply(inputs[1], 2, out=outputs[0])

    return stateless(run)


ENGINE = region_extension(ONNX, version="ending", prepare=prepare)


def ending(words: str) -> NamedModel:
    """Return a model that ends the engine's process in what ``words`` names."""
    port = OperandType.TENSOR_FLOAT32, (LENGTH,), 0.0, 0
    graph = from_buffer(words.encode())
    return NamedModel.of(region_model(ONNX, graph, [port], [port]), ["x"], ["y"])
