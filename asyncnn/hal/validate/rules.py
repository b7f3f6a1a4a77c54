"""What all checks share: words for what is broken, limits of numbers; settings, memory.

Source: HAL 1.0 to 1.3/types.hal (hidl_memory, ExecutionPreference, Priority,
MeasureTiming).
"""

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operands import (
    ExtensionOperandType,
    ExtensionOperationType,
    is_extension_type,
    size_of_data_bytes,
)
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    Dimensions,
    ExecutionOptions,
    ExecutionPreference,
    HalVersion,
    MeasureTiming,
    Memory,
    OperandType,
    OperationType,
    Priority,
)

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
    except AsyncnnError:  # some are a ValueError as well
        raise
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"malformed {what}: {error}") from error


UINT32_MAX = 0xFFFF_FFFF
RANK_MAX = 64
"""Axes of a NumPy array. The HAL sets no limit; this one also bounds our work."""
SLICE = 100
"""Operands or operations that are checked in one go."""


def is_integer(value: object, least: int, greatest: int) -> bool:
    """Return whether ``value`` is an integer from ``least`` to ``greatest``."""
    return isinstance(value, int) and least <= value <= greatest


def is_uint32(value: object) -> bool:
    """Return whether ``value`` is an integer that fits in 32 bits without a sign."""
    return isinstance(value, int) and 0 <= value <= UINT32_MAX


def checked_size_bytes(type_: int, dimensions: Dimensions, rule: str) -> int:
    """Return the bytes of a value; see `size_of_data_bytes`.

    :raises InvalidArgumentError: if they break ``rule`` by not fitting in 32 bits.
    """
    try:
        return size_of_data_bytes(type_, dimensions)
    except InvalidArgumentError as error:
        raise broken(rule, error.message) from None


_TIMINGS = tuple(MeasureTiming)
_NOT_MEASURED = MeasureTiming.NO


def validate_execution_preference(preference: int) -> None:
    """Check that ``preference`` is an `ExecutionPreference`.

    :raises InvalidArgumentError: if it is not.
    """
    _check(ExecutionPreference, preference, "an execution preference")


def validate_priority(priority: int) -> None:
    """Check that ``priority`` is a `Priority`.

    :raises InvalidArgumentError: if it is not.
    """
    _check(Priority, priority, "a priority")


def validate_measure_timing(measure: int) -> None:
    """Check that ``measure`` is a `MeasureTiming`.

    :raises InvalidArgumentError: if it is not.
    """
    if measure not in _TIMINGS:
        raise InvalidArgumentError(f"{measure} is not a MeasureTiming")


def execution_options(
    measure: MeasureTiming,
    deadline: int | None,
    loop_timeout: int | None,
    duration: int | None = None,
) -> ExecutionOptions:
    """Return what an execute call is given as one record; a plain one makes none.

    :raises InvalidArgumentError: if ``measure`` is not a `MeasureTiming`.
    """
    if (
        measure is _NOT_MEASURED
        and deadline is None
        and loop_timeout is None
        and duration is None
    ):
        return DEFAULT_OPTIONS
    validate_measure_timing(measure)
    return ExecutionOptions(measure, deadline, loop_timeout, duration)


def _check(enum: type[IntEnum], value: int, what: str) -> None:
    try:
        enum(value)
    except ValueError:
        raise broken("M17", f"{brief(value)} is not {what}") from None


_SINCE = {
    "ashmem": HalVersion.V1_0,
    "mmap_fd": HalVersion.V1_0,
    "hardware_buffer_blob": HalVersion.V1_2,
    "hardware_buffer": HalVersion.V1_2,
}
HARDWARE_BUFFER = "hardware_buffer"
"""Name of pools that have no linear bytes; they are only ever used as a whole."""


def validate_memory(
    memory: Memory, version: HalVersion = HalVersion.AIDL_V4, *, rule: str = "M14"
) -> None:
    """Check the name, size and handle of a pool.

    :raises InvalidArgumentError: if it is no pool of the HAL of this version, or has
        fewer bytes than its size claims.
    """
    if memory.name not in _SINCE:
        raise broken(rule, f"{brief(memory.name)} is not a kind of pool")
    if version < _SINCE[memory.name]:
        raise broken(rule, f"{version.title} has no pools of kind {memory.name}")
    if not isinstance(memory.size, int) or memory.size < 0:
        raise broken(rule, f"the size of the pool is {brief(memory.size)}")
    if memory.buffer is None:
        if not memory.handle.fds:
            raise broken(rule, f"the {memory.name} pool has no handle")
    elif memory.buffer.nbytes < memory.size:
        raise broken(
            rule,
            f"the pool of {brief(memory.size)} bytes has only {memory.buffer.nbytes}",
        )
