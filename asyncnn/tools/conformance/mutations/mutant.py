"""What a mutation yields, the rows it is listed in, and the edits it is made of."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.hal.operands import DTYPES, SCALAR_TYPES

T = TypeVar("T")

_INPUT = hal.OperandLifeTime.SUBGRAPH_INPUT
_OUTPUT = hal.OperandLifeTime.SUBGRAPH_OUTPUT
_COPY = hal.OperandLifeTime.CONSTANT_COPY
_LARGEST_CONSTANT_BYTES = 32 * 1024
"""As in the suite, nothing larger becomes a constant."""


class Mutant(msgspec.Struct, frozen=True, eq=False):
    """A model with one thing changed, and how it is asked to be prepared.

    ``label`` says what was changed and where. ``may_pass`` is why the mutant may be
    legal after all; it is empty for one that must be refused.
    """

    label: str
    model: hal.Model
    preference: int = hal.ExecutionPreference.FAST_SINGLE_ANSWER
    priority: int = hal.Priority.MEDIUM
    may_pass: str = ""


class RequestMutant(msgspec.Struct, frozen=True, eq=False):
    """A request with one thing changed, which must be refused; see `Mutant`.

    One that is wrong in the fences that it waits for is so in fenced executions alone.
    """

    label: str
    request: hal.Request
    measure: hal.MeasureTiming = hal.MeasureTiming.NO
    wait_for: tuple[hal.ISyncFence | None, ...] = ()
    may_pass: str = ""


class PacketMutant(msgspec.Struct, frozen=True, eq=False):
    """A packet of a burst with one datum changed, which must be refused."""

    label: str
    packet: bytes
    may_pass: str = ""


Mutants: TypeAlias = Iterator[Mutant]
AnyMutant = TypeVar("AnyMutant", Mutant, RequestMutant, PacketMutant)


class Listed(msgspec.Struct, frozen=True):
    """A row of the public suite's list, by its number there and what it is."""

    number: str
    words: str


class MutationRow(Listed, frozen=True):
    """One kind of mutation of models.

    ``mutate`` takes a valid model and the version of its structure, and changes the
    main subgraph, or only what is said beside the model.
    """

    mutate: Callable[[hal.Model, hal.HalVersion], Mutants]
    changes_subgraph: bool = True

    def mutants(self, model: hal.Model, version: hal.HalVersion) -> Mutants:
        """Yield mutants of the model by a change in any one of its subgraphs."""
        yield from self.mutate(model, version)
        if self.changes_subgraph:
            for number, subgraph in enumerate(model.referenced):
                as_main = replace(model, main=subgraph)
                for mutant in self.mutate(as_main, version):
                    yield _put_back(mutant, model, number)


def _put_back(mutant: Mutant, model: hal.Model, number: int) -> Mutant:
    """Return the mutant of ``model`` whose subgraph was mutated as if it were main."""
    before, after = model.referenced[:number], model.referenced[number + 1 :]
    changed = replace(
        mutant.model, main=model.main, referenced=(*before, mutant.model.main, *after)
    )
    label = f"{mutant.label} of referenced subgraph {number}"
    return replace(mutant, label=label, model=changed)


class RequestRow(Listed, frozen=True):
    """One kind of mutation of requests; see `MutationRow`.

    ``by_burst`` says whether a controller of bursts would send it as it is.
    """

    mutate: Callable[[hal.Request, hal.Model], Iterator[RequestMutant]]
    by_burst: bool = True


class PacketRow(Listed, frozen=True):
    """One kind of mutation of packets; see `MutationRow`."""

    mutate: Callable[[bytes], Iterator[PacketMutant]]


class Sample(msgspec.Struct, Generic[AnyMutant], frozen=True):
    """The mutants to try, and why others of the same row are not."""

    tried: Sequence[AnyMutant]
    exempt: Sequence[str]


