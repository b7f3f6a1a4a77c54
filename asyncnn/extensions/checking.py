"""Checks of resolved models what generic validation cannot: it sees but numbers.

Source: HAL 1.2/types.hal (Extension, ExtensionOperandTypeInformation).
"""

from asyncnn.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.extensions import ExtensionOperandType, ExtensionOperationType
from asyncnn.hal.operands import (
    has_unknown_dimensions,
    is_extension_type,
    size_of_data_bytes,
)
from asyncnn.hal.operations import check_operation
from asyncnn.hal.types import (
    EXTENSION_TYPE_BITS,
    HalVersion,
    Model,
    Operand,
    OperandLifeTime,
    Operation,
    Subgraph,
)

_CONSTANTS = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)
_NEWEST = max(HalVersion)


def check_extended(model: Model) -> None:
    """Check all that a resolved model has of extensions.

    :raises InvalidArgumentError: if a rule of an extension is broken.
    :raises GeneralFailureError: if an extension, or a type of it, is not known.
    """
    if not model.extension_name_to_prefix:
        return
    for subgraph in (model.main, *model.referenced):
        for index, operand in enumerate(subgraph.operands):
            _check_operand(model, index, operand)
        for operation in subgraph.operations:
            _check_operation(model, subgraph, operation)


def check_extended_operation(
    model: Model, subgraph: Subgraph, operation: Operation
) -> None:
    """Check one operation of a resolved model, and the operands that it uses.

    :raises InvalidArgumentError: if a rule of an extension is broken.
    :raises GeneralFailureError: if an extension, or a type of it, is not known.
    """
    for index in (*operation.inputs, *operation.outputs):
        _check_operand(model, index, subgraph.operands[index])
    _check_operation(model, subgraph, operation)


def _check_operand(model: Model, index: int, operand: Operand) -> None:
    type_ = operand.type
    if not isinstance(type_, ExtensionOperandType):
        _check_known(model, type_, "operand")
        return
    what = f"operand {index} ({type_.name})"
    if operand.dimensions and not type_.is_tensor:
        raise InvalidArgumentError(f"{what} is a scalar, but has dimensions")
    size = size_of_data_bytes(type_, operand.dimensions)
    if operand.lifetime not in _CONSTANTS:
        return
    if type_.is_tensor and has_unknown_dimensions(operand):
        raise InvalidArgumentError(f"{what} is a constant with open dimensions")
    if operand.location.length != size:
        raise InvalidArgumentError(
            f"{what} is a constant of {operand.location.length} bytes, expected {size}"
        )


def _check_operation(model: Model, subgraph: Subgraph, operation: Operation) -> None:
    if isinstance(operation.type, ExtensionOperationType):
        check_operation(operation, subgraph.operands, _NEWEST, model.referenced)
    else:
        _check_known(model, operation.type, "operation")


def _check_known(model: Model, type_: int, kind: str) -> None:
    if not is_extension_type(type_):
        return
    prefix = type_ >> EXTENSION_TYPE_BITS
    names = {entry.prefix: entry.name for entry in model.extension_name_to_prefix}
    name, number = names[prefix], type_ - (prefix << EXTENSION_TYPE_BITS)
    raise GeneralFailureError(
        f"{kind} type {number} of extension {name} is not known to this device",
        hint="open the device with the extension, or a newer version of it",
    )
