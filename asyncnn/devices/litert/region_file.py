"""Puts a head in front of a TFLite file, for a run that can be stopped in between.

Offsets of flatbuffers lead forward: tables of the head refer to tables of the file that
lies behind it, unchanged; there is room for heads in front of most. LiteRT reaches no
table but through the head, and of the file only those whose fields were all checked;
what has others is written anew. Tensors that cross a barrier are copied by an operator
of the head, and those behind it, which read the copies, are written anew, too. So are
outputs copied that LiteRT would not write to: inputs, constants, and those that a graph
lists before. Where there is no room, large weights lie apart (`graph_file`). Graphs
that others run have barriers, too; what nothing runs is empty.

Where lengths follow from a run alone, as behind loops, outputs are copied by operators
that fail unless lengths are as recorded: LiteRT would leave the rest of a longer array.

A long graph has several heads, each with a part of its operators. The file is behind
all of them, so that weights are there once.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from asyncnn.devices.litert.cuts import barriers, is_short, last_reads
from asyncnn.devices.litert.flat_file import (
    OFFSET_BYTES,
    REFERENCE,
    Field,
    FlatFile,
    Place,
    layout_of,
)
from asyncnn.devices.litert.graph_file import (
    ALIGNMENT,
    Apart,
    GraphFile,
    may_lie_apart,
    referring,
)
from asyncnn.devices.litert.region_parts import (
    COPIED_BYTES,
    NewOperator,
    Step,
    TimedOperator,
    check_holes,
    holes_of,
    placed,
    short_of,
    timed_of_records,
    timed_operators,
)
from asyncnn.engine.array_memory import address_of
from asyncnn.engine.costs import Speeds, estimated_of_graph_ns
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.memory.pages import ROOM_BYTES, Room, room_before
from asyncnn.tflite import flatbuffer
from asyncnn.tflite.contents import IDENTIFIER
from asyncnn.tflite.runnable import OWN_CUSTOM, custom_options, reached
from asyncnn.tflite.tables import (
    ALL_DTYPES,
    PACKED,
    Contents,
    Graph,
    Operator,
    ShortTensor,
    StoredBytes,
    Survey,
    Tensor,
    generated,
)

_WEIGHTS = frozenset({"FLOAT32", "FLOAT16", "INT8", "UINT8", PACKED})
"""Types of what is only computed with."""

_BUILTINS = generated("BuiltinOperator").BuiltinOperator
_SHAPE_OPTIONS = generated("BuiltinOptions").BuiltinOptions.ShapeOptions
_INT32 = generated("TensorType").TensorType.INT32
_COMPARING_SHAPES = _BUILTINS.SHAPE, _BUILTINS.SUB, _BUILTINS.GATHER, _BUILTINS.RESHAPE
_BUFFER_APART = layout_of(((1, "Q"), (2, "Q")))
_OFFSET_IN_BUFFER = 8


def region_file(
    contents: Contents,
    input_shapes: Sequence[Shape],
    speeds: Speeds,
    *,
    output_shape: Shape | None = None,
    is_checked: bool = False,
) -> GraphFile:
    """Return the file of graphs that were checked (`asyncnn.tflite.runnable`).

    ``input_shapes`` are the main graph's inputs'. All its outputs are said to
    have ``output_shape`` if it is given; there are no barriers then. With
    ``is_checked``, a run fails if an output has not the recorded lengths.
    """
    main = contents.graphs[0]
    shapes = dict(zip(main.inputs, input_shapes, strict=True))
    if output_shape is not None:
        shapes |= dict.fromkeys(main.outputs, output_shape)
    wanted = shapes, None if output_shape is not None else speeds
    tables = contents.buffers, main.tensors, (main.survey or main).operators
    whole, room = np.frombuffer(contents.data, np.uint8), None
    if OFFSET_BYTES * sum(map(len, tables)) < ROOM_BYTES:  # for references alone
        room = room_before(whole)
    if room is not None and not room.distance % ALIGNMENT:
        file = _Head(contents, is_checked, room).finish(*wanted)
        if len(file.content) <= ROOM_BYTES:
            return file
    return _Head(contents, is_checked, None).finish(*wanted)


class _Head:
    def __init__(self, contents: Contents, is_checked: bool, room: Room | None) -> None:
        self._contents = contents
        self._is_checked = is_checked
        self._room = room
        self._data = contents.data
        self._whole = np.frombuffer(contents.data, np.uint8)
        self._address = address_of(self._whole)
        self._file = file = FlatFile(room.distance if room else 0)
        self._empty = file.table(())
        self._buffers = dict[int, Place]()
        self._next_buffer = len(contents.buffers) or 1
        self._apart: list[tuple[Place, Array]] = []
        self._holes: list[tuple[int, int]] = []
        self._kept: list[StoredBytes] = []
        # What no operator has is not what LiteRT has to know.
        adding = file.table(((0, "b", _BUILTINS.ADD_N),))
        copying = file.table(((0, "b", 127), (2, "i", 1), (3, "i", _BUILTINS.BITCAST)))
        self._adding = len(contents.codes)
        self._codes = [copying] * self._adding + [adding, copying]
        if is_checked:
            self._codes += [file.table(((0, "b", k),)) for k in _COMPARING_SHAPES]

    def finish(self, shapes: dict[int, Shape], speeds: Speeds | None) -> GraphFile:
        """Return the file; ``speeds`` decide where barriers are, None if nowhere."""
        file = self._file
        main, *others = self._contents.graphs
        run = reached(self._contents) if others else ()
        nothing = file.table([(k, REFERENCE, file.numbers(())) for k in range(4)])
        graphs = [self._graph(main, shapes, speeds)]
        graphs += [
            self._graph(each, {}, speeds) if each.index in run else nothing
            for each in others
        ]
        buffers = [self._buffers.get(k, self._empty) for k in range(self._next_buffer)]
        model = file.table(
            (
                (0, "I", 3),
                (1, REFERENCE, file.references(self._codes)),
                (2, REFERENCE, file.references(graphs)),
                (4, REFERENCE, file.references(buffers)),
            )
        )
        check_holes(self._contents, self._holes, self._kept)
        content = file.joined(model, IDENTIFIER)
        room = self._room
        end = len(content) + (room.distance if room else 0)
        apart = tuple(
            Apart(end - place + _OFFSET_IN_BUFFER, data) for place, data in self._apart
        )
        if room is None:
            return GraphFile(content, apart, self._whole, tuple(sorted(self._holes)))
        content = referring(content, apart, room.end - len(content))
        return GraphFile(content, behind=self._whole, room=room)

    def _graph(
        self, graph: Graph, shapes: dict[int, Shape], speeds: Speeds | None
    ) -> Place:
        file, survey = self._file, graph.survey
        if survey is None:
            tensors = self._tensors(graph, shapes)
        else:
            tensors = self._surveyed(graph, survey, shapes)
        steps = self._steps(graph, shapes, tensors, speeds)
        inputs, outputs = list(graph.inputs), list(graph.outputs)
        if survey is None:
            for position, index in enumerate(inputs):
                if index in inputs[position + 1 :]:  # which has the value
                    name, shape = f"input_{position}", shapes.get(index)
                    own = short_of(self._data, graph.tensors[index])
                    place = self._described(own, shape, name=name)
                    inputs[position] = len(tensors)
                    tensors.append(place)
            unmade = {e.index for e in graph.tensors if e.stored is not None}
            is_checked = self._is_checked and not graph.index
            for position, index in enumerate(outputs):
                # LiteRT's loops copy what changes places over what is yet to be copied.
                is_same = graph.index and [index] == inputs[position : position + 1]
                is_moved = index in graph.inputs and not is_same
                if is_checked or is_moved or index in unmade:
                    read, code = [index], self._adding + 1
                    if is_checked:
                        wanted = graph.tensors[index].shape
                        checks, constant = self._checked(index, wanted, tensors)
                        steps, read = steps + checks, [index, constant]
                        code += len(_COMPARING_SHAPES)
                    outputs[position] = len(tensors)
                    name, shape = f"output_{position}", shapes.get(index)
                    own = short_of(self._data, graph.tensors[index])
                    place = self._described(own, shape, name=name)
                    steps.append(self._added(code, read, place, tensors))
                unmade.add(index)
        return file.table(
            (
                (0, REFERENCE, file.references(tensors)),
                (1, REFERENCE, file.numbers(inputs)),
                (2, REFERENCE, file.numbers(outputs)),
                (3, REFERENCE, file.references(placed(file, steps))),
                (4, REFERENCE, file.string("main")),
            )
        )

    def _checked(
        self, index: int, shape: Shape, tensors: list[Place]
    ) -> tuple[list[Step], int]:
        """Describe operators that fail unless a tensor has a shape, a constant.

        GATHER takes the one element of a constant by each difference of lengths.
        """
        code, place = self._adding + 2, self._integers(len(shape))
        wanted, one = [self._constant(each, tensors) for each in (shape, (0,))]
        if not shape:  # RESHAPE counts elements
            return [], wanted
        of_int32 = _SHAPE_OPTIONS, self._file.table(((0, "b", _INT32),))
        steps: list[Step] = [self._added(code, [index], place, tensors, of_int32)]
        for read in [len(tensors) - 1, wanted], [one, len(tensors)]:
            code += 1
            steps.append(self._added(code, read, place, tensors))
        return steps, wanted

    def _constant(self, values: Sequence[int], tensors: list[Place]) -> int:
        """Return the index of a new constant of int32."""
        number, data = self._next_buffer, np.array(values, np.int32).view(np.uint8)
        self._next_buffer += 1
        self._buffers[number] = self._file.table(
            ((0, REFERENCE, self._file.data(data)),)
        )
        tensors.append(self._integers(len(values), number))
        return len(tensors) - 1

    def _integers(self, count: int, buffer: int = 0) -> Place:
        """Describe a tensor of int32 with one axis."""
        lengths = self._file.numbers((count,))
        return self._file.table(
            ((0, REFERENCE, lengths), (1, "b", _INT32), (2, "I", buffer))
        )

    def _surveyed(
        self, graph: Graph, survey: Survey, shapes: dict[int, Shape]
    ) -> list[Place]:
        """Return where tensors of a sound graph are described; place its buffers."""
        file, tensors = self._file, survey.tensors
        ends = {*graph.inputs, *graph.outputs}
        places = [-each.table for each in tensors]
        anew = {index for index, each in enumerate(tensors) if each.is_anew}
        buffers: Iterable[int] = range(len(survey.buffers))
        holes = {} if self._room else holes_of(survey, self._whole)
        if survey.is_part:
            operators = survey.operators
            own = ends.union(*[each.reads + each.outputs for each in operators])
            anew = (anew & own) | ends
            own.discard(-1)
            buffers = {tensors[index].buffer for index in own}
            unread = file.table(((0, REFERENCE, file.numbers(())),))
            for index in range(len(places)):
                if index not in own:
                    places[index] = unread
        self._holes += holes.values()
        for number in buffers:
            place, start, size, width = survey.buffers[number]
            if number in holes:
                place = -self._placed_apart(self._whole[start : start + size])
            elif width and start % width:
                data = self._whole[start : start + size]
                place = -file.table(((0, REFERENCE, file.data(data)),))
            if width:
                self._buffers[number] = -place
        for index in anew:
            name = f"tensor_{index}" if index in ends else ""
            tensor, shape = tensors[index], shapes.get(index)
            places[index] = self._described(tensor, shape, tensor.buffer, name)
        return places

    def _tensors(self, graph: Graph, shapes: dict[int, Shape]) -> list[Place]:
        """Return where tensors of any graph are described; place its buffers."""
        dense = {
            each.outputs[0]: graph.tensors[each.inputs[0]].stored
            for each in graph.operators
            if each.name == "DENSIFY"
        }
        ends = {*graph.inputs, *graph.outputs}
        read = ends.union(*[e.inputs for e in graph.operators if e.name != "DENSIFY"])
        return [
            self._tensor(each, shapes.get(each.index), dense.get(each.index), ends)
            if each.index in read or each.stored is None
            else self._described(short_of(self._data, each), None)
            for each in graph.tensors
        ]

    def _tensor(
        self, tensor: Tensor, shape: Shape | None, dense: Array | None, ends: set[int]
    ) -> Place:
        """Return where a tensor is described: in the file, or anew."""
        data, buffer = tensor.stored if dense is None else dense, tensor.buffer
        if data is not None:
            buffer = self._buffer(tensor, data, dense is not None)
        is_end = tensor.index in ends
        is_same = buffer == tensor.buffer and shape is None
        if tensor.is_plain and is_same and not is_end:
            return -tensor.table
        name = f"tensor_{tensor.index}" if is_end else ""
        return self._described(short_of(self._data, tensor), shape, buffer, name)

    def _described(
        self, tensor: ShortTensor, shape: Shape | None, buffer: int = 0, name: str = ""
    ) -> Place:
        """Describe a tensor anew; with the ``shape`` that it has in the file if None.

        That has other vectors, too, which are referred to.
        """
        file, lengths = self._file, -tensor.lengths
        if shape is not None or not lengths:
            lengths = file.numbers(shape or ())
        fields: list[Field] = [(1, "b", tensor.kind), (2, "I", buffer), (8, "?", True)]
        fields.append((0, REFERENCE, lengths))
        if name:
            fields.append((3, REFERENCE, file.string(name)))
        if tensor.count:
            points = -tensor.points or file.numbers((0,) * tensor.count, "q")
            parts: list[Field] = [(2, REFERENCE, -tensor.scales)]
            parts += [(3, REFERENCE, points), (6, "i", tensor.axis)]
            fields.append((4, REFERENCE, file.table(parts)))
        return file.table(fields)

    def _buffer(self, tensor: Tensor, data: Array, is_dense: bool) -> int:
        """Return the number of the buffer of a constant.

        Those that are not in the file as they are, are in the head, or lie apart.
        """
        file, number = self._file, tensor.buffer
        own, known = self._contents.buffers[number], self._buffers.get(number)
        # To check that nothing lies in holes takes longer than to copy twice as much.
        may_be_apart = tensor.type in _WEIGHTS and len(self._data) > 2 * COPIED_BYTES
        may_be_apart &= not (self._room and own.is_plain)
        is_here = address_of(data) == self._address + own.start and not is_dense
        if is_here and known is not None and (known < 0 or may_be_apart):
            return number
        flat = data.reshape(-1).view(np.uint8)
        # Buffer 0 stands for no data to LiteRT, whatever is in it.
        if not (is_here and number) or known is not None:
            number, self._next_buffer = self._next_buffer, self._next_buffer + 1
        if number == tensor.buffer and may_be_apart and may_lie_apart(flat):
            place = self._placed_apart(flat)
            self._holes.append((own.start, flat.size))
        elif (
            number == tensor.buffer
            and own.is_plain
            and not own.start % ALL_DTYPES[tensor.type].itemsize
        ):
            place = -own.table
            self._kept.append(own)
        else:
            place = file.table(((0, REFERENCE, file.data(flat)),))
        self._buffers[number] = place
        return number

    def _placed_apart(self, data: Array) -> Place:
        """Return where a buffer is described whose bytes lie apart."""
        place = self._file.row(_BUFFER_APART, (0, data.size))
        self._apart.append((place, data))
        return place

    def _operator(self, operator: Operator, read: Sequence[int] | None = None) -> Place:
        """Return where an operator is described: in the file, or anew.

        It is if it is to ``read`` other tensors than there.
        """
        file, data, places = self._file, self._data, operator.places
        code = flatbuffer.uint32(data, places[0])[0] if places[0] else 0
        self._codes[code] = -self._contents.codes[code]
        if read is None and operator.is_plain:
            return -operator.table
        fields: list[Field] = [
            (0, "I", code),
            (1, REFERENCE, file.numbers(operator.inputs if read is None else read)),
            (2, REFERENCE, file.numbers(operator.outputs)),
        ]
        number, table = operator.kind_of_options()[0], operator.options_place()
        if number and table:
            fields += [(3, "B", number), (4, REFERENCE, -table)]
        if operator.name in OWN_CUSTOM:
            options = custom_options(operator)
            fields.append((5, REFERENCE, file.vector(options, len(options))))
        if operator.intermediates:
            fields.append((8, REFERENCE, file.numbers(operator.intermediates)))
        return file.table(fields)

    def _safely(
        self,
        operator: Operator,
        tensors: list[Place],
        read: Sequence[int] | None = None,
    ) -> list[Step]:
        """Describe an operator, behind one that asks what LiteRT's does not."""
        steps: list[Step] = [self._operator(operator, read)]
        if operator.name == "ATAN2":  # whether lengths are alike, as ADD_N does
            both = operator.inputs if read is None else read
            place = self._file.table(((0, REFERENCE, self._file.numbers(())),))
            steps.insert(0, self._added(self._adding, both, place, tensors))
        return steps

    def _added(
        self,
        code: int,
        read: Sequence[int],
        place: Place,
        tensors: list[Place],
        options: tuple[int, ...] = (),
    ) -> NewOperator:
        """Return an operator of the head; it makes a tensor, described at a place."""
        tensors.append(place)
        return NewOperator(code, read, [len(tensors) - 1], *options)

    def _steps(
        self,
        graph: Graph,
        shapes: dict[int, Shape],
        tensors: list[Place],
        speeds: Speeds | None,
    ) -> list[Step]:
        """Describe operators, divided by barriers; see `_divided`."""
        costs = [] if speeds is None else estimated_of_graph_ns(graph, speeds)
        survey = graph.survey
        if survey is None:
            operators = [each for each in graph.operators if each.name != "DENSIFY"]
            if is_short(costs):
                return [
                    place for each in operators for place in self._safely(each, tensors)
                ]
            costs = [costs[each.index] for each in operators]
            return self._divided(
                graph, timed_of_records(graph, operators, costs), shapes, tensors
            )
        for code in {each.code for each in survey.operators}:
            self._codes[code] = -self._contents.codes[code]
        if is_short(costs):
            return [-each.table for each in survey.operators]
        timed = timed_operators(survey.operators, costs)
        return self._divided(graph, timed, shapes, tensors)

    def _divided(
        self,
        graph: Graph,
        timed: Sequence[TimedOperator],
        shapes: dict[int, Shape],
        tensors: list[Place],
    ) -> list[Step]:
        """Describe operators, and copies of what crosses a barrier, read behind it.

        The copies are added to ``tensors``. Operators of constants alone are no part of
        it: weights stay weights.
        """
        steps, survey = list[Step](), graph.survey
        edges = set(barriers(timed)) if timed else set()
        last = last_reads(timed)
        alive = list(graph.inputs) if edges else []
        named = {*graph.inputs, *graph.outputs}
        renamed: dict[int, int] = {}
        for at, each in enumerate(timed):
            number, reads = each.number, each.reads
            if at in edges:
                alive = [index for index in alive if last.get(index, -1) >= at]
                for index in alive:
                    place = tensors[index]
                    if index in named:  # no other tensor has that name
                        if survey is None:
                            own = short_of(self._data, graph.tensors[index])
                        else:
                            own = survey.tensors[index]
                        place = self._described(own, shapes.get(index))
                    source = [renamed.get(index, index)]
                    renamed[index] = len(tensors)
                    steps.append(self._added(self._adding + 1, source, place, tensors))
            is_same = renamed.keys().isdisjoint(reads)
            read = None if is_same else [renamed.get(index, index) for index in reads]
            if survey is None:
                steps += self._safely(graph.operators[number], tensors, read)
            elif read is None:
                steps.append(-survey.operators[at].table)
            else:
                old = survey.operators[at]
                options = old.kind, -old.options
                steps.append(NewOperator(old.code, read, old.outputs, *options))
            alive += each.outputs
        return steps
