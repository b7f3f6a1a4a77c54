"""What subgraphs call, need, read and assign, known before any is converted."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.allowance import Allowance
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.tflite.tables import Graph, Operator, Tensor

MAX_DEPTH = 32
"""Most subgraphs that run within each other."""

_CALLS = {
    "IF": ("IfOptions", "ThenSubgraphIndex", "ElseSubgraphIndex"),
    "WHILE": ("WhileOptions", "CondSubgraphIndex", "BodySubgraphIndex"),
    "CALL": ("CallOptions", "Subgraph"),
    "STABLEHLO_COMPOSITE": ("StableHLOCompositeOptions", "DecompositionSubgraphIndex"),
    "CALL_ONCE": ("CallOnceOptions", "InitSubgraphIndex"),
}
"""The options' class and the fields that name subgraphs."""

_STATEFUL = frozenset(
    {
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        "BIDIRECTIONAL_SEQUENCE_RNN",
        "LSTM",
        "RNN",
        "SVDF",
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        "UNIDIRECTIONAL_SEQUENCE_RNN",
    }
)
"""Layers that write the inputs of theirs that are variable."""


class Variable(msgspec.Struct, frozen=True):
    """What lasts from one run to the next.

    It is a resource, which all subgraphs know by container and name, or the variable
    tensor of one subgraph at a ``place``: their indices.
    """

    name: str
    container: str = ""
    place: tuple[int, int] | None = None

    @classmethod
    def of(cls, graph: Graph, tensor: Tensor) -> "Variable":
        """Return that which variable ``tensor`` of ``graph`` is."""
        return cls(tensor.name, place=(graph.index, tensor.index))


Handles: TypeAlias = tuple[Variable | None, ...]
"""Variables that the inputs or outputs of a subgraph refer to; None is a value."""


class Accesses(msgspec.Struct, frozen=True):
    """Variables in the order of their first use, and what the outputs refer to."""

    reads: tuple[Variable, ...]
    writes: tuple[Variable, ...]
    outputs: Handles


class Needs(msgspec.Struct, frozen=True, eq=False):
    """The operators of a subgraph that matter, and the tensors that they read.

    ``has_effects`` if it assigns variables, itself or by what it calls.
    """

    operators: Sequence[Operator]
    tensors: Set[int]
    has_effects: bool


def resource(operator: Operator) -> Variable:
    """Return the variable that operator VAR_HANDLE names."""
    options = operator.options("VarHandleOptions")
    name, container = options.SharedName() or b"", options.Container() or b""
    return Variable(name.decode(errors="replace"), container.decode(errors="replace"))


