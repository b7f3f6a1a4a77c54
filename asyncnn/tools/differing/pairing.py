"""Which tensors of two models are the same: by name, else by place and operation.

Two kinds of one network, a float one and a quantised one, have the same tensors for the
most part. Converters keep the names of most of them, but fuse, add and drop operations;
what has another name is paired where runs of operations of the same types follow one
another in both.
"""

from collections.abc import Iterator
from difflib import SequenceMatcher

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.differing.extracts import ModelGraph

_KINDS_OF_NUMBERS = frozenset({"QUANTIZE", "DEQUANTIZE", "CAST"})
"""What only one of two kinds of a network has."""


class Pairing(msgspec.Struct, frozen=True, eq=False):
    """The operands of another graph that are the same tensors, by operands of one.

    ``is_same`` if both are one graph.
    """

    tensors: dict[int, int]
    is_same: bool = False

    def reversed(self) -> "Pairing":
        """Return the same, seen from the other graph."""
        return Pairing({b: a for a, b in self.tensors.items()}, self.is_same)


def pair(one: ModelGraph, other: ModelGraph) -> Pairing:
    """Pair the tensors of two graphs: inputs and what operations compute.

    :raises InvalidArgumentError: if they do not have as many inputs.
    """
    if one is other:
        indexes = (*one.main.input_indexes, *one.writers)
        return Pairing({index: index for index in indexes}, is_same=True)
    counts = [len(graph.main.input_indexes) for graph in (one, other)]
    if counts[0] != counts[1]:
        raise InvalidArgumentError(
            f"one model has {counts[0]} inputs, states included, and the other "
            f"{counts[1]}",
            hint="compare two kinds of one network",
        )
    tensors = dict(zip(one.main.input_indexes, other.main.input_indexes, strict=True))
    taken = set(tensors.values())
    for a, b in (*_by_name(one, other), *_by_place(one, other), *_by_end(one, other)):
        if a not in tensors and b not in taken and _fit(one, a, other, b):
            tensors[a] = b
            taken.add(b)
    return Pairing(tensors)


def _by_name(one: ModelGraph, other: ModelGraph) -> Iterator[tuple[int, int]]:
    names = {
        name: index
        for index, name in enumerate(other.named.operand_names)
        if name and index in other.writers
    }
    for index, name in enumerate(one.named.operand_names):
        if index in one.writers and name in names:
            yield index, names[name]


def _by_end(one: ModelGraph, other: ModelGraph) -> Iterator[tuple[int, int]]:
    ends = one.main.output_indexes, other.main.output_indexes
    if len(ends[0]) == len(ends[1]):
        yield from zip(*ends, strict=True)


def _by_place(one: ModelGraph, other: ModelGraph) -> Iterator[tuple[int, int]]:
    """Yield results of operations in runs that both have."""
    places = [
        [
            (graph.operation_name(at), at)
            for at in range(len(graph.main.operations))
            if graph.operation_name(at) not in _KINDS_OF_NUMBERS
        ]
        for graph in (one, other)
    ]
    types, others = ([name for name, _ in each] for each in places)
    matcher = SequenceMatcher(None, types, others, autojunk=False)
    for start, begin, length in matcher.get_matching_blocks():
        for offset in range(length):
            a, b = places[0][start + offset][1], places[1][begin + offset][1]
            yield from zip(
                one.main.operations[a].outputs,
                other.main.operations[b].outputs,
                strict=False,
            )


def _fit(one: ModelGraph, a: int, other: ModelGraph, b: int) -> bool:
    """Return whether two operands may have the same shape, as far as it is declared."""
    left, right = one.main.operands[a].dimensions, other.main.operands[b].dimensions
    if not left or not right:
        return True
    return len(left) == len(right) and all(
        not x or not y or x == y for x, y in zip(left, right, strict=True)
    )
