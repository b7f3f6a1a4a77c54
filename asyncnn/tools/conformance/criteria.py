"""Decides whether outputs pass, by the criteria of the public test suite.

One rule is stricter: the suite lets 32-bit integers be off by one, here they are exact,
for they are counts, indices, shapes, or sums that have one right answer.
Source: the element-wise comparison of the suite's generated tests, Android 13.
"""

from collections.abc import Sequence

import numpy as np

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType
from asyncnn.tools.conformance.vectors import Case, ExpectedOutput
from asyncnn.tools.samples import Tolerance, errors_and_limits

_HALF = 5 * 0.0009765625
_EXACT = Tolerance(0)
_FLOAT32 = Tolerance()
_FLOAT16 = Tolerance(rtol=_HALF, atol=_HALF)
_ONE_STEP = Tolerance(1)
_MOBILENET = Tolerance(3)

_QUANT8 = QUANT8_TYPES | {OperandType.TENSOR_QUANT8_SYMM}
_QUANT16 = {OperandType.TENSOR_QUANT16_ASYMM, OperandType.TENSOR_QUANT16_SYMM}
_WHOLE = (OperandType.TENSOR_INT32, OperandType.INT32, OperandType.TENSOR_BOOL8)
_BY_TYPE = {
    OperandType.TENSOR_FLOAT32: _FLOAT32,
    OperandType.TENSOR_FLOAT16: _FLOAT16,
    **dict.fromkeys(_WHOLE, _EXACT),
    **dict.fromkeys(_QUANT8 | _QUANT16, _ONE_STEP),
}


def compare(case: Case, outputs: Sequence[Array]) -> list[str]:
    """Return one line for each output that does not pass; none if the case passes."""
    if len(outputs) != len(case.outputs):
        return [f"{len(outputs)} outputs where {len(case.outputs)} are expected"]
    indexes = case.model.main.output_indexes
    mismatches: list[str] = []
    for position, (index, expected, actual) in enumerate(
        zip(indexes, case.outputs, outputs, strict=True)
    ):
        type_ = OperandType(case.model.main.operands[index].type)
        problem = _compare_output(case, type_, expected, actual)
        if problem:
            mismatches.append(f"output {position} ({type_.name}): {problem}")
    return mismatches


def tolerance(case: Case, type_: OperandType) -> Tolerance:
    """Return what an output of ``type_`` may be off by.

    :raises KeyError: if the suite has no criterion for outputs of this type.
    """
    if type_ in _QUANT8 and "mobilenet" in case.name:
        return _MOBILENET
    if type_ is OperandType.TENSOR_FLOAT32 and _has_half_precision(case):
        return _FLOAT16
    return _BY_TYPE[type_]


def _has_half_precision(case: Case) -> bool:
    return case.relaxed or any(
        operand.type == OperandType.TENSOR_FLOAT16
        for subgraph in (case.model.main, *case.model.referenced)
        for operand in subgraph.operands
    )


def _compare_output(
    case: Case, type_: OperandType, expected: ExpectedOutput, actual: Array
) -> str:
    if actual.dtype != expected.value.dtype:
        return f"dtype is {actual.dtype}, expected {expected.value.dtype}"
    if actual.shape != expected.value.shape:
        return f"shape is {actual.shape}, expected {expected.value.shape}"
    if expected.ignored:
        return ""
    if case.multinomial_tolerance:
        return _compare_frequencies(case, actual)
    if type_ not in _BY_TYPE:
        return "no criterion for this type"
    return _compare_elements(expected.value, actual, tolerance(case, type_))


def _compare_elements(expected: Array, actual: Array, allowed: Tolerance) -> str:
    error, limit = errors_and_limits(actual, expected, allowed)
    failures = np.argwhere(~(error <= limit))
    if not len(failures):
        return ""
    first = tuple(int(i) for i in failures[0])
    steps = f"{allowed.lsb} steps"
    real = f"{allowed.atol:.4g} + {allowed.rtol:.4g} * |expected|"
    return (
        f"{len(failures)} of {error.size} elements differ, first at {list(first)}: "
        f"{float(actual[first]):.9g}, expected {float(expected[first]):.9g} "
        f"(largest error {np.nanmax(error, initial=0):.4g}, "
        f"allowed {real if expected.dtype.kind == 'f' else steps})"
    )


def _compare_frequencies(case: Case, actual: Array) -> str:
    """Compare how often each class is drawn with the softmax of the first input."""
    logits = case.inputs[0]
    if logits is None:
        return "the log-probabilities are omitted"
    weights = np.exp(logits.astype(np.float64).ravel())
    expected = weights / weights.sum()
    if not np.all((actual >= 0) & (actual < expected.size)):
        return f"a class is outside of [0, {expected.size})"
    drawn = np.bincount(actual.ravel(), minlength=expected.size) / actual.size
    worst = int(np.argmax(np.abs(drawn - expected)))
    if abs(drawn[worst] - expected[worst]) <= case.multinomial_tolerance:
        return ""
    return (
        f"class {worst} is drawn with frequency {drawn[worst]:.4g}, "
        f"expected {expected[worst]:.4g} +- {case.multinomial_tolerance}"
    )
