"""Each partition as a HAL model of its own, and where its arguments come from.

Constants are shared with the model, not copied. What one partition writes and another
reads is an output of the one and an input of the other; the framework has memory for
it, unless it is an output of the model, which lies where the client wants it.

Source: the HAL's runtime (ExecutionStep: addOperand, finishStepModel).
"""

from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.engine.arena import align
from asyncnn.hal.operands import size_of_data_bytes
from asyncnn.runtime.framework.partition import crossing_operands, is_open

_INPUT = hal.OperandLifeTime.SUBGRAPH_INPUT
_OUTPUT = hal.OperandLifeTime.SUBGRAPH_OUTPUT
_TEMPORARY = hal.OperandLifeTime.TEMPORARY_VARIABLE
_REFERENCE = hal.OperandLifeTime.CONSTANT_REFERENCE
_COPY = hal.OperandLifeTime.CONSTANT_COPY


class Kind(Enum):
    """What an argument of a partition is to the whole model."""

    INPUT = "input"
    OUTPUT = "output"
    INTERMEDIATE = "intermediate"


class ArgumentSource(msgspec.Struct, frozen=True):
    """Where an argument lies.

    That is the model's input or output at ``position``, or the intermediate tensor of
    that number. ``operand`` describes it.
    """

    kind: Kind
    position: int
    operand: hal.Operand


class SubModel(msgspec.Struct, frozen=True):
    """One partition's model; ``operations`` are the ones of the whole that it has."""

    model: hal.Model
    operations: tuple[int, ...]
    inputs: tuple[ArgumentSource, ...]
    outputs: tuple[ArgumentSource, ...]


class Intermediate(msgspec.Struct, frozen=True):
    """A tensor between partitions: ``size`` bytes at ``offset``, both 0 if open."""

    operand: hal.Operand
    size: int
    offset: int


class SubModels(msgspec.Struct, frozen=True):
    """All partitions of a model, and the tensors between them.

    ``total_bytes`` are of all intermediates of known size; with ``is_static``
    that is all of them, and ``outputs_read``, outputs of the model that a later
    partition reads, are of known size too.
    """

    steps: tuple[SubModel, ...]
    intermediates: tuple[Intermediate, ...]
    total_bytes: int
    is_static: bool
    outputs_read: frozenset[int]


def build_submodels(model: hal.Model, parts: Sequence[Sequence[int]]) -> SubModels:
    """Return the models of partitions, which are in the order in which they run."""
    main = model.main
    crossing = crossing_operands(main, parts)
    inputs = {index: k for k, index in enumerate(main.input_indexes)}
    outputs = {index: k for k, index in enumerate(main.output_indexes)}
    builder = _Builder(model, crossing, inputs, outputs)
    steps = tuple(builder.build(part) for part in parts)
    intermediates, total = _placed(builder.intermediates)
    is_static = not any(is_open(main.operands[index]) for index in crossing)
    outputs_read = frozenset(
        source.position
        for step in steps
        for source in step.inputs
        if source.kind is Kind.OUTPUT
    )
    return SubModels(steps, intermediates, total, is_static, outputs_read)


def _placed(operands: Iterable[hal.Operand]) -> tuple[tuple[Intermediate, ...], int]:
    placed: list[Intermediate] = []
    end = 0
    for operand in operands:
        size = 0
        if not is_open(operand):
            size = size_of_data_bytes(operand.type, operand.dimensions)
        placed.append(Intermediate(operand, size, end if size else 0))
        end += align(size)
    return tuple(placed), end


