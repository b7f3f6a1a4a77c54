"""Models, requests, capabilities and statuses in the words of another version.

`compliant_with` says whether a version can say the same; `convert_to` says it there
and logs what is lost; `canonical_model` and `canonical_request` say it in the newest.

Source: HAL 1.0 to 1.3/types.hal; for capabilities, the conversions of the HAL's
utilities. Unlike them, a table made from HAL 1.0 or 1.1 figures lists
TENSOR_QUANT8_ASYMM itself, too.
"""

import logging
from collections.abc import Iterable
from typing import TypeAlias, overload

from msgspec.structs import astuple

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import SCALAR_TYPES, is_extension_type
from asyncnn.hal.operations import check_operation
from asyncnn.hal.performance import NO_PERFORMANCE_INFO, Performances, performance_of
from asyncnn.hal.types import (
    BufferToken,
    Capabilities,
    ErrorStatus,
    HalVersion,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandPerformance,
    OperandType,
    Operation,
    PerformanceInfo,
    Request,
    Subgraph,
)
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.validate.operand import EXTENSION_RULES, TYPE_RULES
from asyncnn.hal.versions import v1_0, v1_1, v1_2

_LAST_OF_1_0 = ErrorStatus.INVALID_ARGUMENT


def is_compliant_status(status: ErrorStatus, version: HalVersion) -> bool:
    """Return whether ``version`` has this status."""
    return version >= HalVersion.V1_3 or status <= _LAST_OF_1_0


def convert_status(status: ErrorStatus, version: HalVersion) -> ErrorStatus:
    """Return the status that stands for ``status`` in ``version``.

    Before HAL 1.3 missed deadlines and exhausted resources are GENERAL_FAILURE. So is
    what a driver has returned that is no status; one that is a plain integer counts.
    """
    try:
        status = ErrorStatus(status)
    except ValueError:
        return ErrorStatus.GENERAL_FAILURE
    return (
        status if is_compliant_status(status, version) else ErrorStatus.GENERAL_FAILURE
    )


AnyRequest: TypeAlias = Request | v1_0.Request


def is_compliant_request(request: AnyRequest, version: HalVersion) -> bool:
    """Return whether ``version`` can express a valid request: its pools decide."""
    return version >= HalVersion.V1_3 or _have_pools(request.pools, version)


def canonical_request(request: AnyRequest) -> Request:
    """Return the request in the newest shape."""
    if isinstance(request, Request):
        return request
    return Request(request.inputs, request.outputs, request.pools)


def convert_request(request: AnyRequest, version: HalVersion) -> AnyRequest:
    """Return the request in the shape of ``version``.

    :raises InvalidArgumentError: if it names a buffer of the device, for which no
        memory can stand in.
    """
    newest = canonical_request(request)
    if version >= HalVersion.V1_3:
        return newest
    pools = tuple(pool for pool in newest.pools if isinstance(pool, Memory))
    if len(pools) < len(newest.pools):
        raise InvalidArgumentError(f"{version.title} has no buffers of the device")
    return v1_0.Request(newest.inputs, newest.outputs, pools)


AnyModel: TypeAlias = Model | v1_2.Model | v1_1.Model | v1_0.Model


def is_compliant_model(model: AnyModel, version: HalVersion) -> bool:
    """Return whether ``version`` can express a valid model without loss.

    Whether it may be computed with less precision is not asked: HAL 1.0 has no way to
    allow it, and the full precision is always right.
    """
    newest = canonical_model(model)
    return fits_beside_operations(newest, version) and not noncompliant_operations(
        newest, version
    )


def fits_beside_operations(model: Model, version: HalVersion) -> bool:
    """Return whether ``version`` can express all but maybe some operations."""
    return (
        not (model.referenced and version < HalVersion.V1_3)
        and not (model.extension_name_to_prefix and version < HalVersion.V1_2)
        and _have_pools(model.pools, version)
        and all(_has_operand(operand, version) for operand in model.main.operands)
    )


def noncompliant_operations(model: AnyModel, version: HalVersion) -> frozenset[int]:
    """Return the indices of the main subgraph's operations that ``version`` lacks.

    An operation counts if it is newer, is used in a newer way, or has an operand of a
    type, lifetime or unknown rank that is newer.
    """
    newest = canonical_model(model)
    main = newest.main
    lacking = {
        index
        for index, operand in enumerate(main.operands)
        if not _has_operand(operand, version)
    }
    return frozenset(
        index
        for index, operation in enumerate(main.operations)
        if not lacking.isdisjoint((*operation.inputs, *operation.outputs))
        or not _has_operation(operation, newest, version)
    )


