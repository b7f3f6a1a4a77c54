"""One graph on both sides, operation by operation.

The error of a tensor is what both runs make of it, and grows along the graph. The own
error of an operation is what remains when one side computes it from the inputs that the
other side had: only where an operation adds error itself is that beyond tolerance.
"""

from collections.abc import Mapping, Sequence

from asyncnn.engine.plan import constant_array
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandLifeTime
from asyncnn.tools.differing.distances import Allowed, Distance, converted, distance
from asyncnn.tools.differing.extracts import Extract
from asyncnn.tools.differing.pairing import Pairing
from asyncnn.tools.differing.sides import DeviceSide, Side, Tensors
from asyncnn.tools.samples import Sample

_CONSTANTS = (OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE)


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
            if operand.lifetime in _CONSTANTS:
                arrays.append(constant_array(self.graph.named.model, operand))
            elif index in self.here[sample]:
                arrays.append(self.value(index, sample))
        return arrays
