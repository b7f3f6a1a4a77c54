"""Checks what a device-managed buffer is to serve: rules A1 to A5, and B1 for copies.

Source: HAL 1.3/IDevice.hal (allocate), 1.3/types.hal (BufferDesc, BufferRole) and
1.3/IBuffer.hal.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import (
    combine_dimensions,
    has_unknown_dimensions,
    is_extension_type,
    is_scalar,
)
from asyncnn.hal.types import BufferDesc, BufferRole, Dimensions, Model, Operand
from asyncnn.hal.validate.rules import (
    RANK_MAX,
    brief,
    broken,
    is_uint32,
    located,
    malformed_as_invalid,
    operand_type_name,
)


class BufferSlot(NamedTuple):
    """An input or output of a prepared model, which ``model`` is the identity of."""

    model: Hashable
    is_output: bool
    position: int


class BufferPlan(msgspec.Struct, frozen=True):
    """What a buffer has to be: its operand, with deduced dimensions, and its roles."""

    operand: Operand
    slots: frozenset[BufferSlot]

    @property
    def is_fixed(self) -> bool:
        """Whether nothing is left open."""
        operand = self.operand
        return is_scalar(operand.type) or not has_unknown_dimensions(operand)


def plan_buffer(
    desc: BufferDesc,
    models: Sequence[tuple[Hashable, Model] | None],
    input_roles: Sequence[BufferRole],
    output_roles: Sequence[BufferRole],
) -> BufferPlan:
    """Check an allocation and return what the buffer has to be.

    ``models`` holds the identity and the validated model of each prepared model, None
    where it is not one of the device.

    :raises InvalidArgumentError: if a rule is broken.
    """
    with malformed_as_invalid("allocation"):
        if not models or None in models:
            raise broken("A1", "a prepared model is missing, or of another device")
        roles = [(False, role) for role in input_roles]
        roles += [(True, role) for role in output_roles]
        if not roles:
            raise broken("A1", "the buffer has no role")
        check_dimensions(desc.dimensions, "A4")
        slots: set[BufferSlot] = set()
        operand: Operand | None = None
        for is_output, role in roles:
            slot, found = _slot(models, is_output, role)
            if slot in slots:
                raise broken("A2", f"{_name(is_output, role)} has its role twice")
            slots.add(slot)
            try:
                operand = _merged(
                    operand or replace(found, dimensions=desc.dimensions), found
                )
            except InvalidArgumentError as error:
                raise located(_name(is_output, role), error) from None
        assert operand is not None
        if is_scalar(operand.type) and operand.dimensions:
            raise broken("A5", "the buffer of a scalar has dimensions")
        return BufferPlan(operand, frozenset(slots))


def check_dimensions(dimensions: Dimensions, rule: str) -> None:
    """Check that these could be dimensions of a buffer.

    :raises InvalidArgumentError: if they break ``rule``.
    """
    if len(dimensions) > RANK_MAX or not all(map(is_uint32, dimensions)):
        raise broken(rule, f"{brief(dimensions)} are not legal dimensions")


def checked_contents(plan: BufferPlan, given: Dimensions) -> Dimensions:
    """Return the dimensions of what is copied into a buffer; ``given`` may be empty.

    :raises InvalidArgumentError: if they are not complete or not the buffer's: rule B1.
    """
    with malformed_as_invalid("dimensions"):
        check_dimensions(given, "B1")
        if is_scalar(plan.operand.type):
            if given:
                raise broken("B1", "a scalar has no dimensions")
            return ()
        if 0 in given:
            raise broken("B1", f"{brief(given)} leaves an axis open")
        try:
            dimensions = combine_dimensions(plan.operand.dimensions, tuple(given))
        except InvalidArgumentError as error:
            raise broken("B1", error.message) from None
        if not dimensions or 0 in dimensions:
            raise broken("B1", "the buffer leaves dimensions open, none are given")
        return dimensions


def _slot(
    models: Sequence[tuple[Hashable, Model] | None], is_output: bool, role: BufferRole
) -> tuple[BufferSlot, Operand]:
    name = _name(is_output, role)
    if not 0 <= role.model_index < len(models):
        raise broken("A1", f"{name} is of model {brief(role.model_index)}")
    found = models[role.model_index]
    assert found is not None
    identity, model = found
    main = model.main
    indexes = main.output_indexes if is_output else main.input_indexes
    if not 0 <= role.io_index < len(indexes):
        raise broken("A1", f"the model has no {name}")
    if not 0.0 < role.frequency <= 1.0:
        raise broken("A1", f"{name} has frequency {brief(role.frequency)}")
    operand = main.operands[indexes[role.io_index]]
    return BufferSlot(identity, is_output, role.io_index), operand


def _merged(known: Operand, other: Operand) -> Operand:
    """Return what two operands of one buffer have in common: rules A3 and A4."""
    if known.type != other.type:
        raise broken(
            "A3",
            f"{operand_type_name(other.type)} and {operand_type_name(known.type)} "
            "in one buffer",
        )
    if (known.scale, known.zero_point) != (other.scale, other.zero_point):
        raise broken("A3", "quantised differently from other roles")
    if not is_extension_type(known.type) and known.extra_params != other.extra_params:
        raise broken("A3", "has other parameters than other roles")
    try:
        dimensions = combine_dimensions(known.dimensions, other.dimensions)
    except InvalidArgumentError as error:
        raise broken("A4", error.message) from None
    return replace(known, dimensions=dimensions)


def _name(is_output: bool, role: BufferRole) -> str:
    return f"{'output' if is_output else 'input'} {brief(role.io_index)}"
