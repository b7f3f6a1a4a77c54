"""Checks how the operations of a subgraph connect its operands: M8 and M10 to M13.

Source: HAL 1.0 to 1.3/types.hal (Operation, Model, Subgraph).
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, compress, count

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import is_extension_type
from asyncnn.hal.types import OperandLifeTime, Operation, OperationType, Subgraph
from asyncnn.hal.validate.operand import OperandRules
from asyncnn.hal.validate.rules import (
    SLICE,
    brief,
    broken,
    located,
    operation_type_name,
)

_OPERATION_TYPES = frozenset(OperationType)
_INPUT = OperandLifeTime.SUBGRAPH_INPUT
_OUTPUT = OperandLifeTime.SUBGRAPH_OUTPUT
WRITTEN = frozenset({OperandLifeTime.TEMPORARY_VARIABLE, _OUTPUT})
"""Lifetimes of operands that exactly one operation writes; all others are given."""

_IS_WRITTEN = bytes(lifetime in WRITTEN for lifetime in range(256))


class GraphRules:
    """The rules for how operations connect the operands of one subgraph.

    The operands have been checked already.
    """

    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph = subgraph
        self._lifetimes = bytes([operand.lifetime for operand in subgraph.operands])

    def are_written(self) -> bytes:
        """Return 1 for each operand that an operation must write, 0 for all others."""
        return self._lifetimes.translate(_IS_WRITTEN)

    def _written(self) -> set[int]:
        return set(compress(count(), self.are_written()))

    def check_border(self) -> None:
        """Check that inputs and outputs are listed exactly once (M11).

        :raises InvalidArgumentError: if they are not.
        """
        self._check_listed(self._subgraph.input_indexes, _INPUT)
        self._check_listed(self._subgraph.output_indexes, _OUTPUT)

    def _check_listed(self, indexes: Sequence[int], lifetime: OperandLifeTime) -> None:
        found = re.finditer(bytes([lifetime]), self._lifetimes)
        unlisted = {match.start() for match in found}
        for index in indexes:
            if index not in unlisted:
                raise broken(
                    "M11",
                    f"operand {brief(index)} is listed, but is not (or already was) "
                    f"one of the operands of lifetime {lifetime.name}",
                )
            unlisted.remove(index)
        if unlisted:
            raise broken(
                "M11", f"{lifetime.name} operand {min(unlisted)} is not listed"
            )

    def checking_forms(self, rules: OperandRules) -> Iterator[None]:
        """Check, slice by slice, that types and indices of operations exist (M8).

        Operands that operations write must be of those that are written (M10).

        :raises InvalidArgumentError: if a rule is broken.
        """
        subgraph = self._subgraph
        types: set[int] = set(_OPERATION_TYPES)
        written = self._written()
        count = len(subgraph.operands)
        for start in range(0, len(subgraph.operations), SLICE):
            part = subgraph.operations[start : start + SLICE]
            if not _are_well_formed(part, types, count, written):
                for index in range(start, start + len(part)):
                    self.check_form(index, rules)
                types.update([operation.type for operation in part])
                if not _are_well_formed(part, types, count, written):
                    rules.saw_odd = True
            yield

    def check_form(self, index: int, rules: OperandRules) -> None:
        """Check one operation as `checking_forms` does.

        :raises InvalidArgumentError: if a rule is broken.
        """
        operation = self._subgraph.operations[index]
        try:
            _check_form(operation, self._subgraph, rules)
        except InvalidArgumentError as error:
            name = operation_type_name(operation.type)
            raise located(f"operation {index} ({name})", error) from None

    def checking_order(self) -> Iterator[None]:
        """Check that every operand is written once (M10), before it is read (M12).

        :raises InvalidArgumentError: if it is not.
        """
        pending = self._written()
        for position, operation in enumerate(self._subgraph.operations):
            inputs = operation.inputs
            if not pending.isdisjoint(inputs):
                raise broken(
                    "M12",
                    f"operation {position} reads operand "
                    f"{min(pending.intersection(inputs))} before it is written",
                )
            for index in operation.outputs:
                if index not in pending:
                    raise broken(
                        "M10", f"operation {position} writes operand {index} again"
                    )
                pending.remove(index)
            if not position % SLICE:
                yield
        if pending:
            raise broken("M12", f"operand {min(pending)} is never written")

    def checking_consumers(self) -> Iterator[None]:
        """Check the declared numbers of consumers (M13).

        :raises InvalidArgumentError: if one is wrong.
        """
        operands = self._subgraph.operands
        counts = [0] * len(operands)
        for position, operation in enumerate(self._subgraph.operations):
            for index in operation.inputs:
                counts[index] += 1
            if not position % SLICE:
                yield
        declared = [operand.number_of_consumers for operand in operands]
        if declared == counts:
            return
        for index, (claimed, counted) in enumerate(zip(declared, counts, strict=True)):
            if claimed != counted:
                raise broken(
                    "M13",
                    f"operand {index} is read {counted} times, but declares "
                    f"{brief(claimed)} consumers",
                )


def _are_well_formed(
    operations: Sequence[Operation],
    types: set[int],
    operand_count: int,
    written: set[int],
) -> bool:
    """Return at once whether operations are as they should be; False in any doubt."""
    try:
        inputs = [operation.inputs for operation in operations]
        outputs = [operation.outputs for operation in operations]
        reads = list(chain.from_iterable(inputs))
        writes = list(chain.from_iterable(outputs))
        return (
            types.issuperset([operation.type for operation in operations])
            and {*map(type, inputs), *map(type, outputs)} == {tuple}
            and type(sum(reads) + sum(writes)) is int
            and min(reads, default=0) >= 0
            and max(reads, default=0) < operand_count
            and written.issuperset(writes)
        )
    except (AttributeError, TypeError):
        return False


def _check_form(operation: Operation, subgraph: Subgraph, rules: OperandRules) -> None:
    if is_extension_type(operation.type):
        rules.check_extension_prefix(operation.type, "M8")
    elif operation.type not in _OPERATION_TYPES:
        raise broken("M8", "there is no such operation")
    operands = subgraph.operands
    for kind, indexes in (("input", operation.inputs), ("output", operation.outputs)):
        for position, index in enumerate(indexes):
            if not 0 <= index < len(operands):
                raise broken(
                    "M8",
                    f"{kind} {position} is operand {brief(index)} of {len(operands)}",
                )
    for position, index in enumerate(operation.outputs):
        if operands[index].lifetime not in WRITTEN:
            lifetime = OperandLifeTime(operands[index].lifetime).name
            raise broken(
                "M10", f"output {position} is operand {index}, which is {lifetime}"
            )
