"""Parts of models as models: with tensors shown, operations separated or alone.

The HAL shows nothing of a run but the outputs of the model. A model whose temporaries
are outputs too shows all of them; one in which operations do not read what others write
but inputs of the model computes each operation by itself, all in one run.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.extensions import Extension
from asyncnn.hal.operands import size_of_data_bytes
from asyncnn.hal.operations.bound import Array
from asyncnn.memory.pools import from_buffer, part_of
from asyncnn.runtime.model import NamedModel

_INPUT = hal.OperandLifeTime.SUBGRAPH_INPUT
_OUTPUT = hal.OperandLifeTime.SUBGRAPH_OUTPUT
_TEMPORARY = hal.OperandLifeTime.TEMPORARY_VARIABLE
_SUBGRAPH = hal.OperandLifeTime.SUBGRAPH
_WRITTEN = frozenset({_TEMPORARY, _OUTPUT})

MOST_BYTES = 1 << 28
"""Bytes of tensors, as far as they are declared, that one run shows."""

_Key = tuple[bool, int]
"""An operand of the whole model, and whether it stands for a value that is given."""


class Extract(msgspec.Struct, frozen=True, eq=False):
    """Operations of a model as a model of their own.

    Its inputs and outputs are the operands ``inputs`` and ``outputs`` of the whole.
    """

    named: NamedModel
    operations: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class ModelGraph:
    """The main subgraph of a model: who writes what, and parts of it.

    ``extensions`` are those whose types the model has; its states are open.
    """

    def __init__(self, named: NamedModel, extensions: Sequence[Extension] = ()) -> None:
        self.named = named
        self.extensions = tuple(extensions)
        self.main = named.model.main
        self.writers: dict[int, int] = {
            index: position
            for position, operation in enumerate(self.main.operations)
            for index in operation.outputs
        }
        """Positions of operations by what they write."""
        self.folded = self._folded()
        """Operands that follow from constants alone."""

    def values_of(self, sample: Mapping[str, Array]) -> dict[int, Array]:
        """Return arrays by the inputs' names by the operands that these are."""
        names = (info.name for info in self.named.inputs)
        indexes = self.main.input_indexes
        return {i: sample[name] for i, name in zip(indexes, names, strict=True)}

    def _folded(self) -> frozenset[int]:
        known = {
            index
            for index, operand in enumerate(self.main.operands)
            if operand.lifetime not in (*_WRITTEN, _INPUT)
        }
        folded: set[int] = set()
        for operation in self.main.operations:
            if all(i in known or i in folded for i in operation.inputs):
                folded.update(operation.outputs)
        return frozenset(folded)

    def label(self, index: int) -> str:
        """Return what an operand is called: in its file, at the border, or a number."""
        names = self.named.operand_names
        if index < len(names) and names[index]:
            return names[index]
        for infos, indexes in (
            (self.named.inputs, self.main.input_indexes),
            (self.named.outputs, self.main.output_indexes),
        ):
            for info, border in zip(infos, indexes, strict=True):
                if border == index:
                    return info.name
        return f"tensor {index}"

    def operation_name(self, position: int) -> str:
        """Return the name of the type of an operation."""
        type_ = self.main.operations[position].type
        return self.named.vocabulary.operation_type(type_)

    def shown(self) -> Iterator[Extract]:
        """Yield the whole model with all it computes as outputs, in several batches."""
        border = self.main.output_indexes
        others = [index for index in self.writers if index not in border]
        sizes = [self._size(index) for index in others]
        batch: list[int] = []
        total = 0
        for index, size in zip(others, sizes, strict=True):
            if batch and total + size > MOST_BYTES:
                yield self.extract(self._all(), {}, (*border, *batch))
                batch, total = [], 0
            batch.append(index)
            total += size
        yield self.extract(self._all(), {}, (*border, *batch))

    def _all(self) -> range:
        return range(len(self.main.operations))

    def _size(self, index: int) -> int:
        operand = self.main.operands[index]
        if not all(operand.dimensions):
            return 0
        return size_of_data_bytes(operand.type, operand.dimensions)

    def needed(self, position: int, given: Collection[int]) -> tuple[int, ...]:
        """Return an operation, and those that compute what it is not given."""
        found: set[int] = set()
        waiting = [position]
        while waiting:
            at = waiting.pop()
            if at in found:
                continue
            found.add(at)
            waiting += [
                self.writers[index]
                for index in self.main.operations[at].inputs
                if index in self.writers and index not in given
            ]
        return tuple(sorted(found))

    def batches(
        self, positions: Iterable[int], given: Collection[int]
    ) -> Iterator[list[int]]:
        """Divide operations so that what a batch reads and writes is limited."""
        batch: list[int] = []
        total = 0
        for position in positions:
            operation = self.main.operations[position]
            near = {*operation.inputs, *operation.outputs}
            size = sum(self._size(i) for i in near if i in self.writers or i in given)
            if batch and total + size > MOST_BYTES:
                yield batch
                batch, total = [], 0
            batch.append(position)
            total += size
        if batch:
            yield batch

    def extract(
        self,
        positions: Iterable[int],
        given: Mapping[int, Array | None],
        wanted: Sequence[int],
    ) -> Extract:
        """Return a model of the operations at ``positions``, in their order.

        :param given: operands that they do not compute but read: from an input of the
            extract, or the array, which is the same in each run.
        :param wanted: operands that they write, which become the outputs.
        """
        chosen = tuple(sorted(positions))
        part = _NumberedPart(self, chosen, given, wanted)
        return part.extract()

    def branch(self, number: int) -> "ModelGraph":
        """Return the graph of the referenced subgraph of this number."""
        model = self.named.model
        main = model.referenced[number]
        named = NamedModel.of(
            replace(model, main=main),
            [f"input {index}" for index in range(len(main.input_indexes))],
            [f"output {index}" for index in range(len(main.output_indexes))],
        )
        return ModelGraph(self.known(named), self.extensions)

    def known(self, named: NamedModel) -> NamedModel:
        """Return a part of the model with the names and types of its extensions."""
        if not self.named.extension_names:
            return named
        named = replace(named, extension_names=self.named.extension_names)
        return named.knowing(self.extensions)


