"""Arithmetic, activations, comparison and logic in TFLite.

8-bit codes whose operator TFLite has for floats only, or computes slowly, are computed
as real values between DEQUANTIZE and QUANTIZE, which rounds once.
"""

from asyncnn.devices.litert.operand_tensors import stored_type
from asyncnn.devices.litert.operation_writer import (
    B8,
    CODES,
    FLOATS,
    I32,
    OperationWriter,
    Rule,
    Write,
    alike,
)
from asyncnn.devices.litert.tflite_graph import (
    FLOAT32,
    INT32,
    UINT8,
    WrittenTensor,
    options,
)
from asyncnn.hal.types import OperandType, OperationType

_LARGEST_CODE = 255


def _arithmetic(name: str) -> Write:
    def write(writer: OperationWriter) -> None:
        activation = writer.activation(2)
        if writer.operation.outputs[0].type == I32:
            writer.require(activation == 0, "int32 with a fused activation")
        if name == "MUL":
            writer.require_ratio(0, 1)
        else:
            writer.require_ratio(0)
            writer.require_ratio(1)
        kind = f"{name.capitalize()}Options"
        table = options(kind, FusedActivationFunction=activation)
        writer.emit(name, [writer.input(0), writer.input(1)], writer.output(), table)

    return write


def _alone(name: str, kind: str | None = None, count: int = 1) -> Write:
    """Write an operator of ``count`` inputs as they are computed."""

    def write(writer: OperationWriter) -> None:
        table = None if kind is None else options(kind)
        inputs = [writer.input(index) for index in range(count)]
        writer.emit(name, inputs, writer.output(), table)

    return write


def _precise_exp(writer: OperationWriter) -> None:
    """XNNPACK computes EXP less exactly than the HAL wants it."""
    table = options("ExpOptions")
    writer.outside_xnnpack("EXP", writer.input(0), writer.output(), table)


def _reciprocal_root(writer: OperationWriter) -> None:
    """RSQRT of XNNPACK makes NaN of 0."""
    source = writer.input(0)
    root = writer.emit("SQRT", [source], writer.floats(source.shape))
    writer.pair("DIV", writer.graph.real(1), root, writer.output())


def _on_floats(name: str, kind: str | None = None, count: int = 1) -> Write:
    """Write an operator of ``count`` inputs; codes are computed as real values."""

    def write(writer: OperationWriter) -> None:
        table = None if kind is None else options(kind)
        writer.emit_on_floats(name, range(count), table)

    return write


def _prelu(writer: OperationWriter) -> None:
    writer.require(
        writer.output_shape() == writer.operation.shape(0),
        "the input is broadcast to alpha",
    )
    writer.emit_on_floats("PRELU", (0, 1))


def _elu(writer: OperationWriter) -> None:
    """ELU of TFLite has alpha 1; another one scales what is below 0."""
    alpha = writer.operation.real(1)
    source = writer.input(0)
    if alpha == 1:
        writer.emit("ELU", [source], writer.output())
        return
    graph, shape = writer.graph, source.shape
    below = writer.pair("MINIMUM", source, graph.real(0))
    curved = writer.emit("ELU", [below], writer.floats(shape))
    scaled = writer.pair("MUL", curved, graph.real(alpha))
    above = writer.emit("RELU", [source], writer.floats(shape))
    writer.pair("ADD", above, scaled, writer.output())


def _comparison(name: str) -> Write:
    kind = f"{name.title().replace('_', '')}Options"

    def write(writer: OperationWriter) -> None:
        first, second = writer.operand(0), writer.operand(1)
        pair = [writer.input(0), writer.input(1)]
        if first.type in CODES:
            writer.require(
                writer.quantization(0) == writer.quantization(1),
                "codes of two quantisations",
            )
            pair = [writer.real_values(tensor) for tensor in pair]
        elif first.type == B8 and name not in ("EQUAL", "NOT_EQUAL"):
            pair = [_as_integers(writer, tensor) for tensor in pair]
        writer.require(first.type == second.type, "operands of two types")
        writer.emit(name, pair, writer.output(), options(kind))

    return write


def _as_integers(writer: OperationWriter, tensor: WrittenTensor) -> WrittenTensor:
    target = writer.graph.tensor(INT32, tensor.shape)
    return writer.emit("CAST", [tensor], target, options("CastOptions"))


def _select(writer: OperationWriter) -> None:
    chosen = [writer.quantized_like_output(index) for index in (1, 2)]
    inputs = [writer.input(0), *chosen]
    writer.emit("SELECT", inputs, writer.output(), options("SelectOptions"))


