"""Runs one case through a device's HAL interface and says what is wrong, if anything.

A case runs as it is, with output dimensions cleared (the driver finds them), and with
its first output one byte short, as the suite's driver tests do. Where the way of
executing cannot report shapes, it is to refuse outputs that are open.
"""

from msgspec.structs import replace

from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.operands import is_tensor
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    ErrorStatus,
    HalVersion,
    MeasureTiming,
    Model,
    OperationType,
)
from asyncnn.tools.conformance.criteria import compare
from asyncnn.tools.conformance.executing import (
    CLIENT_PATHS,
    PATHS,
    REFUSES_OPEN_OUTPUTS,
    Execute,
    build_request,
)
from asyncnn.tools.conformance.preparing import Prepare
from asyncnn.tools.conformance.vectors import Case, operation_types

SHORT_LOOP_TIMEOUT_NS = 1_000_000
"""What the suite grants the WHILE that never ends."""

_FIXED_SHAPES = frozenset({OperationType.RANK, OperationType.IF, OperationType.WHILE})
"""Operations whose models the suite never runs with output dimensions cleared."""

_MISSED = frozenset(
    {ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT}
)


class RefusedError(Exception):
    """The device does not take the model."""


async def judge(
    case: Case,
    prepare: Prepare,
    path: str,
    version: HalVersion = HalVersion.V1_3,
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
    refuses_open = path in REFUSES_OPEN_OUTPUTS or version < HalVersion.V1_2
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


async def _prepared(prepare: Prepare, model: Model) -> IPreparedModel:
    try:
        return await prepare(model)
    except AsyncnnError as error:
        raise RefusedError(f"{error.status.name}: {error}") from error


async def _judge_run(
    case: Case, prepared: IPreparedModel, execute: Execute
) -> list[str]:
    """Run twice, without and with timing: buffers that are reused must not matter."""
    problems: list[str] = []
    for measure in MeasureTiming:
        bound = build_request(case)
        result = await execute(prepared, bound.request, measure, None)
        if result.status is not ErrorStatus.NONE:
            return [f"{result.status.name}: {result.reason}"]
        shapes = result.output_shapes
        if shapes and len(shapes) != len(case.outputs):
            return [f"{len(shapes)} output shapes reported"]
        problems = compare(case, bound.outputs(case, shapes))
        problems += _judge_timing(result, measure)
        if problems:
            break
    return problems


def _judge_timing(result: ExecutionResult, measure: MeasureTiming) -> list[str]:
    timing = result.timing
    if measure is MeasureTiming.NO and timing != NO_TIMING:
        return ["timing was not asked for"]
    if UINT64_MAX > timing.time_on_device > timing.time_in_driver:
        return ["time on device exceeds time in driver"]
    return []


async def _judge_refusal(
    case: Case, prepared: IPreparedModel, execute: Execute
) -> list[str]:
    bound = build_request(case)
    result = await execute(prepared, bound.request, MeasureTiming.NO, None)
    if result.status is not ErrorStatus.INVALID_ARGUMENT:
        return [f"open outputs: {result.status.name} where they are to be refused"]
    return []


async def _judge_short(
    case: Case, prepared: IPreparedModel, execute: Execute
) -> list[str]:
    if case.outputs[0].value.nbytes <= 1:
        return []
    bound = build_request(case, short_by=1)
    result = await execute(prepared, bound.request, MeasureTiming.NO, None)
    if result.status is not ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
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
    is_endless = OperationType.WHILE in operation_types(case)
    loop_timeout = SHORT_LOOP_TIMEOUT_NS if is_endless else None
    result = await execute(prepared, bound.request, MeasureTiming.YES, loop_timeout)
    if result.status is ErrorStatus.NONE:
        return ["succeeded, but is expected to fail"]
    if result.output_shapes or result.timing != NO_TIMING:
        return ["a failure reports shapes or timing"]
    if is_endless and result.status not in _MISSED:
        return [f"{result.status.name} where a deadline is missed"]
    return []


def _with_open_outputs(model: Model) -> Model:
    """Return the model with every axis of its outputs unknown and ranks kept."""
    opened = set(model.main.output_indexes)
    operands = tuple(
        replace(operand, dimensions=(0,) * len(operand.dimensions))
        if index in opened
        else operand
        for index, operand in enumerate(model.main.operands)
    )
    return replace(model, main=replace(model.main, operands=operands))


def _has_open_outputs(model: Model) -> bool:
    """Tell whether a tensor that the model gives has no known size above 0."""
    return any(
        is_tensor(operand.type) and (not operand.dimensions or 0 in operand.dimensions)
        for operand in (model.main.operands[i] for i in model.main.output_indexes)
    )