class _NumberedPart:
    """An extract while its operands are numbered anew."""

    def __init__(
        self,
        graph: ModelGraph,
        positions: tuple[int, ...],
        given: Mapping[int, Array | None],
        wanted: Sequence[int],
    ) -> None:
        self._graph = graph
        self._positions = positions
        self._given = given
        self._wanted = tuple(wanted)
        self._order: dict[_Key, int] = {}
        self._consumers: list[int] = []
        self._pools: list[hal.Memory] = list(graph.named.model.pools)

    def extract(self) -> Extract:
        main = self._graph.main
        operations = []
        for position in self._positions:
            operation = main.operations[position]
            reads = tuple(self._read(index) for index in operation.inputs)
            writes = tuple(self._number((False, index)) for index in operation.outputs)
            operations.append(hal.Operation(operation.type, reads, writes))
        operands = tuple(map(self._operand, self._order))
        inputs = [
            (key[1], number)
            for key, number in self._order.items()
            if operands[number].lifetime == _INPUT
        ]
        border = {index: at for at, index in enumerate(main.input_indexes)}
        inputs.sort(key=lambda each: border.get(each[0], len(border)))
        subgraph = hal.Subgraph(
            operands,
            tuple(operations),
            tuple(number for _, number in inputs),
            tuple(self._order[False, index] for index in self._wanted),
        )
        whole = self._graph.named.model
        runs_others = any(each.lifetime == _SUBGRAPH for each in operands)
        model: hal.Model = replace(
            whole,
            main=subgraph,
            referenced=whole.referenced if runs_others else (),
            pools=tuple(self._pools),
        )
        indexes = tuple(index for index, _ in inputs)
        label = self._graph.label
        named = NamedModel.of(
            model,
            _unique([(label(index), index) for index in indexes]),
            _unique([(label(index), index) for index in self._wanted]),
        )
        return Extract(self._graph.known(named), self._positions, indexes, self._wanted)

    def _read(self, index: int) -> int:
        number = self._number((index in self._given, index))
        self._consumers[number] += 1
        return number

    def _number(self, key: _Key) -> int:
        number = self._order.setdefault(key, len(self._order))
        if number == len(self._consumers):
            self._consumers.append(0)
        return number

    def _operand(self, key: _Key) -> hal.Operand:
        is_given, index = key
        operand = self._graph.main.operands[index]
        consumers = self._consumers[self._order[key]]
        if is_given:
            value = self._given[index]
            if value is not None and value.size:
                return self._constant(operand, value, consumers)
            return replace(operand, lifetime=_INPUT, number_of_consumers=consumers)
        lifetime = operand.lifetime
        if lifetime in _WRITTEN:
            lifetime = _OUTPUT if index in self._wanted else _TEMPORARY
        return replace(operand, lifetime=lifetime, number_of_consumers=consumers)

    def _constant(
        self, operand: hal.Operand, value: Array, consumers: int
    ) -> hal.Operand:
        data = np.array(value, order="C")
        self._pools.append(from_buffer(data.reshape(-1).view(np.uint8)))
        return replace(
            operand,
            dimensions=data.shape,
            lifetime=hal.OperandLifeTime.CONSTANT_REFERENCE,
            location=hal.DataLocation(len(self._pools) - 1, 0, data.nbytes),
            number_of_consumers=consumers,
        )


def _unique(labels: Sequence[tuple[str, int]]) -> list[str]:
    names: dict[str, None] = {}
    for label, index in labels:
        name = label
        while name in names:
            name += f"_{index}"
        names[name] = None
    return list(names)


def compacted(named: NamedModel) -> NamedModel:
    """Return a model without the parts of its pools that no constant lies in."""
    model = named.model
    pools: list[hal.Memory] = []
    places: dict[hal.DataLocation, hal.DataLocation] = {}

    def moved(operand: hal.Operand) -> hal.Operand:
        if operand.lifetime != hal.OperandLifeTime.CONSTANT_REFERENCE:
            return operand
        at = operand.location
        if at not in places:
            places[at] = hal.DataLocation(len(pools), 0, at.length)
            pools.append(part_of(model.pools[at.pool_index], at.offset, at.length))
        return replace(operand, location=places[at])

    main, *referenced = (
        replace(subgraph, operands=tuple(map(moved, subgraph.operands)))
        for subgraph in (model.main, *model.referenced)
    )
    small = replace(model, main=main, referenced=tuple(referenced), pools=tuple(pools))
    return replace(named, model=small)
