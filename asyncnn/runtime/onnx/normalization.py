"""Normalisations: of batches, folded into factors, and of neighbouring channels."""

import math

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.axes import MAX_RANK
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.onnx.node import Converter, OnnxNode


def _batch_normalization(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    if node.attribute("training_mode", 0) or node.wants(1):
        raise node.refuse("training")
    epsilon = node.attribute("epsilon", 1e-5)
    scale, shift, mean, variance = (
        np.asarray(node.data(index), np.float64) for index in range(1, 5)
    )
    factor = scale / np.sqrt(variance + epsilon)
    along_channels = (math.prod(factor.shape), *(1,) * (max(value.rank, 2) - 2))
    factor, rest = (
        each.astype(value.dtype).reshape(along_channels)
        for each in (factor, shift - mean * factor)
    )
    return draft.add(draft.mul(value, factor), rest)


def _lrn(node: OnnxNode) -> Value:
    value, draft = node.input(0), node.draft
    size = node.attribute("size", 1)
    if value.rank < 2 or size < 1:
        raise InvalidArgumentError(f"{size} neighbours in rank {value.rank}")
    alpha = node.attribute("alpha", 1e-4) / size
    bias, beta = node.attribute("bias", 1.0), node.attribute("beta", 0.75)
    if size % 2 and value.rank <= MAX_RANK:
        scalars = [size // 2, bias, alpha, beta, 1]
        return draft.emit(Op.LOCAL_RESPONSE_NORMALIZATION, [value, *scalars])
    raise node.refuse("an even number of neighbours, or images of rank above 4")


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": _batch_normalization,
    "LRN": _lrn,
}
