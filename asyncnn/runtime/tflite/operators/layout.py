"""Operations that move elements: reshaping, padding, joining, resizing."""

import numpy as np
from msgspec.structs import replace

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.types import OperationType
from asyncnn.runtime.tflite.errors import UnsupportedOperatorError
from asyncnn.runtime.tflite.node import Converter, Node

_LIKE_INPUT = {
    "PAD": OperationType.PAD,
    "TRANSPOSE": OperationType.TRANSPOSE,
    "TILE": OperationType.TILE,
    "SPACE_TO_BATCH_ND": OperationType.SPACE_TO_BATCH_ND,
    "REVERSE_V2": OperationType.REVERSE,
}
"""Same inputs as in TFLite."""


def _like_input(type_: OperationType) -> Converter:
    return lambda node: node.emit_like(type_, node.read_all(), node.read(0))


def _reshape(node: Node) -> None:
    operand = node.read(0)
    shape = node.integers(node.target().dimensions)
    node.emit_like(OperationType.RESHAPE, [operand, shape], operand)


def _squeeze(node: Node) -> None:
    operand = node.read(0)
    axes = node.options("SqueezeOptions").SqueezeDimsAsNumpy()
    if isinstance(axes, int) or not node.result().shape:
        # Without axes, or down to a scalar, it is the output's shape that counts.
        _reshape(node)
        return
    rank = node.rank()
    axes = [axis % rank for axis in axes.tolist()]
    node.emit_like(OperationType.SQUEEZE, [operand, node.integers(axes)], operand)


def _expand_dims(node: Node) -> None:
    operand = node.read(0)
    axis = node.axis(node.value(1), len(node.tensor(0).shape) + 1)
    node.emit_like(OperationType.EXPAND_DIMS, [operand, axis], operand)


def _pad_v2(node: Node) -> None:
    operand = node.read(0)
    value = node.scalar(node.value(2))
    node.emit_like(OperationType.PAD_V2, [operand, node.read(1), value], operand)


def _mirror_pad(node: Node) -> None:
    operand = node.read(0)
    mode = node.scalar(node.options("MirrorPadOptions").Mode())
    node.emit_like(OperationType.MIRROR_PAD, [operand, node.read(1), mode], operand)


def _concatenation(node: Node) -> None:
    options = node.options("ConcatenationOptions")
    inputs = [*node.read_all(), node.axis(options.Axis(), node.rank())]
    joined = node.compute(OperationType.CONCATENATION, inputs, node.target())
    node.store(node.activate(joined, options.FusedActivationFunction()))


def _pack(node: Node) -> None:
    axis = node.axis(node.options("PackOptions").Axis(), node.rank() + 1)
    target = node.target()
    inputs = [
        node.requantize(operand, replace(target, dimensions=()))
        for operand in node.read_all()
    ]
    node.emit(OperationType.PACK, [axis, *inputs])


def _block(type_: OperationType, options: str) -> Converter:
    def convert(node: Node) -> None:
        operand = node.read(0)
        size = node.scalar(node.options(options).BlockSize())
        node.emit_like(type_, [operand, size], operand)

    return convert


def _batch_to_space_nd(node: Node) -> None:
    operand = node.read(0)
    target = node.target()
    crops = node.values(2)
    if crops.shape != (2, 2) or len(target.dimensions) != 4:
        raise UnsupportedOperatorError("only two spatial axes have a HAL form")
    if not crops.any():
        node.emit_like(
            OperationType.BATCH_TO_SPACE_ND, [operand, node.read(1)], operand
        )
        return
    like = replace(node.builder.operand(operand), dimensions=_uncropped(node, crops))
    whole = node.compute(OperationType.BATCH_TO_SPACE_ND, [operand, node.read(1)], like)
    begin = node.integers((0, crops[0, 0], crops[1, 0], 0))
    node.emit_like(
        OperationType.SLICE, [whole, begin, node.integers(target.dimensions)], operand
    )
