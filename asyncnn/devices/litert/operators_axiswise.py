"""Reductions, normalisation, SOFTMAX, BATCH_MATMUL and resizing in TFLite.

What TFLite does along the last axis only is transposed there and back.
"""

import numpy as np

from asyncnn.devices.litert.operation_writer import (
    B8,
    CODES,
    FLOATS,
    I32,
    OperationWriter,
    Reordered,
    Rule,
    Write,
    alike,
)
from asyncnn.devices.litert.tflite_graph import WrittenTensor, elements, options
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperationType

_MAX_SUMMED = 2**22
"""Most codes in one mean: their sum stays within int32."""

_FINEST_NORMALIZED = 2.0**-16
"""Finest scale whose codes other than 0 have norms above the smallest, 1e-6."""

_LONGEST_RESIZED = 2**14
"""Longest axis of which positions in 16.16 fixed point stay within 32 bits."""

_BETAS = (2.0**-10, 2.0**10)


def _reduction(name: str) -> Write:
    def write(writer: OperationWriter) -> None:
        writer.require_kept_quantization()
        source = writer.input(0)
        axes = sorted(writer.operation.normalized_axes(1, len(source.shape)))
        writer.require(bool(axes), "no axis is reduced")
        kept = tuple(1 if i in axes else n for i, n in enumerate(source.shape))
        count = elements(source.shape) // elements(kept)
        writer.require(
            not writer.is_quantized or count <= _MAX_SUMMED,
            f"means of more than {_MAX_SUMMED} codes",
        )
        dropped = tuple(n for i, n in enumerate(source.shape) if i not in axes)
        drops = writer.output_shape() == dropped
        table = options("ReducerOptions", KeepDims=not drops)
        inputs = [source, writer.graph.integers(axes)]
        writer.emit_reshaped(name, inputs, dropped if drops else kept, table)

    return write


def _arg(name: str, kind: str) -> Write:
    def write(writer: OperationWriter) -> None:
        source = writer.input(0)
        rank = len(source.shape)
        axis = writer.operation.axis(1, rank)
        inputs = [source, writer.graph.integers([axis])]
        table = options(kind, OutputType=_INT32_NUMBER)
        shape = writer.output_shape() if rank > 1 else ()
        writer.emit_reshaped(name, inputs, shape, table)

    return write


_INT32_NUMBER = 2


def _to_last(rank: int, axis: int) -> tuple[int, ...]:
    """Return the permutation that swaps ``axis`` and the last one."""
    order = [*range(rank)]
    order[axis], order[-1] = order[-1], order[axis]
    return tuple(order)


def _last_axis(writer: OperationWriter, index: int, *default: int) -> Reordered:
    """Return input 0 with the axis in scalar ``index`` at the end."""
    rank = len(writer.operation.shape(0))
    order = _to_last(rank, writer.operation.axis(index, rank, *default))
    return Reordered(writer, writer.input(0), order)


def _beta(writer: OperationWriter) -> float:
    low, high = _BETAS
    beta = writer.operation.real(1)
    writer.require(low <= beta <= high, f"beta {beta:g} is extreme")
    return beta


def _softmax(writer: OperationWriter) -> None:
    table = options("SoftmaxOptions", Beta=_beta(writer))
    last = _last_axis(writer, 2, -1)
    target = last.target()
    writer.emit("SOFTMAX", [last.source], target, table)
    last.finish(target)


def _log_softmax(writer: OperationWriter) -> None:
    """Beta is multiplied with ``x - max``, which keeps the error small."""
    beta = _beta(writer)
    last = _last_axis(writer, 2)
    source, graph = last.source, writer.graph
    if beta != 1:
        largest = writer.floats((*source.shape[:-1], 1))
        axes = graph.integers([len(source.shape) - 1])
        keep = options("ReducerOptions", KeepDims=True)
        writer.emit("REDUCE_MAX", [source, axes], largest, keep)
        below = writer.pair("SUB", source, largest)
        source = writer.pair("MUL", below, graph.real(beta))
    target = last.target()
    writer.emit("LOG_SOFTMAX", [source], target, options("LogSoftmaxOptions"))
    last.finish(target)


