"""Operations that move elements: shapes, slices, padding, joining and picking.

They need no more than the values that they move, so that codes stay in the form in
which they are there.
"""

import numpy as np

from asyncnn.devices.litert.operation_writer import (
    CODES,
    FLOATS,
    I32,
    OperationWriter,
    Reordered,
    Rule,
    Write,
)
from asyncnn.devices.litert.tflite_graph import (
    FLOAT32,
    OperatorOptions,
    WrittenTensor,
    options,
)
from asyncnn.hal.operations.joining import paddings_of, slices_of, strided_slices_of
from asyncnn.hal.types import OperationType


def _kept(writer: OperationWriter, index: int = 0) -> WrittenTensor:
    """Return an input as it is, which is quantised as the output is."""
    writer.require_kept_quantization(index)
    return writer.as_it_is(index)


def _reshape(writer: OperationWriter) -> None:
    """RESHAPE, SQUEEZE and EXPAND_DIMS: the output's shape says it all."""
    source = _kept(writer)
    writer.reshape(source, writer.output(type_=source.type))


def _transpose(writer: OperationWriter) -> None:
    source = _kept(writer)
    order = [*range(len(source.shape))][::-1]
    if writer.operation.has(1):
        order = writer.operation.integers(1)
    writer.transposed(source, tuple(order), writer.output(type_=source.type))


def _pad(writer: OperationWriter) -> None:
    """PAD and PAD_V2; the value of codes is a stored one."""
    writer.require_kept_quantization()
    paddings = paddings_of(writer.operation)
    source, value = writer.input(0), None
    if writer.operation.type == OperationType.PAD_V2:
        value = writer.graph.constant(
            source.type, _pad_value(writer, source), source.quantization
        )
    writer.pad(source, paddings, writer.output(), value)


def _pad_value(writer: OperationWriter, source: WrittenTensor) -> np.ndarray:
    if source.type == FLOAT32:
        return np.array([writer.operation.real(2)], np.float32)
    stored = writer.operation.integer(2)
    limits = np.iinfo(writer.operand(0).dtype)
    writer.require(
        int(limits.min) <= stored <= int(limits.max), f"padding of code {stored}"
    )
    moved = source.zero_point - writer.operand(0).zero_point
    return np.array([stored + moved], np.int8)


def _slice(writer: OperationWriter) -> None:
    source, taken = _kept(writer), slices_of(writer.operation)
    begin = writer.graph.integers([part.start for part in taken])
    size = writer.graph.integers([part.stop - part.start for part in taken])
    output = writer.output(type_=source.type)
    writer.emit("SLICE", [source, begin, size], output, options("SliceOptions"))


def _strided_slice(writer: OperationWriter) -> None:
    """Masks are resolved here; what is dropped, RESHAPE drops."""
    source = _kept(writer)
    taken, _ = strided_slices_of(writer.operation)
    resolved = [
        _resolved(part, length)
        for part, length in zip(taken, source.shape, strict=True)
    ]
    begin, end, strides = (list(numbers) for numbers in zip(*resolved, strict=True))
    shape = tuple(len(range(*each)) for each in resolved)
    writer.require(0 not in shape, "nothing is taken")
    # An end of -1 would count from the end: before the first element is said by a mask.
    end_mask = sum(1 << axis for axis, stop in enumerate(end) if stop < 0)
    table = options(
        "StridedSliceOptions",
        BeginMask=0,
        EndMask=end_mask,
        EllipsisMask=0,
        NewAxisMask=0,
        ShrinkAxisMask=0,
    )
    inputs = [source, *map(writer.graph.integers, (begin, end, strides))]
    writer.emit_reshaped("STRIDED_SLICE", inputs, shape, table, source.type)


def _resolved(part: slice, length: int) -> tuple[int, int, int]:
    """Return begin, end and stride; the stride of a single element is 1.

    A large stride added to an index would not stay within int32.
    """
    begin, end, stride = part.indices(length)
    if len(range(begin, end, stride)) == 1:
        return begin, begin + 1, 1
    return begin, end, stride


def _split(writer: OperationWriter) -> None:
    source = writer.as_it_is(0)
    axis = writer.operation.axis(1, len(source.shape))
    outputs = []
    for position, operand in enumerate(writer.operation.outputs):
        same = (operand.scale, operand.zero_point) == (
            writer.operand(0).scale,
            writer.operand(0).zero_point,
        )
        writer.require(same, "an output is quantised unlike the input")
        outputs.append(writer.output(position, source.type))
    writer.graph.operator(
        "SPLIT",
        [writer.graph.integers(axis), source],
        outputs,
        options("SplitOptions", NumSplits=len(outputs)),
    )


def _concatenation(writer: OperationWriter) -> None:
    count = len(writer.operation.inputs) - 1
    parts = [writer.quantized_like_output(index) for index in range(count)]
    table = options(
        "ConcatenationOptions",
        Axis=writer.operation.axis(count, len(writer.output_shape())),
        FusedActivationFunction=0,
    )
    writer.emit("CONCATENATION", parts, writer.output(), table)


def _pack(writer: OperationWriter) -> None:
    count = len(writer.operation.inputs) - 1
    rank = len(writer.output_shape())
    parts = [writer.quantized_like_output(index + 1) for index in range(count)]
    table = options(
        "PackOptions", ValuesCount=count, Axis=writer.operation.axis(0, rank)
    )
    writer.emit("PACK", parts, writer.output(), table)


