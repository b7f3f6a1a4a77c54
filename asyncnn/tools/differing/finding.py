"""Which operation diverges first, and which adds most error.

Where that is an IF or a WHILE on two devices, what it runs is compared likewise, from
what the other side gave to it, until an operation is found.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.tools.differing.distances import Allowed, Distance, distance
from asyncnn.tools.differing.extracts import ModelGraph
from asyncnn.tools.differing.levels import Level, pair
from asyncnn.tools.differing.sides import DeviceSide, Side
from asyncnn.tools.samples import Sample

_CONTROL_FLOW = (OperationType.IF, OperationType.WHILE)
_SUBGRAPH = OperandType.SUBGRAPH

MOST_ITERATIONS = 32
"""Iterations of a WHILE that are looked into."""


class Question(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Two sides, and the same samples in the types of either.

    One side at least is a device; the ``first`` one, if it is, computes operations
    again. ``on_step`` is called with what is being done.
    """

    first: Side
    second: Side
    samples: Sequence[Sample]
    converted: Sequence[Sample]
    allowed: Allowed = Allowed()
    on_step: Callable[[str], None] = lambda text: None


class PlacedOperation(msgspec.Struct, frozen=True, eq=False):
    """An operation: ``place`` is its position, after its runners', if any."""

    place: str
    level: Level
    position: int
    inner: "tuple[PlacedOperation, ...]" = ()

    @property
    def error(self) -> Distance | None:
        """How far the results of both runs are apart."""
        return self.level.errors.get(self.position)

    @property
    def own(self) -> Distance | None:
        """What it adds itself."""
        return self.level.own.get(self.position)


class Finding(msgspec.Struct, frozen=True, eq=False):
    """What was found. Entries are in the order in which operations run.

    ``outputs`` are from the models as they are. ``first`` is the first operation
    that diverges itself, ``most`` that which adds most error, and ``behind`` the first
    with results out of tolerance, be it by what has added up before it. ``only_whole``
    is one up to which a model diverges that shows nothing on its way, and only then.
    """

    entries: tuple[PlacedOperation, ...]
    outputs: tuple[tuple[str, Distance], ...]
    first: PlacedOperation | None
    most: PlacedOperation | None
    behind: PlacedOperation | None
    only_whole: PlacedOperation | None
    level: Level

    @property
    def to_look_into(self) -> PlacedOperation | None:
        """The operation to look into: that which adds most, if too much."""
        most = self.most
        if most is not None and most.level.diverges(most.position):
            return most
        return self.first or self.only_whole or most

    @property
    def passed(self) -> bool:
        """Whether no operation diverges, and no output."""
        return self.first is None and all(each.passed for _, each in self.outputs)


async def find(question: Question) -> Finding:
    """Run both sides and compare all that both show.

    :raises InvalidArgumentError: if no side is a device, or the models do not have
        as many inputs, or nothing can be compared.
    :raises AsyncnnError: if a side refuses its model, or fails.
    """
    first, second = question.first, question.second
    pairing = pair(first.graph, second.graph)
    sides = [(first, question.samples), (second, question.converted)]
    if not isinstance(first, DeviceSide):
        sides.reverse()
        pairing = pairing.reversed()
    (device, here), (other, there) = sides
    if not isinstance(device, DeviceSide):
        raise InvalidArgumentError(
            f"{first.title} and {second.title} are both no device",
            hint="one side has to compute single operations; see asyncnn devices",
        )
    question.on_step("running the models as they are")
    outputs = _whole(
        await device.outputs(here), await other.outputs(there), device, other, question
    )
    question.on_step("comparing tensors and single operations")
    level = Level(device, other, pairing, question.allowed)
    await level.measure(here, there)
    if not level.tensors:
        raise InvalidArgumentError(
            "no tensor is the same in both models",
            hint="compare two kinds of one network",
        )
    question.on_step("looking into control flow")
    entries = await _entries(level, "")
    found = Finding(
        entries=entries,
        outputs=outputs,
        first=_first(entries),
        most=_most(entries),
        behind=next((each for each in entries if _is_behind(each)), None),
        only_whole=None,
        level=level,
    )
    if found.first or found.passed or not isinstance(other, DeviceSide):
        return found
    question.on_step("looking for what the whole model does otherwise")
    position = await _bisected(level, other)
    entry = None if position is None else entries[position]
    return msgspec.structs.replace(found, only_whole=entry)


def _whole(
    mine: Sequence[Sequence[Array]],
    theirs: Sequence[Sequence[Array]],
    device: DeviceSide,
    other: Side,
    question: Question,
) -> tuple[tuple[str, Distance], ...]:
    """Compare outputs by position; a peer does not show states."""
    graphs = device.graph, other.graph
    found: dict[int, Distance] = {}
    for here, there in zip(mine, theirs, strict=True):
        for at, (got, want) in enumerate(zip(there, here, strict=False)):
            indexes = (graph.main.output_indexes[at] for graph in graphs)
            operands = [
                graph.main.operands[index]
                for graph, index in zip(graphs, indexes, strict=True)
            ]
            apart = distance(got, operands[1], want, operands[0], question.allowed)
            found[at] = apart.joined(found.get(at))
    names = [info.name for info in device.graph.named.outputs]
    return tuple((names[at], each) for at, each in found.items())