def sample(
    mutants: Iterator[AnyMutant], limit: int | None, seed: str
) -> Sample[AnyMutant]:
    """Choose ``limit`` of the mutants that must be refused, the same every time."""
    wrong, exempt = [], []
    for mutant in mutants:
        if mutant.may_pass:
            exempt.append(mutant.may_pass)
        else:
            wrong.append(mutant)
    if limit is not None and limit < len(wrong):
        wrong = Random(seed).sample(wrong, limit)
    return Sample(wrong, exempt)


def replaced(items: tuple[T, ...], position: int, item: T) -> tuple[T, ...]:
    """Return ``items`` with another one at ``position``."""
    return (*items[:position], item, *items[position + 1 :])


def removed(items: tuple[T, ...], position: int) -> tuple[T, ...]:
    """Return ``items`` without the one at ``position``."""
    return items[:position] + items[position + 1 :]


def with_main(model: hal.Model, **changes: Any) -> hal.Model:
    """Return the model with fields of its main subgraph changed."""
    return replace(model, main=replace(model.main, **changes))


def with_item(model: hal.Model, kind: str, index: int, **changes: Any) -> hal.Model:
    """Return the model with fields of one of the ``operands`` or ``operations``."""
    items = getattr(model.main, kind)
    changed = replaced(items, index, replace(items[index], **changes))
    return with_main(model, **{kind: changed})


def with_operand(model: hal.Model, index: int, **changes: Any) -> hal.Model:
    """Return the model with fields of one operand changed."""
    return with_item(model, "operands", index, **changes)


def with_operation(model: hal.Model, index: int, **changes: Any) -> hal.Model:
    """Return the model with fields of one operation changed."""
    return with_item(model, "operations", index, **changes)


def with_new_operand(model: hal.Model, operand: hal.Operand) -> tuple[hal.Model, int]:
    """Return the model with one more operand, and its index."""
    operands = (*model.main.operands, operand)
    return with_main(model, operands=operands), len(operands) - 1


def recounted(model: hal.Model) -> hal.Model:
    """Return the model with numbers of consumers that are right."""
    counts = Counter(i for each in model.main.operations for i in each.inputs)
    operands = tuple(
        replace(operand, number_of_consumers=counts[index])
        for index, operand in enumerate(model.main.operands)
    )
    return with_main(model, operands=operands)


def without_operand(model: hal.Model, index: int) -> hal.Model:
    """Remove an operand and its mentions; as in the suite, larger indices stay."""
    main = model.main
    return with_main(
        model,
        operands=removed(main.operands, index),
        operations=tuple(
            replace(
                operation,
                inputs=_without(operation.inputs, index),
                outputs=_without(operation.outputs, index),
            )
            for operation in main.operations
        ),
        input_indexes=_without(main.input_indexes, index),
        output_indexes=_without(main.output_indexes, index),
    )


def can_be_constant(operand: hal.Operand) -> bool:
    """Return whether the size of an operand is known, and not too large a constant."""
    return 0 < _size_bytes(operand) <= _LARGEST_CONSTANT_BYTES


def with_lifetime(
    model: hal.Model, index: int, lifetime: int, *, listed: bool
) -> hal.Model:
    """Change a lifetime and the location, if ``listed`` the border's lists as well."""
    size = _size_bytes(model.main.operands[index]) if lifetime == _COPY else 0
    location = hal.DataLocation(length=size)
    moved = with_operand(model, index, lifetime=lifetime, location=location)
    moved = replace(moved, operand_values=model.operand_values.ljust(size, b"\0"))
    if not listed:
        return moved
    inputs = _without(model.main.input_indexes, index)
    outputs = _without(model.main.output_indexes, index)
    return with_main(
        moved,
        input_indexes=(*inputs, index) if lifetime == _INPUT else inputs,
        output_indexes=(*outputs, index) if lifetime == _OUTPUT else outputs,
    )


def _without(indexes: tuple[int, ...], index: int) -> tuple[int, ...]:
    return tuple(each for each in indexes if each != index)


def _size_bytes(operand: hal.Operand) -> int:
    if operand.type not in DTYPES:
        return 0
    is_scalar = operand.type in SCALAR_TYPES
    count = math.prod(operand.dimensions) if is_scalar or operand.dimensions else 0
    return DTYPES[operand.type].itemsize * count