def _by_integers(name: str, table: OperatorOptions | None = None) -> Write:
    """Write an operator that moves elements as integers say."""

    def write(writer: OperationWriter) -> None:
        source = _kept(writer)
        integers = writer.graph.integers(writer.operation.integers(1))
        output = writer.output(type_=source.type)
        writer.emit(name, [source, integers], output, table)

    return write


def _channel_shuffle(writer: OperationWriter) -> None:
    """Split the axis in [groups, rest], swap the two, and join them again."""
    source = _kept(writer)
    shape = source.shape
    groups = writer.operation.integer(1)
    axis = writer.operation.axis(2, len(shape))
    before, after = shape[:axis], shape[axis + 1 :]
    split = (*before, groups, shape[axis] // groups, *after)
    order = [*range(len(split))]
    order[axis], order[axis + 1] = axis + 1, axis
    swapped = writer.transposed(writer.reshaped(source, split), tuple(order))
    writer.reshape(swapped, writer.output(type_=source.type))


def _in_nhwc(name: str, kind: str, flag: int) -> Write:
    """Write an operator on NHWC images whose HAL form has a layout flag."""

    def write(writer: OperationWriter) -> None:
        nchw = writer.operation.boolean(flag, False)
        images = Reordered.nhwc(writer, _kept(writer), nchw=nchw)
        inputs = [images.source]
        table: OperatorOptions = options(kind)
        if "DEPTH" in name:
            table = options(kind, BlockSize=writer.operation.integer(1))
        elif name == "BATCH_TO_SPACE_ND":
            block = writer.operation.integers(1)
            inputs += [writer.graph.integers(block), writer.graph.integers(_NO_CROPS)]
        else:
            block, paddings = (writer.operation.integers(i) for i in (1, 2))
            inputs.append(writer.graph.integers(block))
            inputs.append(writer.graph.integers([paddings[:2], paddings[2:]]))
        images.finish(writer.emit(name, inputs, images.target(), table))

    return write


def _gather(writer: OperationWriter) -> None:
    """GATHER, and EMBEDDING_LOOKUP, whose indices come before the table."""
    has_axis = writer.operation.type == OperationType.GATHER
    source = _kept(writer, 0 if has_axis else 1)
    axis = writer.operation.axis(1, len(source.shape)) if has_axis else 0
    table = options("GatherOptions", Axis=axis, BatchDims=0)
    inputs = [source, writer.input(2 if has_axis else 0)]
    writer.emit("GATHER", inputs, writer.output(type_=source.type), table)


_NO_CROPS = ((0, 0), (0, 0))
_MOVED = (*FLOATS, *CODES)
_MOVED_WITH_INTEGERS = (*_MOVED, I32)
_KEPT = "an output that is quantised unlike the input"

_BLOCKS = {
    OperationType.DEPTH_TO_SPACE: ("DepthToSpaceOptions", 2),
    OperationType.SPACE_TO_DEPTH: ("SpaceToDepthOptions", 2),
    OperationType.BATCH_TO_SPACE_ND: ("BatchToSpaceNDOptions", 2),
    OperationType.SPACE_TO_BATCH_ND: ("SpaceToBatchNDOptions", 3),
}
"""Options, and the input that says the layout."""

RULES: dict[OperationType, Rule] = {
    OperationType.RESHAPE: Rule(_reshape, _MOVED_WITH_INTEGERS, "RESHAPE", _KEPT),
    OperationType.SQUEEZE: Rule(_reshape, _MOVED, "RESHAPE", _KEPT),
    OperationType.EXPAND_DIMS: Rule(_reshape, _MOVED_WITH_INTEGERS, "RESHAPE", _KEPT),
    OperationType.TRANSPOSE: Rule(_transpose, _MOVED, "TRANSPOSE", _KEPT),
    OperationType.PAD: Rule(_pad, _MOVED, "PAD", _KEPT),
    OperationType.PAD_V2: Rule(_pad, _MOVED, "PADV2", _KEPT),
    OperationType.SLICE: Rule(_slice, _MOVED_WITH_INTEGERS, "SLICE", _KEPT),
    OperationType.STRIDED_SLICE: Rule(
        _strided_slice, _MOVED, "STRIDED_SLICE without masks, RESHAPE", _KEPT
    ),
    OperationType.SPLIT: Rule(_split, _MOVED_WITH_INTEGERS, "SPLIT", _KEPT),
    OperationType.CONCATENATION: Rule(
        _concatenation, _MOVED, "CONCATENATION, codes after QUANTIZE"
    ),
    OperationType.PACK: Rule(_pack, _MOVED_WITH_INTEGERS, "PACK", typed_by=1),
    OperationType.TILE: Rule(_by_integers("TILE"), _MOVED_WITH_INTEGERS, "TILE", _KEPT),
    OperationType.REVERSE: Rule(
        _by_integers("REVERSE_V2", options("ReverseV2Options")),
        _MOVED_WITH_INTEGERS,
        "REVERSE_V2",
        _KEPT,
    ),
    OperationType.CHANNEL_SHUFFLE: Rule(
        _channel_shuffle, _MOVED, "RESHAPE, TRANSPOSE, RESHAPE", _KEPT
    ),
    **{
        type_: Rule(
            _in_nhwc(type_.name, kind, flag),
            _MOVED,
            f"{type_.name}; TRANSPOSE around it for NCHW",
            _KEPT,
        )
        for type_, (kind, flag) in _BLOCKS.items()
    },
    OperationType.GATHER: Rule(_gather, _MOVED_WITH_INTEGERS, "GATHER", _KEPT),
    OperationType.EMBEDDING_LOOKUP: Rule(
        _gather, _MOVED_WITH_INTEGERS, "GATHER", _KEPT, typed_by=1
    ),
}