async def _entries(level: Level, prefix: str) -> tuple[PlacedOperation, ...]:
    entries = []
    for position in range(len(level.graph.main.operations)):
        entry = PlacedOperation(f"{prefix}{position}", level, position)
        if entry.own is not None:
            try:
                entry = PlacedOperation(
                    entry.place, level, position, await _inner(entry)
                )
            except AsyncnnError as error:  # such as of a loop that does not end
                level.problems[position] = f"what it runs cannot be compared: {error}"
        entries.append(entry)
    return tuple(entries)


async def _inner(entry: PlacedOperation) -> tuple[PlacedOperation, ...]:
    """Return the operations of what an IF or a WHILE runs.

    They may diverge where its results do not.
    """
    level, position = entry.level, entry.position
    operation = level.graph.main.operations[position]
    if operation.type not in _CONTROL_FLOW or not level.pairing.is_same:
        return ()
    if not isinstance(level.other, DeviceSide):
        return ()
    operands = level.graph.main.operands
    numbers = [
        operands[index].location.offset
        for index in operation.inputs
        if operands[index].type == _SUBGRAPH
    ]
    arrays = level.inputs_of(position, level.worst.get(position, 0))
    if operation.type == OperationType.IF:
        is_true = bool(arrays[0].item())
        name, number = ("then", numbers[0]) if is_true else ("else", numbers[1])
        parts: list[tuple[str, int, Sequence[Sequence[Array]]]] = [
            (name, number, [arrays[1:]])
        ]
    else:
        states = await _iterations(level.other, level.graph, numbers, arrays)
        parts = [("condition", numbers[0], states), ("body", numbers[1], states[:-1])]
    entries: list[PlacedOperation] = []
    for name, number, series in parts:
        graph = level.graph.branch(number)
        samples = [_sample(graph, each) for each in series]
        if samples:
            device, other = level.device, level.other
            inner = Level(
                device.with_graph(graph),
                other.with_graph(graph),
                pair(graph, graph),
                level.allowed,
            )
            await inner.measure(samples, samples)
            entries += await _entries(inner, f"{entry.place}/{name}/")
    return tuple(entries)


async def _iterations(
    side: DeviceSide, graph: ModelGraph, numbers: Sequence[int], arrays: Sequence[Array]
) -> list[Sequence[Array]]:
    """Return what a loop's condition is given in each iteration on a side."""
    condition, body = (graph.branch(number) for number in numbers)
    states: list[Sequence[Array]] = [arrays]
    while len(states) <= MOST_ITERATIONS:
        sample = _sample(condition, states[-1])
        ((goes_on,),) = await side.with_graph(condition).outputs([sample])
        if not goes_on.item():
            break
        sample = _sample(body, states[-1])
        (results,) = await side.with_graph(body).outputs([sample])
        states.append([*results, *states[-1][len(results) :]])
    return states


def _sample(graph: ModelGraph, arrays: Sequence[Array]) -> Sample:
    names = [info.name for info in graph.named.inputs]
    return dict(zip(names, arrays, strict=True))


def _first(entries: Sequence[PlacedOperation]) -> PlacedOperation | None:
    """Return the first operation that diverges, within control flow if it can."""
    for entry in entries:
        found = _first(entry.inner)
        if found is not None or entry.level.diverges(entry.position):
            return found or entry
    return None


def _is_behind(entry: PlacedOperation) -> bool:
    return entry.error is not None and not entry.error.passed


def _most(entries: Sequence[PlacedOperation]) -> PlacedOperation | None:
    """Return the operation that adds most error itself; the first of equal ones.

    What runs others adds none if these do.
    """
    best: PlacedOperation | None = None
    for entry in entries:
        found = _most(entry.inner) or entry
        if found.own is None or not found.own.units:
            continue
        if best is None or best.own is None or found.own.rank > best.own.rank:
            best = found
    return best


def every(entries: Sequence[PlacedOperation]) -> Iterator[PlacedOperation]:
    """Yield all operations, those within control flow after what runs them."""
    for entry in entries:
        yield entry
        yield from every(entry.inner)


async def _bisected(level: Level, other: DeviceSide) -> int | None:
    """Return the first operation at which models that end with it diverge.

    Such a model shows nothing on its way, so that a device may fuse all of it.
    """
    positions = sorted(level.errors)
    if not level.pairing.is_same or not positions:
        return None
    low, high = 0, len(positions) - 1
    while low < high:
        middle = (low + high) // 2
        if await _diverges(level, other, positions[middle]):
            high = middle
        else:
            low = middle + 1
    is_found = await _diverges(level, other, positions[low])
    return positions[low] if is_found else None


async def _diverges(level: Level, other: DeviceSide, position: int) -> bool:
    if not level.errors[position].passed:
        return False  # errors have added up, whole or not
    output = level.graph.main.operations[position].outputs[0]
    operand = level.graph.main.operands[output]
    extract = level.graph.extract(level.graph.needed(position, ()), {}, (output,))
    try:
        mine = await level.device.run(extract, level.here)
        theirs = await other.run(extract, level.there)
    except AsyncnnError:
        return False
    return not all(
        distance(b[output], operand, a[output], operand, level.allowed).passed
        for a, b in zip(mine, theirs, strict=True)
    )
