"""Runs one case through a device's HAL interface and says what is wrong, if anything.

A case runs as it is, with output dimensions cleared (the driver finds them), and with
its first output one byte short, as the suite's driver tests do. Where the way of
executing cannot report shapes, it is to refuse outputs that are open.

Outputs pass by the criteria of the public test suite. One rule is stricter: the suite
lets 32-bit integers be off by one, here they are exact, for they are counts, indices,
shapes, or sums that have one right answer.
Source: the element-wise comparison of the suite's generated tests, Android 13.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.errors import MISSED
from asyncnn.hal.operands import QUANT8_TYPES, is_tensor
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import DEFAULT_OPTIONS, UINT64_MAX, ExecutionOptions
from asyncnn.tools.conformance.executing import (
    CLIENT_PATHS,
    PATHS,
    REFUSES_OPEN_OUTPUTS,
    Execute,
    build_request,
)
from asyncnn.tools.conformance.preparing import Prepare
from asyncnn.tools.conformance.vectors import Case, ExpectedOutput, operation_types
from asyncnn.tools.samples import HALF_TOLERANCE, Tolerance, errors_and_limits

_EXACT = Tolerance(0)
_FLOAT32 = Tolerance()
_FLOAT16 = Tolerance(rtol=HALF_TOLERANCE, atol=HALF_TOLERANCE)
_ONE_STEP = Tolerance(1)
_MOBILENET = Tolerance(3)

_QUANT8 = QUANT8_TYPES | {hal.OperandType.TENSOR_QUANT8_SYMM}
_QUANT16 = {hal.OperandType.TENSOR_QUANT16_ASYMM, hal.OperandType.TENSOR_QUANT16_SYMM}
_WHOLE = (
    hal.OperandType.TENSOR_INT32,
    hal.OperandType.INT32,
    hal.OperandType.TENSOR_BOOL8,
)
BY_TYPE = {
    hal.OperandType.TENSOR_FLOAT32: _FLOAT32,
    hal.OperandType.TENSOR_FLOAT16: _FLOAT16,
    **dict.fromkeys(_WHOLE, _EXACT),
    **dict.fromkeys(_QUANT8 | _QUANT16, _ONE_STEP),
}
"""What outputs of each type may be off by, as a rule."""


def compare(case: Case, outputs: Sequence[Array]) -> list[str]:
    """Return one line for each output that does not pass; none if the case passes."""
    if len(outputs) != len(case.outputs):
        return [f"{len(outputs)} outputs where {len(case.outputs)} are expected"]
    indexes = case.model.main.output_indexes
    mismatches: list[str] = []
    for position, (index, expected, actual) in enumerate(
        zip(indexes, case.outputs, outputs, strict=True)
    ):
        type_ = hal.OperandType(case.model.main.operands[index].type)
        problem = _compare_output(case, type_, expected, actual)
        if problem:
            mismatches.append(f"output {position} ({type_.name}): {problem}")
    return mismatches


def tolerance(case: Case, type_: hal.OperandType) -> Tolerance:
    """Return what an output of ``type_`` may be off by.

    :raises KeyError: if the suite has no criterion for outputs of this type.
    """
    if type_ in _QUANT8 and "mobilenet" in case.name:
        return _MOBILENET
    if type_ is hal.OperandType.TENSOR_FLOAT32 and _has_half_precision(case):
        return _FLOAT16
    return BY_TYPE[type_]


def _has_half_precision(case: Case) -> bool:
    return case.relaxed or any(
        operand.type == hal.OperandType.TENSOR_FLOAT16
        for subgraph in (case.model.main, *case.model.referenced)
        for operand in subgraph.operands
    )


def _compare_output(
    case: Case, type_: hal.OperandType, expected: ExpectedOutput, actual: Array
) -> str:
    if actual.dtype != expected.value.dtype:
        return f"dtype is {actual.dtype}, expected {expected.value.dtype}"
    if actual.shape != expected.value.shape:
        return f"shape is {actual.shape}, expected {expected.value.shape}"
    if expected.ignored:
        return ""
    if case.multinomial_tolerance:
        return _compare_frequencies(case, actual)
    if type_ not in BY_TYPE:
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


SHORT_LOOP_TIMEOUT_NS = 1_000_000
"""What the suite grants the WHILE that never ends."""

_FIXED_SHAPES = frozenset(
    {hal.OperationType.RANK, hal.OperationType.IF, hal.OperationType.WHILE}
)
"""Operations whose models the suite never runs with output dimensions cleared."""


class RefusedError(Exception):
    """The device does not take the model."""


async def judge(
    case: Case,
    prepare: Prepare,
    path: str,
    version: hal.HalVersion = hal.HalVersion.V1_3,
    *,
    by_client: bool = False,
) -> list[str]:
    """Return what is wrong with the answers to ``case``; empty if nothing.

    ``prepare`` asks the device as a caller of ``version`` does. If that is a client
    library, it may execute by another call what ``path`` cannot carry.

    :raises RefusedError: if the device does not take a model that it should.
    """
    execute = (CLIENT_PATHS if by_client else PATHS)[path]
    if case.expect_failure:
        return await _judge_failure(case, prepare, execute)
    refuses_open = path in REFUSES_OPEN_OUTPUTS or version < hal.HalVersion.V1_2
    prepared = await _prepared(prepare, case.model)
    if refuses_open and _has_open_outputs(case.model):
        return await _judge_refusal(case, prepared, execute)
    problems = await _judge_run(case, prepared, execute)
    if operation_types(case) & _FIXED_SHAPES:
        return problems
    opened = _with_open_outputs(case.model)
    dynamic = await _prepared(prepare, opened)
    if refuses_open and _has_open_outputs(opened):
        return problems + await _judge_refusal(case, dynamic, execute)
    problems += [f"open outputs: {p}" for p in await _judge_run(case, dynamic, execute)]
    return problems + await _judge_short(case, dynamic, execute)


async def _prepared(prepare: Prepare, model: hal.Model) -> hal.IPreparedModel:
    try:
        return await prepare(model)
    except hal.AsyncnnError as error:
        raise RefusedError(f"{error.status.name}: {error}") from error


async def _judge_run(
    case: Case, prepared: hal.IPreparedModel, execute: Execute
) -> list[str]:
    """Run twice, without and with timing: buffers that are reused must not matter."""
    problems: list[str] = []
    for measure in hal.MeasureTiming:
        bound = build_request(case)
        result = await execute(prepared, bound.request, ExecutionOptions(measure))
        if result.status is not hal.ErrorStatus.NONE:
            return [f"{result.status.name}: {result.reason}"]
        shapes = result.output_shapes
        if shapes and len(shapes) != len(case.outputs):
            return [f"{len(shapes)} output shapes reported"]
        problems = compare(case, bound.outputs(case, shapes))
        problems += _judge_timing(result, measure)
        if problems:
            break
    return problems


def _judge_timing(result: ExecutionResult, measure: hal.MeasureTiming) -> list[str]:
    timing = result.timing
    if measure is hal.MeasureTiming.NO and timing != hal.NO_TIMING:
        return ["timing was not asked for"]
    if UINT64_MAX > timing.time_on_device > timing.time_in_driver:
        return ["time on device exceeds time in driver"]
    return []


async def _judge_refusal(
    case: Case, prepared: hal.IPreparedModel, execute: Execute
) -> list[str]:
    bound = build_request(case)
    result = await execute(prepared, bound.request, DEFAULT_OPTIONS)
    if result.status is not hal.ErrorStatus.INVALID_ARGUMENT:
        return [f"open outputs: {result.status.name} where they are to be refused"]
    return []


async def _judge_short(
    case: Case, prepared: hal.IPreparedModel, execute: Execute
) -> list[str]:
    if case.outputs[0].value.nbytes <= 1:
        return []
    bound = build_request(case, short_by=1)
    result = await execute(prepared, bound.request, DEFAULT_OPTIONS)
    if result.status is not hal.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        return [f"short output: {result.status.name}: {result.reason}"]
    dimensions = [shape.dimensions for shape in result.output_shapes]
    if dimensions != [output.value.shape for output in case.outputs]:
        return [f"short output: shapes {dimensions} are reported"]
    sufficient = [shape.is_sufficient for shape in result.output_shapes]
    if sufficient != [False] + [True] * (len(sufficient) - 1):
        return [f"short output: is_sufficient {sufficient} is reported"]
    return []


async def _judge_failure(case: Case, prepare: Prepare, execute: Execute) -> list[str]:
    try:
        prepared = await _prepared(prepare, case.model)
    except RefusedError:
        return []
    bound = build_request(case)
    is_endless = hal.OperationType.WHILE in operation_types(case)
    options = ExecutionOptions(
        hal.MeasureTiming.YES,
        loop_timeout=SHORT_LOOP_TIMEOUT_NS if is_endless else None,
    )
    result = await execute(prepared, bound.request, options)
    if result.status is hal.ErrorStatus.NONE:
        return ["succeeded, but is expected to fail"]
    if result.output_shapes or result.timing != hal.NO_TIMING:
        return ["a failure reports shapes or timing"]
    if is_endless and result.status not in MISSED:
        return [f"{result.status.name} where a deadline is missed"]
    return []


def _with_open_outputs(model: hal.Model) -> hal.Model:
    """Return the model with every axis of its outputs unknown and ranks kept."""
    opened = set(model.main.output_indexes)
    operands = tuple(
        replace(operand, dimensions=(0,) * len(operand.dimensions))
        if index in opened
        else operand
        for index, operand in enumerate(model.main.operands)
    )
    return replace(model, main=replace(model.main, operands=operands))


def _has_open_outputs(model: hal.Model) -> bool:
    """Return whether a tensor that the model gives has no known size above 0."""
    return any(
        is_tensor(operand.type) and (not operand.dimensions or 0 in operand.dimensions)
        for operand in (model.main.operands[i] for i in model.main.output_indexes)
    )
