"""Mutations that may leave a model legal, and why.

They are the exceptions of the public suite, and two that it has for the newer
operations: PACK with fewer inputs, and signed filters beside signed inputs. Each
function returns the reason, or an empty string if the mutant must be refused.
"""

from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.hal.types import Model, OperandType, Operation
from asyncnn.hal.types import OperationType as Op

_F16 = OperandType.TENSOR_FLOAT16
_F32 = OperandType.TENSOR_FLOAT32
_I32 = OperandType.TENSOR_INT32
_Q8 = OperandType.TENSOR_QUANT8_ASYMM
_Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_Q8SYM = OperandType.TENSOR_QUANT8_SYMM
_Q8PC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_TENSORS = frozenset(OperandType) - SCALAR_TYPES

_ANY_TYPE: dict[int, frozenset[OperandType]] = dict.fromkeys(
    (Op.CAST, Op.ARGMAX, Op.ARGMIN), frozenset({_F16, _F32, _I32, _Q8, _Q8S})
)
"""Types that all operands of an operation may have, whatever the others have."""

_INPUT_TYPES: dict[tuple[int, int], frozenset[OperandType]] = {
    (Op.LSH_PROJECTION, 1): frozenset(OperandType),
    (Op.QUANTIZE, 0): frozenset({_F16, _F32}),
    (Op.RANDOM_MULTINOMIAL, 0): frozenset({_F16, _F32}),
    (Op.DEQUANTIZE, 0): frozenset({_Q8, _Q8S, _Q8SYM, _Q8PC}),
    (Op.CONV_2D, 1): frozenset({_Q8, _Q8S, _Q8PC}),
    (Op.DEPTHWISE_CONV_2D, 1): frozenset({_Q8, _Q8S, _Q8PC}),
    (Op.GROUPED_CONV_2D, 1): frozenset({_Q8, _Q8S, _Q8PC}),
    (Op.TRANSPOSE_CONV_2D, 1): frozenset({_Q8, _Q8S, _Q8PC}),
    (Op.AXIS_ALIGNED_BBOX_TRANSFORM, 1): frozenset({_Q8, _Q8S}),
    (Op.RANK, 0): _TENSORS,
}
"""Types that one input of an operation may have, whatever the others have."""

_OUTPUT_TYPES: dict[int, frozenset[OperandType]] = {
    Op.QUANTIZE: frozenset({_Q8, _Q8S}),
    Op.DEQUANTIZE: frozenset({_F16, _F32}),
}

_FREE_OUTPUTS = frozenset(
    {
        Op.SPLIT,
        Op.UNIDIRECTIONAL_SEQUENCE_LSTM,
        Op.UNIDIRECTIONAL_SEQUENCE_RNN,
        Op.BIDIRECTIONAL_SEQUENCE_LSTM,
        Op.BIDIRECTIONAL_SEQUENCE_RNN,
    }
)

_POOLS = (Op.AVERAGE_POOL_2D, Op.MAX_POOL_2D, Op.L2_POOL_2D)
_OPTIONAL_LAST: dict[int, tuple[int, ...]] = {
    **dict.fromkeys((Op.CONV_2D, *_POOLS), (8, 11)),
    Op.DEPTHWISE_CONV_2D: (9, 12),
    Op.SPACE_TO_DEPTH: (3,),
    Op.DEPTH_TO_SPACE: (3,),
    Op.BATCH_TO_SPACE_ND: (3,),
    Op.SPACE_TO_BATCH_ND: (4,),
    Op.L2_NORMALIZATION: (2,),
    Op.LOCAL_RESPONSE_NORMALIZATION: (6,),
    Op.SOFTMAX: (3,),
}
"""Input counts with which the last input may be left out."""

_INTEGER_MAY_FOLLOW: dict[int, tuple[int, ...]] = {
    Op.L2_NORMALIZATION: (1,),
    Op.LOCAL_RESPONSE_NORMALIZATION: (5,),
    Op.SOFTMAX: (2,),
    Op.RESIZE_BILINEAR: (3, 4, 5),
    Op.RESIZE_NEAREST_NEIGHBOR: (3, 4, 5),
}
"""Input counts after which one more scalar, an axis or a flag, may be legal."""


def why_type_fits(model: Model, index: int, type_: OperandType) -> str:
    """Say why operand ``index`` may have another type."""
    for operation in model.main.operations:
        if _takes(operation, index, type_):
            return f"{Op(operation.type).name} has more than one type there"
    return ""


def _takes(operation: Operation, index: int, type_: OperandType) -> bool:
    kind = operation.type
    mentioned = index in operation.inputs or index in operation.outputs
    if mentioned and type_ in _ANY_TYPE.get(kind, ()):
        return True
    if index in operation.outputs[:1] and type_ in _OUTPUT_TYPES.get(kind, ()):
        return True
    return any(
        operand == index and type_ in _INPUT_TYPES.get((kind, position), ())
        for position, operand in enumerate(operation.inputs)
    )


def why_operand_goes(model: Model, index: int) -> str:
    """Say why a model may do without operand ``index``."""
    if not model.main.operands[index].number_of_consumers:
        return "nothing reads the operand"
    for operation in model.main.operations:
        if operation.type in _FREE_OUTPUTS and index in operation.outputs:
            return f"{Op(operation.type).name} has any number of outputs"
    return ""


def why_input_goes(operation: Operation, position: int) -> str:
    """Say why an operation may do without the input at ``position``."""
    count, is_last = len(operation.inputs), position == len(operation.inputs) - 1
    match operation.type:
        case Op.CONCATENATION:
            goes = count > 2 and not is_last
        case Op.PACK:
            goes = count > 2 and position > 0
        case Op.RESIZE_BILINEAR:
            goes = count >= 4 and position >= 3
        case Op.RESIZE_NEAREST_NEIGHBOR:
            goes = count >= 5 and position >= 3
        case _:
            goes = is_last and count in _OPTIONAL_LAST.get(operation.type, ())
    return f"{Op(operation.type).name} need not have that input" if goes else ""


def why_integer_fits(operation: Operation) -> str:
    """Say why an INT32 scalar may follow the inputs of an operation."""
    if len(operation.inputs) in _INTEGER_MAY_FOLLOW.get(operation.type, ()):
        return f"{Op(operation.type).name} may have that input"
    return ""