class Flow:
    """The subgraphs of a file; ``shape_inputs`` of operators are never read."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        shape_inputs: Mapping[str, Set[int]],
        allowance: Allowance,
    ) -> None:
        self._graphs = graphs
        self._shape_inputs = shape_inputs
        self._allowance = allowance
        self._heights: dict[int, int] = {}
        self._needs: dict[int, Needs] = {}
        self._accesses: dict[tuple[int, Handles], Accesses] = {}

    def callees(self, operator: Operator) -> list[Graph]:
        """Return the subgraphs that ``operator`` runs.

        :raises InvalidArgumentError: if there is no such subgraph.
        """
        if operator.name not in _CALLS:
            return []
        kind, *fields = _CALLS[operator.name]
        options = operator.options(kind)
        indexes = [getattr(options, field)() for field in fields]
        for index in indexes:
            if not 0 <= index < len(self._graphs):
                raise InvalidArgumentError(
                    f"operator {operator.index} ({operator.name}) refers to subgraph "
                    f"{index} of {len(self._graphs)}"
                )
        return [self._graphs[index] for index in indexes]

    def check(self, graph: Graph) -> None:
        """Check that what runs within ``graph`` comes to an end.

        :raises UnsupportedOperatorError: if a subgraph runs itself, or too many run
            within each other.
        """
        self._height(graph, ())

    def _height(self, graph: Graph, outer: tuple[int, ...]) -> int:
        """Return how many subgraphs run within each other, ``graph`` included."""
        if graph.index in outer:
            raise UnsupportedOperatorError(f"{graph.label} runs itself")
        if graph.index not in self._heights:
            below = 0
            # A path longer than this need not be followed to be refused.
            if len(outer) < MAX_DEPTH:
                path = (*outer, graph.index)
                for operator in graph.operators:
                    for callee in self.callees(operator):
                        below = max(below, self._height(callee, path))
            self._heights[graph.index] = below + 1
        if len(outer) + self._heights[graph.index] > MAX_DEPTH:
            raise UnsupportedOperatorError(
                f"more than {MAX_DEPTH} subgraphs within each other"
            )
        return self._heights[graph.index]

    def needs(self, graph: Graph) -> Needs:
        """Return what of ``graph`` its outputs and variables depend on.

        What only computes the shape of a reshape is not part of it: shapes are known.
        """
        if graph.index not in self._needs:
            self._needs[graph.index] = self._needed(graph)
        return self._needs[graph.index]

    def _needed(self, graph: Graph) -> Needs:
        needed = set(graph.outputs)
        chosen, effects = [], False
        for operator in reversed(graph.operators):
            assigns = self._has_effects(graph, operator)
            if not assigns and needed.isdisjoint(operator.outputs):
                continue
            effects |= assigns
            chosen.append(operator)
            shape_inputs = self._shape_inputs.get(operator.name, frozenset())
            needed.update(
                tensor
                for position, tensor in enumerate(operator.inputs)
                if position not in shape_inputs
            )
        return Needs(chosen[::-1], needed, effects)

    def _has_effects(self, graph: Graph, operator: Operator) -> bool:
        return (
            operator.name in ("ASSIGN_VARIABLE", "CALL_ONCE")
            or (operator.name in _STATEFUL and any(_variables(graph, operator)))
            or any(self.needs(callee).has_effects for callee in self.callees(operator))
        )

    def accesses(self, graph: Graph, inputs: Handles) -> Accesses:
        """Return the variables that ``graph`` uses where ``inputs`` refer to these.

        What CALL_ONCE runs is left out: it is no part of a run.

        :raises InvalidArgumentError: if what is no variable is used as one.
        """
        key = graph.index, inputs
        if key not in self._accesses:
            self._allowance.take_operators(len(graph.operators))
            self._accesses[key] = self._walk(graph, inputs)
        return self._accesses[key]

    def _walk(self, graph: Graph, inputs: Handles) -> Accesses:
        handles = dict(zip(graph.inputs, inputs, strict=False))
        reads: dict[Variable, None] = {}
        writes: dict[Variable, None] = {}
        for operator in self.needs(graph).operators:
            for variable in _variables(graph, operator):
                reads[variable] = None
                if operator.name in _STATEFUL:
                    writes[variable] = None
            if operator.name == "VAR_HANDLE":
                handles.update(dict.fromkeys(operator.outputs, resource(operator)))
            elif operator.name == "READ_VARIABLE":
                reads[referred(graph, operator, handles)] = None
            elif operator.name == "ASSIGN_VARIABLE":
                writes[referred(graph, operator, handles)] = None
            elif operator.name in _CALLS and operator.name != "CALL_ONCE":
                for inner in self.called(operator, handles):
                    reads.update(dict.fromkeys(inner.reads))
                    writes.update(dict.fromkeys(inner.writes))
                    # Condition and branches come before what outputs are taken from.
                    handles.update(zip(operator.outputs, inner.outputs, strict=False))
        for tensor in graph.outputs:
            if tensor >= 0 and graph.tensors[tensor].is_variable:
                reads[Variable.of(graph, graph.tensors[tensor])] = None
        outputs = tuple(handles.get(tensor) for tensor in graph.outputs)
        return Accesses(tuple(reads), tuple(writes), outputs)

    def called(
        self, operator: Operator, handles: Mapping[int, Variable | None]
    ) -> Iterator[Accesses]:
        """Yield the accesses of each subgraph that ``operator`` runs.

        :param handles: variables by the tensors that refer to them.
        """
        given = operator.inputs[1:] if operator.name == "IF" else operator.inputs
        for callee in self.callees(operator):
            yield self.accesses(callee, tuple(handles.get(tensor) for tensor in given))


def referred(
    graph: Graph, operator: Operator, handles: Mapping[int, Variable | None]
) -> Variable:
    """Return the variable that input 0 of ``operator`` refers to.

    :raises InvalidArgumentError: if it refers to none.
    """
    tensor = next(iter(operator.inputs), -1)
    variable = handles.get(tensor)
    if variable is None:
        label = graph.tensors[tensor].label if tensor >= 0 else "nothing"
        raise InvalidArgumentError(
            f"operator {operator.index} ({operator.name}) is given {label} "
            "instead of a variable"
        )
    return variable


def _variables(graph: Graph, operator: Operator) -> Iterator[Variable]:
    for index in operator.inputs:
        if index >= 0 and graph.tensors[index].is_variable:
            yield Variable.of(graph, graph.tensors[index])