def _cast(writer: OperationWriter) -> None:
    """Stored values are converted, so that codes are taken as they are stored."""
    stored = stored_type(writer.operand(0))
    target = stored_type(writer.operation.outputs[0])
    source = writer.input(0, None if stored == "FLOAT16" else stored)
    writer.require(
        not (source.type == FLOAT32 and target == INT32),
        "floats beyond int32 saturate in the HAL",
    )
    writer.require(
        stored == target or target in (FLOAT32, "FLOAT16", INT32, UINT8),
        f"casts to {target} are not claimed",
    )
    if target == UINT8 and stored != UINT8:
        source = _clamped(writer, source)
    if stored == target:
        writer.reshape(source, writer.output(type_=source.type))
        return
    writer.emit("CAST", [source], writer.output(type_=target), options("CastOptions"))


def _clamped(writer: OperationWriter, source: WrittenTensor) -> WrittenTensor:
    """Return ``source`` within the range of unsigned codes."""
    for name, bound in (("MAXIMUM", 0), ("MINIMUM", _LARGEST_CODE)):
        limit = (
            writer.graph.real(bound)
            if source.type == FLOAT32
            else writer.graph.integers([bound])
        )
        source = writer.pair(name, source, limit, writer.graph.like(source))
    return source


_NUMBERS = (*FLOATS, *CODES)
_REALS = "; codes as real values"

RULES: dict[OperationType, Rule] = {
    **alike(
        "ADD SUB MUL",
        _arithmetic,
        (*_NUMBERS, I32),
        "",
        "int32 with a fused activation",
    ),
    **alike("DIV", _arithmetic, FLOATS, "", "int32: LiteRT truncates and fails on 0"),
    **alike(
        "MAXIMUM MINIMUM",
        lambda name: _on_floats(name, "MaximumMinimumOptions", 2),
        (*_NUMBERS, I32),
        _REALS,
    ),
    OperationType.POW: Rule(_alone("POW", "PowOptions", 2), FLOATS, "POW"),
    OperationType.PRELU: Rule(
        _prelu, _NUMBERS, f"PRELU{_REALS}", "an input that is broadcast to alpha"
    ),
    **alike("RELU", _on_floats, _NUMBERS, _REALS),
    OperationType.RELU1: Rule(
        _on_floats("RELU_N1_TO_1"), _NUMBERS, f"RELU_N1_TO_1{_REALS}"
    ),
    **alike("RELU6", _on_floats, _NUMBERS, _REALS),
    **alike("LOGISTIC TANH", _alone, _NUMBERS),
    OperationType.ELU: Rule(
        _elu, FLOATS, "ELU; with alpha other than 1: MINIMUM, ELU, MUL, RELU, ADD"
    ),
    OperationType.HARD_SWISH: Rule(
        _on_floats("HARD_SWISH", "HardSwishOptions"), _NUMBERS, f"HARD_SWISH{_REALS}"
    ),
    OperationType.ABS: Rule(
        _alone("ABS", "AbsOptions"), FLOATS, "ABS", "int32: slower by far"
    ),
    OperationType.EXP: Rule(_precise_exp, FLOATS, "EXP, kept from XNNPACK"),
    **alike("FLOOR LOG", _alone, FLOATS),
    OperationType.NEG: Rule(_alone("NEG", "NegOptions"), (*FLOATS, I32), "NEG"),
    OperationType.RSQRT: Rule(
        _reciprocal_root, FLOATS, "SQRT, DIV", "codes: LiteRT fails on negative ones"
    ),
    **alike("SQRT", _alone, FLOATS),
    **alike(
        "EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL",
        _comparison,
        (*FLOATS, I32, *CODES, B8),
        "",
        "codes of two quantisations: fixed-point comparison is not exact",
    ),
    **alike(
        "SELECT",
        lambda name: _select,
        (*_NUMBERS, I32),
        ", codes after QUANTIZE",
        typed_by=1,
    ),
    **alike("QUANTIZE", _alone, FLOATS),
    OperationType.DEQUANTIZE: Rule(
        _alone("DEQUANTIZE"),
        (*CODES, OperandType.TENSOR_QUANT8_SYMM),
        "DEQUANTIZE",
        "per channel: only constants are, and those are folded",
    ),
    OperationType.CAST: Rule(
        _cast,
        (*FLOATS, *CODES, I32, B8, OperandType.TENSOR_QUANT8_SYMM),
        "CAST; to codes after MAXIMUM and MINIMUM; RESHAPE between equal types",
        "float to int32, which saturates in the HAL; 16-bit codes",
    ),
}
