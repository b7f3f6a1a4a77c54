"""Makes a profile of many runs: medians, shares, and what is known of operations."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from asyncnn.engine.delegation import Step
from asyncnn.engine.plan import Plan
from asyncnn.hal.routes import RouteStep
from asyncnn.hal.types import Model, OperandLifeTime, Operation
from asyncnn.hal.types import Subgraph as HalSubgraph
from asyncnn.tools.profiling import (
    OperationProfile,
    PartitionProfile,
    Profile,
    SegmentProfile,
    StageProfile,
    Subgraph,
)
from asyncnn.tools.profiling.facts import (
    Facts,
    Parts,
    engine_name,
    facts_of_part,
    kernel_of,
    rounding_of,
    temporary_bytes,
)
from asyncnn.tools.profiling.timeline import (
    MEANINGS,
    Place,
    RunStage,
    Timeline,
    TracedExecution,
)

Key: TypeAlias = tuple[int, int]
"""Of a step: the identity of its subgraph, and its first output."""


class Seen(msgspec.Struct, frozen=True):
    """What runs have shown: one of them, how they went, and all of their times.

    ``facts`` are of single operations, ``parts`` of segments.
    """

    executions: Sequence[TracedExecution]
    route: Sequence[RouteStep]
    facts: Mapping[Key, Facts]
    parts: Mapping[Key, Parts]
    timelines: Sequence[Timeline]


class _Amount(NamedTuple):
    """A time, the median of all runs, and its share of the typical ones."""

    time_us: float
    share: float


class _Unit(msgspec.Struct, frozen=True, eq=False):
    """A step of a partition; ``numbers`` are of the executions that run it."""

    partition: int
    subgraph: Subgraph
    plan: Plan
    step: Step
    numbers: tuple[int, ...]

    @property
    def key(self) -> Key:
        return id(self.plan.subgraph), self.step.outputs[0]

    @property
    def places(self) -> list[Place]:
        return [(number, *self.key) for number in self.numbers]


class Summary:
    """The parts of the profile of a model on a device."""

    def __init__(self, model: Model, device: str, seen: Seen) -> None:
        self._model = model
        self._device = device
        self._seen = seen
        lines = seen.timelines
        self._typical = _typical([line.total_ns for line in lines])
        self._typical_ns = sum(
            lines[k].total_ns - lines[k].observing_ns for k in self._typical
        )
        self._of_execution = self._partitions_of_executions()
        self._units = self._all_units()

    def profile(self, **known: Any) -> Profile:
        """Return the profile; ``known`` are fields that only the caller knows."""
        operations = _with_readers(self._model, list(self._operations()))
        stages, lines = tuple(self._stages()), self._seen.timelines
        in_operations = sum(each.share for each in operations)
        of_main = len({each.index for each in operations if each.subgraph is None})
        return Profile(
            device=self._device,
            runs=len(lines),
            observed_us=_median_us(line.total_ns for line in lines),
            observing_us=_median_us(line.observing_ns for line in lines),
            accounted=in_operations + sum(each.share for each in stages),
            operations_share=in_operations,
            operations=operations,
            segments=tuple(self._segments()),
            partitions=tuple(self._partitions()),
            stages=stages,
            # A device that shows nothing has folded nothing, as far as is known.
            folded=len(self._model.main.operations) - of_main if of_main else 0,
            **known,
        )

    def _amount(self, times_ns: Sequence[float]) -> _Amount:
        """Return what one time of each run comes to."""
        in_typical_ns = sum(times_ns[k] for k in self._typical)
        share = max(in_typical_ns / self._typical_ns, 0.0)
        return _Amount(max(_median_us(times_ns), 0.0), share)

    def _amount_of(self, unit: _Unit) -> _Amount:
        lines = self._seen.timelines
        return self._amount(
            [sum(line.own_ns[p] for p in unit.places) for line in lines]
        )

    def _partitions_of_executions(self) -> list[int]:
        """Return the number of the partition of each execution.

        A partition may be executed twice, as when outputs had too little space.
        """
        found: list[int] = []
        route = self._seen.route
        last: HalSubgraph | None = None
        at = -1
        for execution in self._seen.executions:
            subgraph = None if execution.plan is None else execution.plan.subgraph
            if subgraph is None or subgraph is not last:
                at = self._next_of_route(subgraph, at + 1) if route else 0
            last = subgraph
            found.append(at)
        return found

    def _next_of_route(self, subgraph: HalSubgraph | None, first: int) -> int:
        """Return the next partition with the operations of ``subgraph``."""
        operations = self._model.main.operations
        route = self._seen.route
        if subgraph is not None:
            types = [int(operation.type) for operation in subgraph.operations]
            for number in range(first, len(route)):
                own = route[number].operations
                if types == [int(operations[index].type) for index in own]:
                    return number
        return min(first, len(route) - 1)

    def _all_units(self) -> list[_Unit]:
        """Return all steps that ran, by partition, main subgraphs first."""
        numbers: dict[tuple[int, Key], list[int]] = {}
        found: dict[tuple[int, Key], tuple[Subgraph, Plan, Step]] = {}
        for number, execution in enumerate(self._seen.executions):
            partition = self._of_execution[number]
            for plan, step, _, _ in execution.entries:
                is_main = plan is execution.plan
                which = None if is_main else self._number_of(plan.subgraph)
                unit = partition, (id(plan.subgraph), step.outputs[0])
                found.setdefault(unit, (which, plan, step))
                of_unit = numbers.setdefault(unit, [])
                if number not in of_unit:
                    of_unit.append(number)
        units = [
            _Unit(unit[0], *what, tuple(numbers[unit])) for unit, what in found.items()
        ]
        # Steps of a plan have run in its order.
        units.sort(
            key=lambda u: (u.partition, -1 if u.subgraph is None else u.subgraph)
        )
        return units

    def _number_of(self, subgraph: HalSubgraph) -> int:
        """Return the number of a referenced subgraph; beyond all if it is not known."""
        referenced = self._model.referenced
        for number, each in enumerate(referenced):
            if each is subgraph:
                return number
        return referenced.index(subgraph) if subgraph in referenced else len(referenced)

    def _index(self, unit: _Unit, part: Step) -> int:
        route = self._seen.route
        if unit.subgraph is None and route:
            return route[unit.partition].operations[part.position]
        return part.position

    def _device_of(self, partition: int) -> str:
        route = self._seen.route
        return route[partition].device if route else self._device

    def _segments(self) -> Iterable[SegmentProfile]:
        for unit in self._units:
            parts = self._seen.parts.get(unit.key)
            if parts is None:
                continue
            time_us, share = self._amount_of(unit)
            yield SegmentProfile(
                partition=unit.partition,
                subgraph=unit.subgraph,
                engine=engine_name(),
                operations=tuple(self._index(unit, part) for part in unit.step.parts),
                time_us=time_us,
                share=share,
                parts_us=parts.total_ns / 1000 if parts.measured else None,
            )

    def _operations(self) -> Iterable[OperationProfile]:
        segments = 0
        for unit in self._units:
            parts = self._seen.parts.get(unit.key)
            amount = self._amount_of(unit)
            if parts is None:
                facts = self._seen.facts[unit.key]
                yield self._operation(unit, unit.step, facts, amount)
                continue
            for part, share in zip(unit.step.parts, parts.shares, strict=True):
                facts = facts_of_part(part)
                own = _Amount(amount.time_us * share, amount.share * share)
                yield self._operation(unit, part, facts, own, segments)
            segments += 1

    def _operation(
        self,
        unit: _Unit,
        part: Step,
        facts: Facts,
        amount: _Amount,
        segment: int | None = None,
    ) -> OperationProfile:
        is_apportioned = segment is not None and len(unit.step.parts) > 1
        by_engine = segment is not None
        return OperationProfile(
            partition=unit.partition,
            subgraph=unit.subgraph,
            index=self._index(unit, part),
            type=part.operation.type.name,
            device=self._device_of(unit.partition),
            kernel=f"LiteRT, segment {segment}" if by_engine else kernel_of(part),
            rounding=rounding_of(part.operation, by_engine=by_engine),
            segment=segment,
            time_us=amount.time_us,
            share=amount.share,
            calls=statistics.median(
                float(sum(line.counts[place] for place in unit.places))
                for line in self._seen.timelines
            ),
            is_apportioned=is_apportioned,
            temporary_bytes=None if by_engine else temporary_bytes(unit.plan, part),
            reads=(),
            **asdict(facts),
        )

    def _partitions(self) -> Iterable[PartitionProfile]:
        route = self._seen.route
        whole = tuple(range(len(self._model.main.operations)))
        lines, count = self._seen.timelines, max(len(route), 1)
        for number in range(count):
            own = [k for k, at in enumerate(self._of_execution) if at == number]
            reported = _reported(lines, number, count)
            time_us = share = None
            if own:
                time_us, share = self._amount([_computed(line, own) for line in lines])
            elif reported:
                time_us, share = self._amount(reported)
            plans = [self._seen.executions[k].plan for k in own]
            arenas = [0 if plan is None else plan.arena.size_bytes for plan in plans]
            yield PartitionProfile(
                device=self._device_of(number),
                operations=route[number].operations if route else whole,
                time_us=time_us,
                share=share,
                arena_bytes=max(arenas, default=0),
                instead_of=route[number].instead_of if route else "",
                is_reported=not own and time_us is not None,
            )

    def _stages(self) -> Iterable[StageProfile]:
        lines = self._seen.timelines
        for stage in RunStage:
            if not any(line.stages[stage] for line in lines):
                continue
            time_us, share = self._amount([line.stages[stage] for line in lines])
            yield StageProfile(
                name=stage.value, meaning=MEANINGS[stage], time_us=time_us, share=share
            )


def _typical(times: Sequence[float]) -> list[int]:
    """Return which half of the runs took neither long nor short.

    What disturbs a run disturbs one part of it or another. So medians of the parts add
    up to less than the whole; sums over the same runs do not.
    """
    ordered = sorted(range(len(times)), key=lambda k: times[k])
    left_out = len(ordered) // 4
    return ordered[left_out : len(ordered) - left_out]


def _median_us(times_ns: Iterable[float]) -> float:
    return statistics.median(times_ns) / 1000


def _computed(line: Timeline, executions: Sequence[int]) -> int:
    return sum(line.computed_ns[k] for k in executions if k < len(line.computed_ns))


def _reported(lines: Sequence[Timeline], number: int, count: int) -> list[int]:
    """Return what runs report of a partition, of so many; nothing if one does not."""
    found = [line.reported_ns[-count:] for line in lines]
    if any(len(each) < count for each in found):
        return []
    return [each[number] for each in found]


def _with_readers(
    model: Model, rows: Sequence[OperationProfile]
) -> tuple[OperationProfile, ...]:
    """Say of each operation which others compute what it reads."""
    # A partition has referenced subgraphs of its own; what is in the main one may be
    # read in another partition.
    places = [
        (None if row.subgraph is None else row.partition, row.subgraph) for row in rows
    ]
    makers: dict[tuple[object, int], int] = {}
    callers: dict[tuple[int, int], int] = {}
    operations = [_operation_of(model, row) for row in rows]
    for position, (place, row, operation) in enumerate(
        zip(places, rows, operations, strict=True)
    ):
        if operation is None:
            continue
        for index in operation.outputs:
            makers[place, index] = position
        operands = _subgraph(model, row.subgraph).operands
        for index in operation.inputs:
            if operands[index].lifetime == OperandLifeTime.SUBGRAPH:
                run = operands[index].location.offset
                callers[row.partition, run] = position
    complete: list[OperationProfile] = []
    for place, row, operation in zip(places, rows, operations, strict=True):
        reads: dict[int, None] = {}
        for index in () if operation is None else operation.inputs:
            if (place, index) in makers:
                reads[makers[place, index]] = None
        if not reads and row.subgraph is not None:
            caller = callers.get((row.partition, row.subgraph))
            reads = {} if caller is None else {caller: None}
        complete.append(replace(row, reads=tuple(reads)))
    return tuple(complete)


def _operation_of(model: Model, row: OperationProfile) -> Operation | None:
    operations = _subgraph(model, row.subgraph).operations
    return operations[row.index] if row.index < len(operations) else None


def _subgraph(model: Model, number: Subgraph) -> HalSubgraph:
    """Return a subgraph; an empty one for a number that the model does not have."""
    if number is None:
        return model.main
    if number < len(model.referenced):
        return model.referenced[number]
    return HalSubgraph((), (), (), ())
