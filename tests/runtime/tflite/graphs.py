"""Imports small graphs for tests."""

from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.model import NamedModel
from tests.runtime.tflite.files import Op, T, given, write
from tests.runtime.tflite.importing import import_tflite

WINDOW = {"StrideW": 1, "StrideH": 1, "DilationWFactor": 1, "DilationHFactor": 1}


def conv_2d(x: T, weights: T, bias: T | None, y: T, **fields: int) -> Op:
    return Op("CONV_2D", [x, weights, bias], [y], "Conv2DOptions", WINDOW | fields)


def imported(*operators: Op) -> NamedModel:
    file = write(operators, given(operators[0]), operators[-1].outputs)
    return import_tflite(from_buffer(file))


def convolution(x: T, weights: T, bias: T | None, y: T) -> NamedModel:
    return imported(conv_2d(x, weights, bias, y))
