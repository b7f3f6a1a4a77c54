"""Branches and loops, whose bodies are the model's referenced subgraphs.

Source: 1.3/types.hal (IF, WHILE).
"""

from collections.abc import Sequence
from typing import Never

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import combine_dimensions, is_tensor, size_of_data_bytes
from asyncnn.hal.operations.bound import BoundOperation, ValueNeededError
from asyncnn.hal.operations.declaring import declare
from asyncnn.hal.operations.signature import B8, Requirement, Usage
from asyncnn.hal.types import HalVersion, Operand, OperandLifeTime, Subgraph


class _ReferencedBody:
    """The border of a referenced subgraph, compared with the operation's operands."""

    def __init__(self, usage: Usage, name: str) -> None:
        self._usage = usage
        self._name = name
        operand = usage.input(name)
        index = operand.location.offset
        if operand.lifetime != OperandLifeTime.SUBGRAPH:
            raise usage.error(name, "has not the lifetime SUBGRAPH")
        if index >= len(usage.referenced):
            raise usage.error(
                name, f"refers to subgraph {index} of {len(usage.referenced)}"
            )
        subgraph = usage.referenced[index]
        self.inputs = self._operands(subgraph, subgraph.input_indexes)
        self.outputs = self._operands(subgraph, subgraph.output_indexes)

    def _operands(self, subgraph: Subgraph, indexes: Sequence[int]) -> list[Operand]:
        if not all(0 <= index < len(subgraph.operands) for index in indexes):
            raise self.error("lists inputs or outputs that it does not have")
        return [subgraph.operands[index] for index in indexes]

    def error(self, rule: str) -> InvalidArgumentError:
        """Return the error that the subgraph breaks ``rule``."""
        return self._usage.error(self._name, rule)

    def require_compatible(
        self, inner: Sequence[Operand], outer: Sequence[Operand], what: str
    ) -> None:
        """Check that operands agree pair by pair, in number and all that is known."""
        if len(inner) != len(outer):
            raise self.error(f"has {len(inner)} {what}, expected {len(outer)}")
        for position, (one, other) in enumerate(zip(inner, outer, strict=True)):
            difference = _difference(one, other)
            if difference:
                raise self.error(f"has {what} of which {position} {difference}")


def _difference(one: Operand, other: Operand) -> str:
    if one.type != other.type:
        return "differs in type"
    if (one.scale, one.zero_point) != (other.scale, other.zero_point):
        return "differs in scale or zero point"
    if one.extra_params != other.extra_params:
        return "differs in extra parameters"
    try:
        combine_dimensions(one.dimensions, other.dimensions)
    except InvalidArgumentError as error:
        return f"differs in dimensions: {error.message}"
    return ""


def _is_condition(operand: Operand) -> bool:
    return operand.type == B8 and operand.dimensions == (1,)


def _check_if(usage: Usage) -> Requirement | None:
    if not _is_condition(usage.input("condition")):
        raise usage.error("condition", "is not a tensor of exactly one boolean")
    for name in ("then", "else"):
        body = _ReferencedBody(usage, name)
        body.require_compatible(body.inputs, usage.all("input"), "inputs")
        body.require_compatible(body.outputs, usage.outputs, "outputs")
    return None


def _check_while(usage: Usage) -> Requirement | None:
    values = usage.all("input")
    condition, body = (
        _ReferencedBody(usage, "condition"),
        _ReferencedBody(usage, "body"),
    )
    condition.require_compatible(condition.inputs, values, "inputs")
    if len(condition.outputs) != 1 or not _is_condition(condition.outputs[0]):
        raise condition.error("has not one output, a tensor of exactly one boolean")
    body.require_compatible(body.inputs, values, "inputs")
    if not len(usage.outputs) <= len(body.outputs) <= len(body.inputs):
        raise body.error(
            f"has {len(body.inputs)} inputs and {len(body.outputs)} outputs "
            f"for a loop with {len(usage.outputs)}"
        )
    body.require_compatible(
        body.outputs[: len(usage.outputs)], usage.outputs, "outputs"
    )
    body.require_compatible(
        body.outputs, body.inputs[: len(body.outputs)], "looping outputs"
    )
    looping = (*values, *usage.outputs, *condition.inputs, *body.inputs, *body.outputs)
    return _requirement_of_sizes(usage, looping)


def _requirement_of_sizes(
    usage: Usage, operands: Sequence[Operand]
) -> Requirement | None:
    """Drivers need not run loops over values of unknown size, only the runtime does."""
    for operand in operands:
        if is_tensor(operand.type) and not size_of_data_bytes(
            operand.type, operand.dimensions
        ):
            unknown = f"loops over unknown dimensions {list(operand.dimensions)}"
            reason = usage.error("input", unknown).message
            return Requirement(HalVersion.V1_3, reason, is_runtime_only=True)
    return None


def _not_inferred(operation: BoundOperation) -> Never:
    raise ValueNeededError


SIGNATURES = (
    declare(
        "IF 1.3: SUBGRAPH",
        "condition: B8, then else, input*: any -> output+: any",
        _not_inferred,
        _check_if,
    ),
    declare(
        "WHILE 1.3: SUBGRAPH",
        "condition body, input+: any -> output+: any",
        _not_inferred,
        _check_while,
    ),
)