class _Builder(msgspec.Struct, eq=False):
    _model: hal.Model
    _crossing: set[int]
    _inputs: dict[int, int]
    _outputs: dict[int, int]
    _numbers: dict[int, int] = {}
    intermediates: list[hal.Operand] = []

    def build(self, part: Sequence[int]) -> SubModel:
        main = self._model.main
        operations = [main.operations[position] for position in part]
        written = {index for each in operations for index in each.outputs}
        leaving = self._leaving(operations, written)
        order: dict[int, int] = {}
        counts: dict[int, int] = {}
        for operation in operations:
            for index in (*operation.inputs, *operation.outputs):
                order.setdefault(index, len(order))
            for index in operation.inputs:
                counts[index] = counts.get(index, 0) + 1
        coming = [
            index
            for index in order
            if index not in written
            and main.operands[index].lifetime in (_INPUT, _OUTPUT, _TEMPORARY)
        ]
        pools = _ConstantPools(self._model, [main.operands[index] for index in order])
        operands = tuple(
            replace(
                pools.moved(main.operands[index]),
                lifetime=self._lifetime(index, coming, leaving),
                number_of_consumers=counts.get(index, 0),
            )
            for index in order
        )
        subgraph = hal.Subgraph(
            operands,
            tuple(
                hal.Operation(
                    each.type,
                    tuple(order[index] for index in each.inputs),
                    tuple(order[index] for index in each.outputs),
                )
                for each in operations
            ),
            tuple(order[index] for index in coming),
            tuple(order[index] for index in leaving),
        )
        return SubModel(
            pools.model_of(subgraph),
            tuple(part),
            tuple(self._source(index) for index in coming),
            tuple(self._source(index) for index in leaving),
        )

    def _leaving(self, operations: list[hal.Operation], written: set[int]) -> list[int]:
        """Return what a partition writes that is needed outside.

        A partition that nobody needs still has an output, as a model must.
        """
        leaving = [
            index
            for each in operations
            for index in each.outputs
            if index in self._crossing or index in self._outputs
        ]
        return leaving or sorted(written)[:1]

    def _lifetime(self, index: int, coming: list[int], leaving: list[int]) -> int:
        if index in coming:
            return _INPUT
        if index in leaving:
            return _OUTPUT
        lifetime = self._model.main.operands[index].lifetime
        return _TEMPORARY if lifetime == _OUTPUT else lifetime

    def _source(self, index: int) -> ArgumentSource:
        operand = self._model.main.operands[index]
        if index in self._inputs:
            return ArgumentSource(Kind.INPUT, self._inputs[index], operand)
        if index in self._outputs:
            return ArgumentSource(Kind.OUTPUT, self._outputs[index], operand)
        if index not in self._numbers:
            self._numbers[index] = len(self.intermediates)
            self.intermediates.append(operand)
        return ArgumentSource(Kind.INTERMEDIATE, self._numbers[index], operand)


class _ConstantPools:
    """The pools that the constants of one partition need, and no others.

    Subgraphs that it refers to need the pools that they have always had.
    """

    def __init__(self, model: hal.Model, operands: Iterable[hal.Operand]) -> None:
        self._model = model
        lifetimes = {operand.lifetime for operand in operands}
        self._needs_all = hal.OperandLifeTime.SUBGRAPH in lifetimes
        self._needs_copies = self._needs_all or _COPY in lifetimes
        used = sorted(
            {
                operand.location.pool_index
                for operand in operands
                if operand.lifetime == _REFERENCE
            }
        )
        if self._needs_all:
            used = list(range(len(model.pools)))
        self._numbers = {index: number for number, index in enumerate(used)}

    def moved(self, operand: hal.Operand) -> hal.Operand:
        if operand.lifetime != _REFERENCE:
            return operand
        at = operand.location
        number = self._numbers[at.pool_index]
        return replace(operand, location=hal.DataLocation(number, at.offset, at.length))

    def model_of(self, subgraph: hal.Subgraph) -> hal.Model:
        model = self._model
        return replace(
            model,
            main=subgraph,
            referenced=model.referenced if self._needs_all else (),
            operand_values=model.operand_values if self._needs_copies else b"",
            pools=tuple(model.pools[index] for index in self._numbers),
        )
