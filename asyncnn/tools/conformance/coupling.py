"""Quantisation coupling: signed 8-bit tensors behave as unsigned ones less 128.

The twin of a case has its unsigned 8-bit tensors signed, or the other way round; zero
points and codes move by 128, so that all real values are the same.

Source: the public suite's driver tests, HAL 1.3 (quantization coupling).
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.conformance.rewriting import Stored, is_single, rewritten, take_apart
from asyncnn.tools.conformance.vectors import Case

EXEMPT = frozenset(
    {
        OperationType.CAST,
        OperationType.HASHTABLE_LOOKUP,
        OperationType.LSH_PROJECTION,
        OperationType.PAD_V2,
        OperationType.QUANTIZED_16BIT_LSTM,
    }
)
"""Operations that read or write codes as such, or have no signed form."""

_TWIN = {
    OperandType.TENSOR_QUANT8_ASYMM: OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: OperandType.TENSOR_QUANT8_ASYMM,
}
_SUFFIX = {
    OperandType.TENSOR_QUANT8_ASYMM: "signed",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "unsigned",
}
_SHIFT = 128


def twin(case: Case) -> Case | None:
    """Return the twin of a case of one operation.

    None if it has none: there is no 8-bit tensor in it, its operation is exempt, or is
    not allowed with the other type.
    """
    if not is_single(case) or case.model.main.operations[0].type in EXEMPT:
        return None
    main = case.model.main
    types = {OperandType(operand.type) for operand in main.operands}
    if len(types & _TWIN.keys()) != 1:
        return None
    (codes,) = types & _TWIN.keys()
    stored = [_shifted(each) for each in take_apart(case)]
    try:
        return rewritten(case, _SUFFIX[codes], stored, main.operations)
    except InvalidArgumentError:
        return None


def twin_outputs(case: Case, outputs: Sequence[Array]) -> list[Array]:
    """Return what the twin must give, element by element, if ``case`` gives these."""
    main = case.model.main
    types = [main.operands[index].type for index in main.output_indexes]
    return [
        _shifted_codes(output) if type_ in _TWIN else output
        for type_, output in zip(types, outputs, strict=True)
    ]


def _shifted(stored: Stored) -> Stored:
    operand, value = stored.operand, stored.value
    if operand.type not in _TWIN:
        return stored
    source = OperandType(operand.type)
    unsigned = source == OperandType.TENSOR_QUANT8_ASYMM
    zero_point = operand.zero_point - (_SHIFT if unsigned else -_SHIFT)
    return Stored(
        replace(operand, type=_TWIN[source], zero_point=zero_point),
        None if value is None else _shifted_codes(value),
        stored.ignored,
    )


def _shifted_codes(codes: Array) -> Array:
    if codes.dtype == np.uint8:
        return (codes.astype(np.int16) - _SHIFT).astype(np.int8)
    return (codes.astype(np.int16) + _SHIFT).astype(np.uint8)
