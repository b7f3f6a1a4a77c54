"""Operations that pick elements: slices, splits, look-ups."""

from msgspec.structs import replace

from asyncnn.hal.types import OperationType
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.schema import UnsupportedOperatorError


def _strided_slice(node: Node) -> None:
    options = node.options("StridedSliceOptions")
    if options.EllipsisMask() or options.NewAxisMask() or options.Offset():
        raise UnsupportedOperatorError("an ellipsis, new axis or relative end")
    masks = (options.BeginMask(), options.EndMask(), options.ShrinkAxisMask())
    inputs = [*node.read_all(), *map(node.scalar, masks)]
    node.emit_like(OperationType.STRIDED_SLICE, inputs)


def _gather(node: Node) -> None:
    options = node.options("GatherOptions")
    if options.BatchDims():
        raise UnsupportedOperatorError("gathering per batch")
    axis = node.scalar(node.axis(options.Axis(), node.rank()))
    node.emit_like(OperationType.GATHER, [node.read(0), axis, node.read(1)])


def _split(node: Node) -> None:
    axis = node.axis(node.value(0), node.rank(1))
    _split_evenly(node, node.read(1), axis)


def _unpack(node: Node) -> None:
    axis = node.axis(node.options("UnpackOptions").Axis(), node.rank())
    _split_evenly(node, node.read(0), axis)


def _split_evenly(node: Node, operand: int, axis: int) -> None:
    source = node.builder.operand(operand)
    count = len(node.operator.outputs)
    dimensions = list(source.dimensions)
    dimensions[axis] //= count
    pieces = node.compute_all(
        OperationType.SPLIT,
        [operand, node.scalar(axis), node.scalar(count)],
        [replace(source, dimensions=tuple(dimensions))] * count,
    )
    for index, piece in enumerate(pieces):
        node.store(piece, index)


def _split_v(node: Node) -> None:
    operand = node.read(0)
    source = node.builder.operand(operand)
    begin = [0] * len(source.dimensions)
    axis = node.axis(node.value(2), len(begin))
    for index in range(len(node.operator.outputs)):
        dimensions = node.target(index).dimensions
        piece = node.compute(
            OperationType.SLICE,
            [operand, node.integers(begin), node.integers(dimensions)],
            replace(source, dimensions=dimensions),
        )
        begin[axis] += dimensions[axis]
        node.store(piece, index)


def _select(node: Node) -> None:
    if node.operator.name == "SELECT" and node.rank() != node.rank(1):
        raise UnsupportedOperatorError("the HAL does not select whole rows")
    dimensions = node.target().dimensions
    inputs = [node.broadcast(operand, dimensions) for operand in node.read_all()]
    node.emit(OperationType.SELECT, inputs)


def _topk_v2(node: Node) -> None:
    operand = node.read(0)
    values = replace(node.builder.operand(operand), dimensions=node.target().dimensions)
    results = node.compute_all(
        OperationType.TOPK_V2,
        [operand, node.scalar(node.value(1))],
        [values, node.target(1)],
    )
    for index, result in enumerate(results):
        node.store(result, index)


CONVERTERS: dict[str, Converter] = {
    "STRIDED_SLICE": _strided_slice,
    "GATHER": _gather,
    "EMBEDDING_LOOKUP": lambda node: node.emit_like(
        OperationType.EMBEDDING_LOOKUP, node.read_all(), source=1
    ),
    "SPLIT": _split,
    "SPLIT_V": _split_v,
    "UNPACK": _unpack,
    "SELECT": _select,
    "SELECT_V2": _select,
    "TOPK_V2": _topk_v2,
}
