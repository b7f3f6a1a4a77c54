"""Reductions along axes."""

from asyncnn.hal.types import OperationType
from asyncnn.runtime.tflite.node import Converter, Node

_LIKE_INPUT = {
    "REDUCE_MAX": OperationType.REDUCE_MAX,
    "REDUCE_MIN": OperationType.REDUCE_MIN,
    "REDUCE_ALL": OperationType.REDUCE_ALL,
    "REDUCE_ANY": OperationType.REDUCE_ANY,
}
_FLOAT = {"SUM": OperationType.REDUCE_SUM, "REDUCE_PROD": OperationType.REDUCE_PROD}
_ARG = {
    "ARG_MAX": OperationType.ARGMAX,
    "ARG_MIN": OperationType.ARGMIN,
}


def _mean(node: Node) -> None:
    keep = node.scalar(int(node.options("ReducerOptions").KeepDims()))
    inputs = [node.read(0), node.read(1), keep]
    source, target = node.builder.operand(inputs[0]), node.target()
    if (source.scale, source.zero_point) == (target.scale, target.zero_point):
        node.emit(OperationType.MEAN, inputs)
    else:
        # The HAL would round to a step of the input before one of the output.
        node.emit_float(OperationType.MEAN, inputs)


def _reduce(type_: OperationType) -> Converter:
    def convert(node: Node) -> None:
        operand = node.read(0)
        node.emit_like(type_, [operand, node.read(1), _keep(node)], operand)

    return convert


def _reduce_float(type_: OperationType) -> Converter:
    return lambda node: node.emit_float(
        type_, [node.read(0), node.read(1), _keep(node)]
    )


def _keep(node: Node) -> int:
    return node.scalar(bool(node.options("ReducerOptions").KeepDims()))


def _arg(type_: OperationType) -> Converter:
    def convert(node: Node) -> None:
        axis = node.scalar(node.axis(node.value(1), node.rank()))
        node.emit(type_, [node.read(0), axis])

    return convert


CONVERTERS: dict[str, Converter] = {
    "MEAN": _mean,
    **{name: _reduce(type_) for name, type_ in _LIKE_INPUT.items()},
    **{name: _reduce_float(type_) for name, type_ in _FLOAT.items()},
    **{name: _arg(type_) for name, type_ in _ARG.items()},
}
