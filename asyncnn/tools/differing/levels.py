"""One graph on both sides, operation by operation, and which tensors are the same.

The error of a tensor is what both runs make of it, and grows along the graph. The own
error of an operation is what remains when one side computes it from the inputs that the
other side had: only where an operation adds error itself is that beyond tolerance.

Two kinds of one network, a float one and a quantised one, have the same tensors for the
most part. Converters keep the names of most of them, but fuse, add and drop operations;
what has another name is paired where runs of operations of the same types follow one
another in both.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

import msgspec

from asyncnn.engine.plan import CONSTANT_LIFETIMES, constant_array
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.tools.differing.distances import Allowed, Distance, converted, distance
from asyncnn.tools.differing.extracts import Extract, ModelGraph
from asyncnn.tools.differing.sides import DeviceSide, Side, Tensors
from asyncnn.tools.samples import Sample

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


class Level:
    """A graph on a device and on the side that it is compared with.

    ``device`` computes operations again from what ``other`` had. ``pairing`` is from
    the device's graph to the other's.
    """

    def __init__(
        self, device: DeviceSide, other: Side, pairing: Pairing, allowed: Allowed
    ) -> None:
        self.device = device
        self.other = other
        self.pairing = pairing
        self.allowed = allowed
        self.graph = device.graph
        self.here: list[Tensors] = []
        self.there: list[Tensors] = []
        self.errors: dict[int, Distance] = {}
        """By position, what both runs make of the results of an operation."""
        self.apart: dict[int, Distance] = {}
        """The same by tensor."""
        self.own: dict[int, Distance] = {}
        """By position, what an operation adds itself."""
        self.worst: dict[int, int] = {}
        """By position, the sample with the largest own error, or else error."""
        self.problems: dict[int, str] = {}
        """By position, why an operation could not be looked into."""
        self.tensors = 0
        """How many tensors could be compared."""
        self._given: dict[int, Array | None] = {}

    async def measure(self, here: Sequence[Sample], there: Sequence[Sample]) -> None:
        """Run both sides on the same samples, each in its own types, and compare.

        :raises AsyncnnError: if a side refuses the model, or fails.
        """
        self.here = await self.device.tensors(here)
        self.there = await self.other.tensors(there)
        self._given = self._known()
        positions = range(len(self.graph.main.operations))
        largest: dict[int, tuple[float, float]] = {}
        for position in positions:
            shown = self._shown(position)
            self.tensors += len(shown)
            for number, (mine, theirs) in enumerate(
                zip(self.here, self.there, strict=True)
            ):
                for index in shown:
                    found = self.distance(index, mine[index], theirs)
                    self.errors[position] = found.joined(self.errors.get(position))
                    self.apart[index] = found.joined(self.apart.get(index))
                    if found.rank > largest.get(position, (-1.0, -1.0)):
                        largest[position] = found.rank
                        self.worst[position] = number
        await self._measure_own([each for each in positions if self._shown(each)])

    def is_shown(self, index: int) -> bool:
        """Return whether both sides show a tensor, in every sample."""
        twin = self.pairing.tensors.get(index)
        return all(index in mine for mine in self.here) and all(
            twin in theirs for theirs in self.there
        )

    def diverges(self, position: int) -> bool:
        """Return whether an operation adds more error than is allowed.

        So it does if it makes of equal inputs what is too far apart, even if it does
        not when it is computed by itself.
        """
        error, own = self.errors.get(position), self.own.get(position)
        if own is not None and not own.passed:
            return True
        if error is None or error.passed:
            return False
        reads = self.graph.main.operations[position].inputs
        written = [index for index in reads if index in self.graph.writers]
        return all(
            index in self.apart and not self.apart[index].units for index in written
        )

    def _shown(self, position: int) -> list[int]:
        outputs = self.graph.main.operations[position].outputs
        return [index for index in outputs if self.is_shown(index)]

    def distance(self, index: int, mine: Array, theirs: Tensors) -> Distance:
        """Return how far a tensor is from what it is in the tensors of the other."""
        twin = self.pairing.tensors[index]
        return distance(
            theirs[twin],
            self.other.graph.main.operands[twin],
            mine,
            self.graph.main.operands[index],
            self.allowed,
        )

    async def _measure_own(self, positions: Sequence[int]) -> None:
        for batch in self.graph.batches(positions, self._given):
            await self._measure_batch(batch)

    def _known(self) -> dict[int, Array | None]:
        """Return what operations are given when they are computed by themselves.

        What follows from constants alone is a constant there, too, as devices do other
        things with constants than with what they only know later.
        """
        given: dict[int, Array | None] = {}
        for index in self.graph.writers:
            if self.is_shown(index):
                is_folded = index in self.graph.folded
                given[index] = self.value(index, 0) if is_folded else None
        return given

    def value(self, index: int, sample: int) -> Array:
        """Return a tensor of the other side as the device has it, or the device's."""
        twin = self.pairing.tensors.get(index)
        mine, theirs = self.here[sample], self.there[sample]
        if twin is None or twin not in theirs:
            return mine[index]
        return converted(
            theirs[twin],
            self.other.graph.main.operands[twin],
            self.graph.main.operands[index],
            mine[index].dtype,
        )

    async def _measure_batch(self, batch: Sequence[int]) -> None:
        extract = self._extract(batch, self._given)
        feeds = [
            {index: self.value(index, sample) for index in extract.inputs}
            for sample in range(len(self.there))
        ]
        try:
            results = await self.device.run(extract, feeds)
        except AsyncnnError as error:
            if len(batch) == 1:
                self.problems[batch[0]] = f"it cannot be computed by itself: {error}"
                return
            # Inputs that nothing can have together, or what one operation refuses.
            for position in batch:
                await self._measure_batch([position])
            return
        for position in batch:
            self._compare_own(position, results)

    def _extract(
        self, positions: Sequence[int], given: Mapping[int, Array | None]
    ) -> Extract:
        chosen = {each for at in positions for each in self.graph.needed(at, given)}
        wanted = [index for at in positions for index in self._shown(at)]
        return self.graph.extract(chosen, given, wanted)

    def _compare_own(self, position: int, results: Sequence[Tensors]) -> None:
        largest = -1.0, -1.0
        for number, (computed, theirs) in enumerate(
            zip(results, self.there, strict=True)
        ):
            for index in self._shown(position):
                found = self.distance(index, computed[index], theirs)
                self.own[position] = found.joined(self.own.get(position))
                if found.rank > largest and found.units:
                    largest = found.rank
                    self.worst[position] = number

    def group(self, position: int) -> tuple[int, ...]:
        """Return the operations before one whose results only the device shows.

        They are computed again with it, so that its own error is theirs as well.
        """
        return self.graph.needed(position, self._given)[:-1]

    def alone(self, position: int, *, is_constant: bool = True) -> Extract:
        """Return an operation as a model; what it reads is given if it is known.

        Without ``is_constant``, that holds for what follows from constants alone.
        """
        given = self._given if is_constant else dict.fromkeys(self._given)
        return self._extract([position], given)

    def inputs_of(self, position: int, sample: int) -> list[Array]:
        """Return what an operation of one graph on both sides reads on the other."""
        main = self.graph.main
        arrays = []
        for index in main.operations[position].inputs:
            operand = main.operands[index]
            if operand.lifetime in CONSTANT_LIFETIMES:
                arrays.append(constant_array(self.graph.named.model, operand))
            elif index in self.here[sample]:
                arrays.append(self.value(index, sample))
        return arrays
