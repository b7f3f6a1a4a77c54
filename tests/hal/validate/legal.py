"""Mutations that may leave a model legal, and are therefore not tried.

They are the lists of the public suite, and two that it has for the newer operations:
PACK with fewer inputs, and signed filters beside signed inputs.
"""

from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.hal.types import Model, OperandType, Operation
from asyncnn.hal.types import OperationType as Op

F16 = OperandType.TENSOR_FLOAT16
F32 = OperandType.TENSOR_FLOAT32
I32 = OperandType.TENSOR_INT32
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
Q8SYM = OperandType.TENSOR_QUANT8_SYMM
Q8PC = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL


def may_have_type(model: Model, index: int, type_: OperandType) -> bool:
    return any(
        _operation_takes(operation, index, type_) for operation in model.main.operations
    )


def _operation_takes(operation: Operation, index: int, type_: OperandType) -> bool:
    inputs, outputs = operation.inputs, operation.outputs
    match operation.type:
        case Op.LSH_PROJECTION:
            return index == inputs[1]
        case Op.CAST | Op.ARGMAX | Op.ARGMIN:
            return type_ in (F16, F32, I32, Q8, Q8S)
        case Op.QUANTIZE:
            return (index == inputs[0] and type_ in (F16, F32)) or (
                index == outputs[0] and type_ in (Q8, Q8S)
            )
        case Op.RANDOM_MULTINOMIAL:
            return index == inputs[0] and type_ in (F16, F32)
        case Op.DEQUANTIZE:
            return (index == inputs[0] and type_ in (Q8, Q8S, Q8SYM, Q8PC)) or (
                index == outputs[0] and type_ in (F16, F32)
            )
        case (
            Op.CONV_2D
            | Op.DEPTHWISE_CONV_2D
            | Op.GROUPED_CONV_2D
            | Op.TRANSPOSE_CONV_2D
        ):
            return index == inputs[1] and type_ in (Q8, Q8S, Q8PC)
        case Op.AXIS_ALIGNED_BBOX_TRANSFORM:
            return index == inputs[1] and type_ in (Q8, Q8S)
        case Op.RANK:
            return index == inputs[0] and type_ not in SCALAR_TYPES
        case _:
            return False


def may_lose_operand(model: Model, index: int) -> bool:
    free = {
        Op.SPLIT,
        Op.UNIDIRECTIONAL_SEQUENCE_LSTM,
        Op.UNIDIRECTIONAL_SEQUENCE_RNN,
        Op.BIDIRECTIONAL_SEQUENCE_LSTM,
        Op.BIDIRECTIONAL_SEQUENCE_RNN,
    }
    return any(
        operation.type in free and index in operation.outputs
        for operation in model.main.operations
    )


OPTIONAL_LAST = {
    Op.CONV_2D: (8, 11),
    Op.AVERAGE_POOL_2D: (8, 11),
    Op.MAX_POOL_2D: (8, 11),
    Op.L2_POOL_2D: (8, 11),
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


def may_lose_input(operation: Operation, position: int) -> bool:
    count = len(operation.inputs)
    match operation.type:
        case Op.CONCATENATION:
            return count > 2 and position != count - 1
        case Op.PACK:
            return count > 2 and position != 0
        case Op.RESIZE_BILINEAR:
            return count >= 4 and position >= 3
        case Op.RESIZE_NEAREST_NEIGHBOR:
            return count >= 5 and position >= 3
        case _:
            counts = OPTIONAL_LAST.get(Op(operation.type), ())
            return count in counts and position == count - 1


def may_gain_integer(operation: Operation) -> bool:
    count = len(operation.inputs)
    match operation.type:
        case Op.L2_NORMALIZATION:
            return count == 1
        case Op.LOCAL_RESPONSE_NORMALIZATION:
            return count == 5
        case Op.SOFTMAX:
            return count == 2
        case Op.RESIZE_BILINEAR | Op.RESIZE_NEAREST_NEIGHBOR:
            return count < 6
        case _:
            return False
