"""How broken rules are reported."""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.extensions import ExtensionOperandType, ExtensionOperationType
from asyncnn.hal.operands import is_extension_type
from asyncnn.hal.types import OperandType, OperationType

brief = reprlib.repr
"""``repr`` cut to a bounded length, for values that a peer has chosen."""


def broken(rule: str, message: str) -> InvalidArgumentError:
    """Return the error for a breach of ``rule``."""
    return InvalidArgumentError(f"{message} [{rule}]")


def located(place: str, error: InvalidArgumentError) -> InvalidArgumentError:
    """Return ``error`` with the place that it was found in before its message."""
    return InvalidArgumentError(f"{place}: {error.message}", hint=error.hint)


def operand_type_name(type_: int) -> str:
    """Return the name of an operand type, whatever number a peer has sent."""
    return _name(OperandType, type_)


def operation_type_name(type_: int) -> str:
    """Return the name of an operation type, whatever number a peer has sent."""
    return _name(OperationType, type_)


def _name(enum: type[OperandType] | type[OperationType], type_: int) -> str:
    if isinstance(type_, ExtensionOperandType | ExtensionOperationType):
        return type_.name
    try:
        return enum(type_).name
    except ValueError:
        kind = "extension type" if is_extension_type(type_) else "type"
        return f"{kind} {brief(type_)}"


@contextmanager
def malformed_as_invalid(what: str) -> Iterator[None]:
    """Report values of a wrong Python type, which the rules need not look for."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"malformed {what}: {error}") from error