def canonical_model(model: AnyModel) -> Model:
    """Return the model in the newest shape, which can express all of it."""
    if isinstance(model, Model):
        return model
    relaxed = not isinstance(model, v1_0.Model) and (
        model.relax_computation_float32_to_float16
    )
    extensions = model.extension_name_to_prefix if isinstance(model, v1_2.Model) else ()
    return Model(
        main=Subgraph(
            operands=tuple(map(_canonical_operand, model.operands)),
            operations=model.operations,
            input_indexes=model.input_indexes,
            output_indexes=model.output_indexes,
        ),
        operand_values=model.operand_values,
        pools=model.pools,
        relax_computation_float32_to_float16=relaxed,
        extension_name_to_prefix=extensions,
    )


def convert_model(model: AnyModel, version: HalVersion) -> AnyModel:
    """Return the model in the shape of ``version``.

    What has no place there is dropped: referenced subgraphs, names of extensions,
    extra parameters, permission to compute with less precision.
    """
    newest = canonical_model(model)
    if version >= HalVersion.V1_3:
        return newest
    main = newest.main
    graph = (main.operations, main.input_indexes, main.output_indexes)
    constants = (newest.operand_values, newest.pools)
    relaxed = newest.relax_computation_float32_to_float16
    if version >= HalVersion.V1_2:
        extensions = newest.extension_name_to_prefix
        return v1_2.Model(main.operands, *graph, *constants, relaxed, extensions)
    # Extra parameters come last.
    operands = tuple(v1_0.Operand(*astuple(each)[:-1]) for each in main.operands)
    if version >= HalVersion.V1_1:
        return v1_1.Model(operands, *graph, *constants, relaxed)
    return v1_0.Model(operands, *graph, *constants)


def _canonical_operand(operand: Operand | v1_0.Operand) -> Operand:
    if isinstance(operand, Operand):
        return operand
    return Operand(*astuple(operand))


def _has_operand(operand: Operand, version: HalVersion) -> bool:
    rules = EXTENSION_RULES
    if not is_extension_type(operand.type):
        rules = TYPE_RULES[operand.type]
    if version < rules.since:
        return False
    if version < HalVersion.V1_3 and operand.lifetime == OperandLifeTime.SUBGRAPH:
        return False
    is_ranked = bool(operand.dimensions) or operand.type in SCALAR_TYPES
    return is_ranked or version >= HalVersion.V1_2


def _has_operation(operation: Operation, model: Model, version: HalVersion) -> bool:
    try:
        check_operation(operation, model.main.operands, version, model.referenced)
    except InvalidArgumentError:
        return False
    return True


def _have_pools(pools: Iterable[Memory | BufferToken], version: HalVersion) -> bool:
    try:
        for pool in pools:
            if not isinstance(pool, Memory):
                return False
            validate_memory(pool, version)
    except InvalidArgumentError:
        return False
    return True


AnyCapabilities: TypeAlias = (
    Capabilities | v1_2.Capabilities | v1_1.Capabilities | v1_0.Capabilities
)

_FLOATS = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_LIKE_QUANTIZED8 = (
    OperandType.INT32,
    OperandType.UINT32,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.OEM,
    OperandType.TENSOR_OEM_BYTE,
)
"""Types that HAL 1.0 and 1.1 do not distinguish."""


def is_compliant_capabilities(
    capabilities: AnyCapabilities, version: HalVersion
) -> bool:
    """Return whether nothing is lost when ``version`` has to say it."""
    if version >= HalVersion.V1_3:
        return True
    if version >= HalVersion.V1_2:
        # The newest shape has figures for IF, WHILE and one more type.
        return not isinstance(capabilities, Capabilities)
    match capabilities:
        case v1_0.Capabilities():
            return True
        case v1_1.Capabilities():
            relaxed = capabilities.relaxed_float32_to_float16_performance
            is_no_faster = relaxed == capabilities.float32_performance
            return version >= HalVersion.V1_1 or is_no_faster
        case _:
            return _fits_two_figures(capabilities, version)


def convert_capabilities(
    capabilities: AnyCapabilities, version: HalVersion
) -> AnyCapabilities:
    """Return the capabilities as a caller of ``version`` knows them.

    Figures that the older version did not have are taken from what stood for them;
    those that it has no place for are dropped.
    """
    newest = canonical_capabilities(capabilities)
    if version >= HalVersion.V1_3:
        return newest
    table = newest.operand_performance
    if version >= HalVersion.V1_2:
        return v1_2.Capabilities(
            newest.relaxed_float32_to_float16_performance_scalar,
            newest.relaxed_float32_to_float16_performance_tensor,
            tuple(
                entry
                for entry in table
                if entry.type is not OperandType.TENSOR_QUANT8_ASYMM_SIGNED
            ),
        )
    float32 = performance_of(table, OperandType.TENSOR_FLOAT32)
    quantized8 = performance_of(table, OperandType.TENSOR_QUANT8_ASYMM)
    if version < HalVersion.V1_1:
        return v1_0.Capabilities(float32, quantized8)
    relaxed = newest.relaxed_float32_to_float16_performance_tensor
    return v1_1.Capabilities(float32, quantized8, relaxed)