def _l2_normalization(writer: OperationWriter) -> None:
    rank = len(writer.operation.shape(0))
    axis = writer.operation.axis(1, rank, -1)
    order = _to_last(rank, axis)
    table = options("L2NormOptions", FusedActivationFunction=0)

    scale = writer.operand(0).scale
    writer.require(
        not writer.is_quantized or scale >= _FINEST_NORMALIZED,
        f"scale {scale:g}, below which norms are cut off",
    )

    source = writer.dequantized(0)

    def compute(target: WrittenTensor) -> None:
        if axis == rank - 1:
            writer.emit("L2_NORMALIZATION", [source], target, table)
            return
        moved = writer.transposed(source, order)
        result = writer.floats(moved.shape)
        writer.emit("L2_NORMALIZATION", [moved], result, table)
        writer.transposed(result, order, target)

    writer.finish_floats(compute, source.shape)


def _local_response(writer: OperationWriter) -> None:
    """TFLite wants four axes; a radius beyond the axis would only take memory."""
    last = _last_axis(writer, 5, -1)
    source = last.source
    length = source.shape[-1]
    image: Shape = (1, 1, elements(source.shape) // length, length)
    bias, alpha, beta = map(writer.operation.real, (2, 3, 4))
    table = options(
        "LocalResponseNormalizationOptions",
        Radius=min(writer.operation.integer(1), length - 1),
        Bias=bias,
        Alpha=alpha,
        Beta=beta,
    )
    target = last.target()
    name = "LOCAL_RESPONSE_NORMALIZATION"
    if len(source.shape) == 4:
        writer.emit(name, [source], target, table)
    else:
        result = writer.floats(image)
        writer.emit(name, [writer.reshaped(source, image)], result, table)
        writer.reshape(result, target)
    last.finish(target)


def _instance_normalization(writer: OperationWriter) -> None:
    """``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` in single operators."""
    gamma, beta, epsilon = map(writer.operation.real, (1, 2, 3))
    source, graph = writer.input(0), writer.graph
    axes = (2, 3) if writer.operation.boolean(4) else (1, 2)
    kept = tuple(1 if i in axes else n for i, n in enumerate(source.shape))
    over = graph.integers(axes)
    keep = options("ReducerOptions", KeepDims=True)
    mean = writer.emit("MEAN", [source, over], writer.floats(kept), keep)
    centred = writer.pair("SUB", source, mean)
    squares = writer.pair("MUL", centred, centred)
    variance = writer.emit("MEAN", [squares, over], writer.floats(kept), keep)
    spread = writer.pair("ADD", variance, graph.real(epsilon))
    root = writer.emit("SQRT", [spread], writer.floats(kept))
    factor = writer.pair("DIV", graph.real(gamma), root, writer.floats(kept))
    scaled = writer.pair("MUL", centred, factor)
    writer.pair("ADD", scaled, graph.real(beta), writer.output())


def _batch_matmul(writer: OperationWriter) -> None:
    table = options(
        "BatchMatMulOptions",
        AdjX=writer.operation.boolean(2),
        AdjY=writer.operation.boolean(3),
    )
    inputs = [writer.input(0), writer.input(1)]
    writer.emit("BATCH_MATMUL", inputs, writer.output(), table)


def _resize(name: str, kind: str) -> Write:
    """Write a resizing of NHWC images; codes are interpolated as real values."""

    def write(writer: OperationWriter) -> None:
        writer.require_kept_quantization()
        nchw = writer.operation.boolean(3, False)
        images = Reordered.nhwc(writer, writer.input(0), nchw=nchw)
        source, target = images.source, images.target()
        shape = target.shape
        if name == "RESIZE_NEAREST_NEIGHBOR":
            _check_nearest(writer, source.shape[1:3], shape[1:3])
        else:
            source = writer.real_values(source)
        size = writer.graph.integers(shape[1:3])
        table = options(
            kind,
            AlignCorners=writer.operation.boolean(4, False),
            HalfPixelCenters=writer.operation.boolean(5, False),
        )
        if source.type == target.type:
            writer.emit(name, [source, size], target, table, 3)
        else:
            real = writer.floats(shape)
            writer.emit(name, [source, size], real, table, 3)
            writer.emit("QUANTIZE", [real], target)
        images.finish(target)

    return write


def _check_nearest(writer: OperationWriter, before: Shape, after: Shape) -> None:
    """Check that positions round down to the same pixels in all of LiteRT's ways.

    Of codes it computes them in 16.16 fixed point unless corners or centres are asked
    for, of floats in float32.
    """
    if writer.operation.boolean(4, False) or writer.operation.boolean(5, False):
        return
    for length, new_length in zip(before, after, strict=True):
        writer.require(
            max(length, new_length) <= _LONGEST_RESIZED,
            f"an axis of more than {_LONGEST_RESIZED} pixels",
        )
        outputs = np.arange(new_length)
        fixed = (outputs * ((length << 16) // new_length + 1)) >> 16
        scale = np.float32(length) / np.float32(new_length)
        real = np.floor(outputs.astype(np.float32) * scale)
        last = length - 1
        writer.require(
            bool(np.array_equal(np.minimum(fixed, last), np.minimum(real, last))),
            f"{length} to {new_length} pixels, where roundings differ",
        )


_ALL = (*FLOATS, *CODES, I32)

RULES: dict[OperationType, Rule] = {
    OperationType.MEAN: Rule(
        _reduction("MEAN"),
        (*FLOATS, *CODES),
        "MEAN",
        "an output that is quantised unlike the input",
    ),
    OperationType.REDUCE_SUM: Rule(_reduction("SUM"), FLOATS, "SUM"),
    **alike("REDUCE_PROD", _reduction, FLOATS),
    **alike("REDUCE_MAX REDUCE_MIN", _reduction, (*FLOATS, *CODES)),
    **alike("REDUCE_ALL REDUCE_ANY", _reduction, (B8,)),
    OperationType.ARGMAX: Rule(_arg("ARG_MAX", "ArgMaxOptions"), _ALL, "ARG_MAX"),
    OperationType.ARGMIN: Rule(_arg("ARG_MIN", "ArgMinOptions"), _ALL, "ARG_MIN"),
    OperationType.SOFTMAX: Rule(
        _softmax,
        (*FLOATS, *CODES),
        "SOFTMAX; TRANSPOSE around it for another axis than the last",
        "beta below 1/1024 or above 1024",
    ),
    OperationType.LOG_SOFTMAX: Rule(
        _log_softmax,
        FLOATS,
        "LOG_SOFTMAX; with beta other than 1 after REDUCE_MAX, SUB, MUL",
        "beta below 1/1024 or above 1024",
    ),
    OperationType.L2_NORMALIZATION: Rule(
        _l2_normalization,
        (*FLOATS, *CODES),
        "L2_NORMALIZATION, codes as real values; TRANSPOSE as for SOFTMAX",
        "codes of a scale below 2^-16: LiteRT cuts small norms off",
    ),
    OperationType.LOCAL_RESPONSE_NORMALIZATION: Rule(
        _local_response,
        FLOATS,
        "LOCAL_RESPONSE_NORMALIZATION, RESHAPE to four axes; TRANSPOSE as for SOFTMAX",
    ),
    OperationType.INSTANCE_NORMALIZATION: Rule(
        _instance_normalization,
        FLOATS,
        "MEAN, SUB, MUL, MEAN, ADD, SQRT, DIV, MUL, ADD",
    ),
    OperationType.BATCH_MATMUL: Rule(
        _batch_matmul, (*FLOATS, CODES[1]), "BATCH_MATMUL", "int32: LiteRT has none"
    ),
    OperationType.RESIZE_BILINEAR: Rule(
        _resize("RESIZE_BILINEAR", "ResizeBilinearOptions"),
        (*FLOATS, *CODES),
        "RESIZE_BILINEAR, codes as real values; TRANSPOSE around it for NCHW",
    ),
    OperationType.RESIZE_NEAREST_NEIGHBOR: Rule(
        _resize("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
        (*FLOATS, *CODES),
        "RESIZE_NEAREST_NEIGHBOR; TRANSPOSE around it for NCHW",
        "lengths at which fixed-point positions round to other pixels",
    ),
}
