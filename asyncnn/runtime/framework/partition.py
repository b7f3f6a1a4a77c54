"""Divides the operations of a model among devices. Pure functions: nothing is called.

Each operation goes to the device on which it costs least among those that support it;
the CPU wins a tie. Partitions then grow greedily in topological order: as many
operations as are ready, and become so, for one device at a time. So every partition
needs only earlier ones, and none depends on itself by way of another. Partitions whose
move costs more than their device gains go to a neighbour, and to one device goes all if
that costs least. What is computed of constants alone stays with what reads it: a device
then has constants, where it would get weights with each request.

Source: the HAL's runtime (ExecutionPlan: partitionTheWork and
findBestDeviceForEachOperation), which does not merge.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set

import msgspec

from asyncnn import hal
from asyncnn.engine.costs import ModelCosts, chosen_figure
from asyncnn.hal.operands import (
    bodies_of,
    element_size_bytes,
    has_unknown_dimensions,
    is_scalar,
)

_STEP_US, _REMOTE_STEP_US = 25.0, 120.0
"""To hand a partition to a device and to hear of its end: here, or another process's.
"""

_MOVED_BYTES_PER_US = 10_000.0
"""To leave an intermediate tensor for another device: it is shared, and not copied."""

MOST_ROUNDS = 24
"""Attempts to find something better by merging."""

_WRITTEN = frozenset(
    {hal.OperandLifeTime.TEMPORARY_VARIABLE, hal.OperandLifeTime.SUBGRAPH_OUTPUT}
)
_FIXED = frozenset(
    {
        hal.OperandLifeTime.CONSTANT_COPY,
        hal.OperandLifeTime.CONSTANT_REFERENCE,
        hal.OperandLifeTime.NO_VALUE,
    }
)
_CONTROL_FLOW = frozenset({hal.OperationType.IF, hal.OperationType.WHILE})


class DeviceCandidate(msgspec.Struct, frozen=True):
    """A device that operations may go to, and which of them it ``supports``.

    One that ``tells_shapes`` reports shapes of outputs that the model leaves open, as
    devices do since HAL 1.2.
    """

    name: str
    supports: tuple[bool, ...]
    capabilities: hal.Capabilities
    is_cpu: bool = False
    is_remote: bool = False
    tells_shapes: bool = True


class Partition(msgspec.Struct, frozen=True):
    """Operations for one device, a position among the candidates, in order.

    ``expected_us`` is what they are expected to take, their moves left out.
    """

    device: int
    operations: tuple[int, ...]
    expected_us: float


class Division(msgspec.Struct, frozen=True):
    """Partitions in the order in which they run, and why each operation is there."""

    partitions: tuple[Partition, ...]
    reasons: tuple[str, ...]
    expected_us: float


class DevicePlan(msgspec.Struct, frozen=True):
    """How a model is divided, by the names of ``devices``.

    ``refusals`` says why others had no part in it.
    """

    division: Division
    devices: tuple[str, ...]
    refusals: dict[str, str]


def divide(
    model: hal.Model,
    candidates: Sequence[DeviceCandidate],
    preference: int,
    moving_weight: float = 1.0,
) -> Division:
    """Divide the main subgraph of a validated model; the order of devices breaks ties.

    :param moving_weight: how much it counts what partitions cost beside operations.
    :raises GeneralFailureError: if no device supports some operation.
    """
    return _Divider(model, candidates, preference, moving_weight).divide()


def dependencies_of(subgraph: hal.Subgraph) -> list[set[int]]:
    """Return, for each operation, those that write what it reads."""
    writers: dict[int, int] = {}
    needed: list[set[int]] = []
    for position, operation in enumerate(subgraph.operations):
        needed.append({writers[i] for i in operation.inputs if i in writers})
        writers.update(dict.fromkeys(operation.outputs, position))
    return needed


def grow(
    dependencies: Sequence[set[int]],
    assignment: Sequence[int],
    devices: int,
    pulled: Set[int] = frozenset(),
) -> list[tuple[int, list[int]]]:
    """Return partitions of assigned operations: their device, and they in order.

    Devices at the end of the list come first, as the others may make more of what they
    need meanwhile. Operations that are ``pulled`` come with the first that needs them.
    """
    missing = [len(each - pulled) for each in dependencies]
    unpulled = set(pulled)

    def with_pulled(position: int) -> Iterator[int]:
        for needed in dependencies[position]:
            if needed in unpulled:  # it may have come with another one
                unpulled.discard(needed)
                yield from with_pulled(needed)
        yield position

    readers: list[list[int]] = [[] for _ in dependencies]
    for position, each in enumerate(dependencies):
        for needed in each:
            readers[needed].append(position)
    ready: list[deque[int]] = [deque() for _ in range(devices)]
    for position, count in enumerate(missing):
        if not count and position not in pulled:
            ready[assignment[position]].append(position)
    partitions: list[tuple[int, list[int]]] = []
    while any(ready):
        device = max(index for index, queue in enumerate(ready) if queue)
        queue = ready[device]
        taken: list[int] = []
        while queue:
            position = queue.popleft()
            taken += with_pulled(position)
            for reader in readers[position]:
                missing[reader] -= 1
                if not missing[reader] and reader not in pulled:
                    ready[assignment[reader]].append(reader)
        partitions.append((device, sorted(taken)))
    return partitions


class _Grown(msgspec.Struct, frozen=True):
    """Partitions of one assignment, and what they cost in all."""

    assignment: tuple[int, ...]
    partitions: list[tuple[int, list[int]]]
    cost: float


class _Divider:
    def __init__(
        self,
        model: hal.Model,
        candidates: Sequence[DeviceCandidate],
        preference: int,
        moving_weight: float,
    ) -> None:
        self._weight = moving_weight
        self._main = model.main
        self._model = model
        self._candidates = candidates
        self._dependencies = dependencies_of(model.main)
        self._writers = {
            index: position
            for position, operation in enumerate(model.main.operations)
            for index in operation.outputs
        }
        choose = chosen_figure(preference)
        costs = ModelCosts(model)
        self._costs = [costs.of_main(each.capabilities, choose) for each in candidates]
        times = chosen_figure(-1)
        self._times = [costs.of_main(each.capabilities, times) for each in candidates]
        self._steps = [
            _REMOTE_STEP_US if each.is_remote else _STEP_US for each in candidates
        ]
        self._may = [self._allowed(position) for position in range(self._count)]
        self._reasons: list[str] = []
        self._constant = self._constant_operations()

    @property
    def _count(self) -> int:
        return len(self._main.operations)

    def divide(self) -> Division:
        best = [self._best(position) for position in range(self._count)]
        self._reasons = [reason for _, reason in best]
        grown = self._grown(tuple(device for device, _ in best))
        if len(grown.partitions) > 1:
            grown = self._merged(grown)
            grown = self._on_one_device(grown)
        if len(grown.partitions) > 1:
            for position in self._pulled(grown.assignment)[1]:
                self._reasons[position] = "constant, beside what reads it"
        partitions = tuple(
            Partition(device, tuple(taken), self._expected(device, taken))
            for device, taken in grown.partitions
        )
        total = sum(each.expected_us for each in partitions)
        return Division(partitions, tuple(self._reasons), total)

    def _allowed(self, position: int) -> tuple[int, ...]:
        able = [k for k, each in enumerate(self._candidates) if each.supports[position]]
        if self._is_open_control_flow(position):
            able = [k for k in able if self._candidates[k].is_cpu] or able
        if not able:
            kind = self._main.operations[position].type
            name = hal.OperationType(kind).name if kind in _KNOWN else hex(kind)
            raise hal.GeneralFailureError(
                f"no device supports operation {position}, {name}"
            )
        return tuple(able)

    def _is_open_control_flow(self, position: int) -> bool:
        """Return whether it is an IF or WHILE with sizes that are not known.

        HAL 1.3 has drivers not take those.
        """
        operation = self._main.operations[position]
        if operation.type not in _CONTROL_FLOW:
            return False
        operands = [self._main.operands[i] for i in operation.inputs]
        bodies = bodies_of(operation, self._main.operands)
        inner = [self._model.referenced[number] for number in bodies]
        at_border = [
            subgraph.operands[index]
            for subgraph in inner
            for index in (*subgraph.input_indexes, *subgraph.output_indexes)
        ]
        outputs = [self._main.operands[i] for i in operation.outputs]
        return any(map(is_open, [*operands, *outputs, *at_border]))

    def _best(self, position: int) -> tuple[int, str]:
        may = self._may[position]
        costs = {k: self._costs[k][position] for k in may}
        least = min(costs.values())
        best = [k for k in may if costs[k] == least]
        chosen = next((k for k in best if self._candidates[k].is_cpu), best[0])
        if len(may) == 1:
            return chosen, "the only one that supports it"
        if len(best) > 1:
            return chosen, "as good as others"
        second = min(cost for k, cost in costs.items() if k != chosen)
        return chosen, f"{second / least:.1f} times better" if least else "the best"

    def _grown(self, assignment: tuple[int, ...]) -> _Grown:
        pulled: set[int] = set()
        if self._constant:
            assignment, pulled = self._pulled(assignment)
        partitions = grow(self._dependencies, assignment, len(self._candidates), pulled)
        return _Grown(assignment, partitions, self._cost(assignment, partitions))

    def _constant_operations(self) -> dict[int, set[int]]:
        """Return what is computed of constants alone, in order, with what reads it.

        Without what the model puts out.
        """
        operands, outputs = self._main.operands, set(self._main.output_indexes)
        fixed = {k for k, o in enumerate(operands) if o.lifetime in _FIXED}
        found: dict[int, set[int]] = {}
        for position, operation in enumerate(self._main.operations):
            written = set(operation.outputs)
            if fixed.issuperset(operation.inputs) and not written & outputs:
                fixed |= written
                found[position] = set()
        for position, needed in enumerate(self._dependencies):
            for each in needed & found.keys():
                found[each].add(position)
        return {position: readers for position, readers in found.items() if readers}

    def _pulled(self, assignment: tuple[int, ...]) -> tuple[tuple[int, ...], set[int]]:
        """Give constant operations to what reads them, if that is one device's."""
        changed, pulled = list(assignment), set()
        for position in reversed(self._constant):
            devices = {changed[reader] for reader in self._constant[position]}
            if len(devices) == 1 and devices <= set(self._may[position]):
                changed[position] = devices.pop()
                pulled.add(position)
        for position in self._constant:
            if not self._dependencies[position] <= pulled:
                pulled.discard(position)  # it has to wait for another device
        return tuple(changed), pulled

    def _cost(
        self, assignment: Sequence[int], partitions: list[tuple[int, list[int]]]
    ) -> float:
        operands = self._main.operands
        cost = sum(self._costs[k][p] for p, k in enumerate(assignment))
        moving = sum(self._steps[device] for device, _ in partitions)
        crossing = crossing_operands(self._main, [taken for _, taken in partitions])
        moving += sum(_moving_us(operands[index]) for index in crossing)
        cost += self._weight * moving
        if not all(self._can_cross(index, assignment) for index in crossing):
            cost += _FORBIDDEN
        return cost

    def _can_cross(self, index: int, assignment: Sequence[int]) -> bool:
        """Return whether an operand can be an intermediate tensor.

        Its size is known, or is going to be, and what one element is.
        """
        operand = self._main.operands[index]
        if not element_size_bytes(operand.type):
            return False
        if not is_open(operand):
            return True
        return self._candidates[assignment[self._writers[index]]].tells_shapes

    def _merged(self, grown: _Grown) -> _Grown:
        tried: set[tuple[int, ...]] = set()
        for _ in range(MOST_ROUNDS):
            moves = self._moves(grown)
            better = None
            for some in (moves, moves[: max(1, len(moves) // 2)], moves[:1]):
                assignment = _moved(grown.assignment, some)
                if not some or assignment in tried:
                    continue
                tried.add(assignment)
                other = self._grown(assignment)
                if other.cost < grown.cost:
                    better = other
                    for device, taken in some:
                        name = self._candidates[device].name
                        for position in taken:
                            self._reasons[position] = f"moved to {name} beside others"
                    break
            if better is None:
                return grown
            grown = better
        return grown

    def _moves(self, grown: _Grown) -> list[tuple[int, list[int]]]:
        """Return moves of whole partitions that may pay, the best first.

        No two of them are neighbours: each is judged as if the others stayed.
        """
        of: dict[int, int] = {}
        for number, (_, taken) in enumerate(grown.partitions):
            of.update(dict.fromkeys(taken, number))
        near: list[set[int]] = [set() for _ in grown.partitions]
        for position, needed in enumerate(self._dependencies):
            for each in needed:
                if of[each] != of[position]:
                    near[of[position]].add(of[each])
                    near[of[each]].add(of[position])
        found: list[tuple[float, int, int]] = []
        for number, (device, taken) in enumerate(grown.partitions):
            others = {grown.partitions[k][0] for k in near[number]} - {device}
            for other in sorted(others):
                if all(other in self._may[position] for position in taken):
                    lost = sum(
                        self._costs[other][p] - self._costs[device][p] for p in taken
                    )
                    gained = self._steps[device] + self._moving(taken)
                    gained *= self._weight
                    found.append((lost - gained, number, other))
        settled: set[int] = set()
        moves: list[tuple[int, list[int]]] = []
        for balance, number, other in sorted(found):
            if balance < 0 and number not in settled:
                settled |= {number, *near[number]}
                moves.append((other, grown.partitions[number][1]))
        return moves

    def _moving(self, taken: Sequence[int]) -> float:
        operands = self._main.operands
        inside = {i for p in taken for i in self._main.operations[p].outputs}
        read = {i for p in taken for i in self._main.operations[p].inputs} - inside
        moved = inside | {i for i in read if operands[i].lifetime in _WRITTEN}
        return sum(_moving_us(operands[index]) for index in moved)

    def _on_one_device(self, grown: _Grown) -> _Grown:
        best = grown
        for device, candidate in enumerate(self._candidates):
            if all(device in may for may in self._may):
                whole = self._grown((device,) * self._count)
                if whole.cost < best.cost or (
                    whole.cost == best.cost and candidate.is_cpu
                ):
                    best = whole
                    reason = f"dividing costs more than {candidate.name} alone"
                    self._reasons = [reason] * self._count
        if best.cost >= _FORBIDDEN and len(best.partitions) > 1:
            raise hal.GeneralFailureError(
                "the model can be divided only where the size of what another device "
                "needs is not known, nor reported"
            )
        return best

    def _expected(self, device: int, taken: Iterable[int]) -> float:
        times = self._times[device]
        return self._steps[device] + sum(times[position] for position in taken)


_FORBIDDEN = 1e60
"""The cost of what must not be."""

_KNOWN = frozenset(hal.OperationType)
_WITHOUT_SIZE = frozenset({hal.OperandLifeTime.SUBGRAPH, hal.OperandLifeTime.NO_VALUE})


def _moving_us(operand: hal.Operand) -> float:
    """Return what it costs to leave an operand for another device."""
    elements = math.prod(axis or 1 for axis in operand.dimensions)
    size_bytes = elements * max(1, element_size_bytes(operand.type))
    return size_bytes / _MOVED_BYTES_PER_US


def is_open(operand: hal.Operand) -> bool:
    """Return whether the size of an operand's value is not known beforehand."""
    if is_scalar(operand.type) or operand.lifetime in _WITHOUT_SIZE:
        return False
    return has_unknown_dimensions(operand)


def crossing_operands(main: hal.Subgraph, parts: Sequence[Sequence[int]]) -> set[int]:
    """Return the operands that one partition writes and another one reads."""
    of: dict[int, int] = {}
    for number, taken in enumerate(parts):
        of.update(dict.fromkeys(taken, number))
    writers: dict[int, int] = {}
    crossing: set[int] = set()
    for position, operation in enumerate(main.operations):
        for index in operation.inputs:
            if index in writers and of[writers[index]] != of[position]:
                crossing.add(index)
        writers.update(dict.fromkeys(operation.outputs, position))
    return crossing


def _moved(
    assignment: Sequence[int], moves: Iterable[tuple[int, list[int]]]
) -> tuple[int, ...]:
    changed = list(assignment)
    for device, taken in moves:
        for position in taken:
            changed[position] = device
    return tuple(changed)
