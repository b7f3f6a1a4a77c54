"""Operations that move, pick or reduce: reshape, join, resize, slice, split, mean."""

from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.tflite.node import (
    Converter,
    Node,
    axis_in,
    exact,
    in_float,
    like_input,
    option,
    value_of,
)
from asyncnn.runtime.tflite.schema import UnsupportedOperatorError

_LIKE_INPUT = ("PAD", "TRANSPOSE", "TILE", "SLICE")
"""Same names and inputs; the output is quantised like the input."""


def _reshape(node: Node) -> None:
    operand, target = node.read(0), node.target()
    if target.type == OperandType.TENSOR_BOOL8:
        node.store(node.reshape(operand, target.dimensions))
        return
    shape = node.integers(target.dimensions)
    node.emit_like(OperationType.RESHAPE, [operand, shape])


def _squeeze(node: Node) -> None:
    operand = node.read(0)
    axes = node.options("SqueezeOptions").SqueezeDimsAsNumpy()
    if isinstance(axes, int) or not node.result().shape:
        # Without axes, or down to a scalar, it is the output's shape that counts.
        _reshape(node)
        return
    axes = [node.axis(axis, node.rank()) for axis in axes.tolist()]
    node.emit_like(OperationType.SQUEEZE, [operand, node.integers(axes)])


def _concatenation(node: Node) -> None:
    options = node.options("ConcatenationOptions")
    axis = node.scalar(node.axis(options.Axis(), node.rank()))
    inputs = [*node.read_all(), axis]
    joined = node.compute(OperationType.CONCATENATION, inputs, node.target())
    node.store(node.activate(joined, options.FusedActivationFunction()))


def _pack(node: Node) -> None:
    axis = node.axis(node.options("PackOptions").Axis(), node.rank() + 1)
    target = node.target()
    inputs = [node.requantize(operand, target) for operand in node.read_all()]
    node.emit(OperationType.PACK, [node.scalar(axis), *inputs])


def _batch_to_space_nd(node: Node) -> None:
    operand = node.read(0)
    dimensions = node.target().dimensions
    crops = node.values(2)
    if crops.shape != (2, 2) or len(dimensions) != 4:
        raise UnsupportedOperatorError("the HAL moves batches to two axes of four")
    (top, bottom), (left, right) = crops.tolist()
    batch, height, width, depth = dimensions
    whole = node.compute(
        OperationType.BATCH_TO_SPACE_ND,
        [operand, node.read(1)],
        replace(
            node.builder.operand(operand),
            dimensions=(batch, top + height + bottom, left + width + right, depth),
        ),
    )
    if crops.any():
        begin, size = node.integers((0, top, left, 0)), node.integers(dimensions)
        node.emit_like(OperationType.SLICE, [whole, begin, size])
    else:
        node.store(whole)


def _resize(type_: OperationType, kind: str) -> Converter:
    def convert(node: Node) -> None:
        flags = node.options(kind)
        dimensions = node.target().dimensions
        if len(dimensions) != 4:
            raise InvalidArgumentError(f"images of rank {len(dimensions)}, not 4")
        options = False, bool(flags.AlignCorners()), bool(flags.HalfPixelCenters())
        scalars = map(node.scalar, (dimensions[2], dimensions[1], *options))
        node.emit_like(type_, [node.read(0), *scalars])

    return convert


def _reverse(node: Node) -> None:
    operand, rank = node.read(0), node.rank()
    like = node.builder.operand(operand)
    for axis in dict.fromkeys(node.values(1).ravel().tolist()):
        inputs = [operand, node.integers([node.axis(axis, rank)])]
        operand = node.compute(OperationType.REVERSE, inputs, like)
    node.store(operand)


def _broadcast_to(node: Node) -> None:
    node.store(node.broadcast(node.read(0), node.target().dimensions))


def _fill(node: Node) -> None:
    value = node.value(1)
    dimensions = node.integers(node.target().dimensions)
    node.emit(OperationType.FILL, [dimensions, node.scalar(value)])


def _zeros_like(node: Node) -> None:
    target = node.target()
    zero = 0 if target.type == OperandType.TENSOR_INT32 else 0.0
    inputs = [node.integers(target.dimensions), node.scalar(zero)]
    node.emit(OperationType.FILL, inputs)


SHAPE_INPUTS: dict[str, frozenset[int]] = {
    **dict.fromkeys(("FILL", "ZEROS_LIKE", "SHAPE"), frozenset({0})),
    **dict.fromkeys(
        ("RESHAPE", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "BROADCAST_TO"),
        frozenset({1}),
    ),
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


_KEEP = option("ReducerOptions", "KeepDims", bool)

CONVERTERS: dict[str, Converter] = {
    **{name: like_input(OperationType[name]) for name in _LIKE_INPUT},
    "RESHAPE": _reshape,
    "SQUEEZE": _squeeze,
    "EXPAND_DIMS": like_input(OperationType.EXPAND_DIMS, 0, axis_in(1, more=1)),
    "PADV2": like_input(OperationType.PAD_V2, 0, 1, value_of(2)),
    "MIRROR_PAD": like_input(
        OperationType.MIRROR_PAD, 0, 1, option("MirrorPadOptions", "Mode")
    ),
    "CONCATENATION": _concatenation,
    "PACK": _pack,
    "SPACE_TO_BATCH_ND": like_input(OperationType.SPACE_TO_BATCH_ND, 0, 1, 2),
    "BATCH_TO_SPACE_ND": _batch_to_space_nd,
    "SPACE_TO_DEPTH": like_input(
        OperationType.SPACE_TO_DEPTH, 0, option("SpaceToDepthOptions", "BlockSize")
    ),
    "DEPTH_TO_SPACE": like_input(
        OperationType.DEPTH_TO_SPACE, 0, option("DepthToSpaceOptions", "BlockSize")
    ),
    "RESIZE_BILINEAR": _resize(OperationType.RESIZE_BILINEAR, "ResizeBilinearOptions"),
    "RESIZE_NEAREST_NEIGHBOR": _resize(
        OperationType.RESIZE_NEAREST_NEIGHBOR, "ResizeNearestNeighborOptions"
    ),
    "REVERSE_V2": _reverse,
    "BROADCAST_TO": _broadcast_to,
    "FILL": _fill,
    "ZEROS_LIKE": _zeros_like,
    "SHAPE": lambda node: node.store(node.integers(node.tensor(0).shape)),
    "MEAN": _mean,
    "REDUCE_MAX": like_input(OperationType.REDUCE_MAX, 0, 1, _KEEP),
    "REDUCE_MIN": like_input(OperationType.REDUCE_MIN, 0, 1, _KEEP),
    "REDUCE_ALL": like_input(OperationType.REDUCE_ALL, 0, 1, _KEEP),
    "REDUCE_ANY": like_input(OperationType.REDUCE_ANY, 0, 1, _KEEP),
    "SUM": in_float(OperationType.REDUCE_SUM, 0, 1, _KEEP),
    "REDUCE_PROD": in_float(OperationType.REDUCE_PROD, 0, 1, _KEEP),
    "ARG_MAX": exact(OperationType.ARGMAX, 0, axis_in(1)),
    "ARG_MIN": exact(OperationType.ARGMIN, 0, axis_in(1)),
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
