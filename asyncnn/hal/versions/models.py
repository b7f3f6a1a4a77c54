"""Models in the shape of each version, and which of them a version can express.

Source: the conversions of the HAL's utilities (compliantWithV1_x, convertToV1_x).
"""

from typing import TypeAlias

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import SCALAR_TYPES, is_extension_type
from asyncnn.hal.operations import check_operation
from asyncnn.hal.types import (
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Subgraph,
)
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.validate.quantization import EXTENSION_RULES, TYPE_RULES
from asyncnn.hal.versions import v1_0, v1_1, v1_2

AnyModel: TypeAlias = Model | v1_2.Model | v1_1.Model | v1_0.Model


def is_compliant_model(model: AnyModel, version: HalVersion) -> bool:
    """Tell whether ``version`` can express a valid model without loss.

    Whether it may be computed with less precision is not asked: HAL 1.0 has no way to
    allow it, and the full precision is always right.
    """
    newest = canonical_model(model)
    return (
        not (newest.referenced and version < HalVersion.V1_3)
        and not (newest.extension_name_to_prefix and version < HalVersion.V1_2)
        and _have_pools(newest, version)
        and all(_has_operand(operand, version) for operand in newest.main.operands)
        and not noncompliant_operations(newest, version)
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
    operands = tuple(map(_operand_of_1_0, main.operands))
    if version >= HalVersion.V1_1:
        return v1_1.Model(operands, *graph, *constants, relaxed)
    return v1_0.Model(operands, *graph, *constants)


def _canonical_operand(operand: Operand | v1_0.Operand) -> Operand:
    if isinstance(operand, Operand):
        return operand
    return Operand(
        operand.type,
        operand.dimensions,
        operand.number_of_consumers,
        operand.scale,
        operand.zero_point,
        operand.lifetime,
        operand.location,
    )


def _operand_of_1_0(operand: Operand) -> v1_0.Operand:
    return v1_0.Operand(
        operand.type,
        operand.dimensions,
        operand.number_of_consumers,
        operand.scale,
        operand.zero_point,
        operand.lifetime,
        operand.location,
    )


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


def _have_pools(model: Model, version: HalVersion) -> bool:
    try:
        for pool in model.pools:
            validate_memory(pool, version)
    except InvalidArgumentError:
        return False
    return True
