"""Writes the TFLite file of one measured operation, with seeded random constants."""

import math

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.tools.bench.kernels.cases import (
    INT8,
    Bias,
    Case,
    Data,
    Integers,
    Operand,
    Weights,
)
from asyncnn.tools.bench.tflite.writer import TfliteWriter


def kernel_file(case: Case, *, seed: int = 0) -> bytes:
    """Return the file of the model that consists of ``case`` alone.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    return _File(case, seed).finish()


class _File:
    """The file so far: ``_weight_scales`` are those of the last weights."""

    def __init__(self, case: Case, seed: int) -> None:
        self._case = case
        self._quantized = case.type == INT8
        self._writer = TfliteWriter()
        self._rng = np.random.default_rng(seed)
        self._weight_scales = np.ones(1, np.float32)
        self._inputs: list[int] = []

    def finish(self) -> bytes:
        case, writer = self._case, self._writer
        operands = [
            self._add(f"operand_{number}", operand)
            for number, operand in enumerate(case.operands)
        ]
        result = self._data("result", case.result)
        options = None
        if case.options_class:
            options = getattr(writer.schema, case.options_class)(**case.options)
        writer.operator(case.operator, operands, result, options, version=case.version)
        return writer.finish(self._inputs, [result])

    def _add(self, name: str, operand: Operand) -> int:
        match operand:
            case Data():
                self._inputs.append(self._data(name, operand))
                return self._inputs[-1]
            case Weights():
                return self._weights(name, operand)
            case Bias():
                return self._bias(name, operand)
            case Integers():
                values = np.array(operand.values, np.int32)
                return self._writer.constant(name, values)

    def _data(self, name: str, data: Data) -> int:
        if not self._quantized:
            return self._writer.tensor(name, data.shape, np.dtype(np.float32))
        return self._writer.tensor(
            name,
            data.shape,
            np.dtype(np.int8),
            scale=data.scale,
            zero_point=data.zero_point,
        )

    def _weights(self, name: str, weights: Weights) -> int:
        """Add weights that keep the variance of what they are applied to."""
        axis, shape = weights.axis, weights.shape
        terms = math.prod(shape) // shape[axis or 0]
        values = self._rng.normal(0, 1 / math.sqrt(terms), shape).astype(np.float32)
        if not self._quantized:
            return self._writer.constant(name, values)
        others = tuple(i for i in range(len(shape)) if i != axis)
        scales = np.abs(values).max(others, keepdims=True) / np.float32(127)
        integers = np.rint(values / scales).astype(np.int8)
        self._weight_scales = scales.reshape(-1)
        return self._writer.constant(
            name, integers, scales=self._weight_scales, axis=axis or 0
        )

    def _bias(self, name: str, bias: Bias) -> int:
        values: Array = self._rng.normal(0, 0.1, bias.size).astype(np.float32)
        if not self._quantized:
            return self._writer.constant(name, values)
        data = next(item for item in self._case.operands if isinstance(item, Data))
        scales = np.float32(data.scale) * self._weight_scales
        integers = np.rint(values / scales).astype(np.int32)
        return self._writer.constant(name, integers, scales=scales)