def canonical_capabilities(capabilities: AnyCapabilities) -> Capabilities:
    """Return the capabilities in the newest shape.

    Nothing is known there of IF and WHILE before HAL 1.3, which had neither.
    """
    match capabilities:
        case Capabilities():
            return capabilities
        case v1_2.Capabilities():
            return Capabilities(
                capabilities.relaxed_float32_to_float16_performance_scalar,
                capabilities.relaxed_float32_to_float16_performance_tensor,
                capabilities.operand_performance,
                if_performance=NO_PERFORMANCE_INFO,
                while_performance=NO_PERFORMANCE_INFO,
            )
        case v1_1.Capabilities():
            relaxed = capabilities.relaxed_float32_to_float16_performance
        case _:
            relaxed = capabilities.float32_performance
    return Capabilities(
        relaxed,
        relaxed,
        _table(capabilities.float32_performance, capabilities.quantized8_performance),
        if_performance=NO_PERFORMANCE_INFO,
        while_performance=NO_PERFORMANCE_INFO,
    )


def _table(
    float32: PerformanceInfo, quantized8: PerformanceInfo
) -> tuple[OperandPerformance, ...]:
    infos = dict.fromkeys(_FLOATS, float32) | dict.fromkeys(
        _LIKE_QUANTIZED8, quantized8
    )
    return tuple(OperandPerformance(type_, infos[type_]) for type_ in sorted(infos))


def _fits_two_figures(
    capabilities: v1_2.Capabilities | Capabilities, version: HalVersion
) -> bool:
    table = capabilities.operand_performance
    scalar = capabilities.relaxed_float32_to_float16_performance_scalar
    tensor = capabilities.relaxed_float32_to_float16_performance_tensor
    is_relaxed_alike = scalar == tensor and _are_alike(table, _FLOATS)
    if version < HalVersion.V1_1:
        float32 = performance_of(table, OperandType.TENSOR_FLOAT32)
        is_relaxed_alike = is_relaxed_alike and tensor == float32
    return is_relaxed_alike and _are_alike(table, _LIKE_QUANTIZED8)


def _are_alike(table: Performances, types: tuple[OperandType, ...]) -> bool:
    return len({performance_of(table, type_) for type_ in types}) == 1


logger = logging.getLogger(__name__)

Versioned: TypeAlias = AnyModel | AnyRequest | AnyCapabilities | ErrorStatus
"""What differs between versions. Everything else is the same wherever it exists."""

_MODELS = (Model, v1_2.Model, v1_1.Model, v1_0.Model)
_REQUESTS = (Request, v1_0.Request)


def compliant_with(value: Versioned, version: HalVersion) -> bool:
    """Return whether ``version`` can express a valid ``value`` without loss."""
    if isinstance(value, ErrorStatus):
        return is_compliant_status(value, version)
    if isinstance(value, _MODELS):
        return is_compliant_model(value, version)
    if isinstance(value, _REQUESTS):
        return is_compliant_request(value, version)
    return is_compliant_capabilities(value, version)


@overload
def convert_to(value: ErrorStatus, version: HalVersion) -> ErrorStatus: ...
@overload
def convert_to(value: AnyModel, version: HalVersion) -> AnyModel: ...
@overload
def convert_to(value: AnyRequest, version: HalVersion) -> AnyRequest: ...
@overload
def convert_to(value: AnyCapabilities, version: HalVersion) -> AnyCapabilities: ...
def convert_to(value: Versioned, version: HalVersion) -> Versioned:
    """Return ``value`` in the shape of ``version``; what gets lost is logged.

    :raises InvalidArgumentError: for a request to an older version that names a buffer
        of the device.
    """
    if not compliant_with(value, version):
        logger.warning(
            "%s loses something on its way to %s", type(value).__name__, version.title
        )
    if isinstance(value, ErrorStatus):
        return convert_status(value, version)
    if isinstance(value, _MODELS):
        return convert_model(value, version)
    if isinstance(value, _REQUESTS):
        return convert_request(value, version)
    return convert_capabilities(value, version)
