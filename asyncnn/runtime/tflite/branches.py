"""Operators that run other subgraphs, and those that read and assign variables.

IF and WHILE become the HAL's, with a body for each subgraph. A body sees nothing from
outside: variables that it uses go in as further inputs and come out as further outputs.
CALL runs in place, as does the decomposition of a composite, and CALL_ONCE while the
file is read.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Dimensions, Operand, OperandType, OperationType
from asyncnn.runtime.building import own
from asyncnn.runtime.tflite.first_values import run_once
from asyncnn.runtime.tflite.node import Node
from asyncnn.runtime.tflite.scope import FlowConverter, Scope, Value
from asyncnn.runtime.tflite.subgraphs import Accesses, Variable, referred, resource
from asyncnn.runtime.tflite.tensors import same_values
from asyncnn.runtime.tflite.variables import Variables
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.tflite.tables import Graph, Tensor

_Source: TypeAlias = int | Variable
"""Where an input of a body comes from: a position among the values, or a variable."""

_BOOL = OperandType.TENSOR_BOOL8


class _Body:
    """A subgraph as the body of an operation on ``sources``.

    Those are positions among ``values``, its inputs, and variables; the body has an
    input for each. All other values it knows by itself.
    """

    def __init__(
        self,
        outer: Scope,
        graph: Graph,
        values: Sequence[Value],
        sources: Sequence[_Source],
    ) -> None:
        self.graph = graph
        self.builder = outer.builder.body()
        inner = list(values)
        variables = []
        for source in sources:
            if isinstance(source, Variable):
                like = outer.builder.operand(outer.variables.read(source))
                name = source.name
            else:
                value = values[source]
                assert isinstance(value, int)
                like = outer.builder.operand(value)
                name = graph.tensors[graph.inputs[source]].name
            operand = self.builder.input(
                name or "input",
                like.type,
                like.dimensions,
                scale=like.scale,
                zero_point=like.zero_point,
            )
            if isinstance(source, Variable):
                variables.append((source, operand))
            else:
                inner[source] = operand
        # Operands mean nothing in another graph; what is not passed is not needed.
        passed = set(sources)
        for position, value in enumerate(inner):
            if isinstance(value, int) and position not in passed:
                inner[position] = None
        outside = outer.variables
        self.scope = Scope(
            outer.importing,
            graph,
            self.builder,
            Variables(self.builder, outside.first, outside.assigned, variables),
            inner,
            conditional=True,
        )
        self._end = self.scope.run()

    def value(self, position: int) -> Value:
        """Return what output ``position`` stands for."""
        return self.scope.value(self._end, position)

    def read(self, position: int) -> int:
        """Return the operand of output ``position``."""
        return self._end.read(position)

    def condition(self) -> int:
        """Return the operand of the only output, as a vector of one boolean."""
        return _condition(self._end, 0)

    def output(self, operand: int) -> Operand:
        """Make ``operand`` the next output of the body, and return it."""
        operand = own(self.builder, operand)
        self.builder.output(operand, f"output_{operand}")
        return self.builder.operand(operand)


def _if(scope: Scope, node: Node) -> None:
    graphs = scope.importing.flow.callees(node.operator)
    values = [
        scope.value(node, position) for position in range(1, len(node.operator.inputs))
    ]
    for graph in graphs:
        _check_border(graph, len(values), len(node.operator.outputs))
    condition = scope.value(node, 0)
    if isinstance(condition, Tensor):
        _run_in_place(scope, node, graphs[0 if node.value(0) else 1], values)
        return
    accesses = list(scope.importing.flow.called(node.operator, scope.handles))
    used = _each(variable for inner in accesses for variable in _used(scope, inner))
    assigned = _each(variable for inner in accesses for variable in inner.writes)
    needs = [scope.importing.flow.needs(graph) for graph in graphs]
    passed = [
        position
        for position, value in enumerate(values)
        if isinstance(value, int)
        and any(
            graph.inputs[position] in needed.tensors
            for graph, needed in zip(graphs, needs, strict=True)
        )
    ]
    sources: list[_Source] = [*passed, *used]
    bodies = [_Body(scope, graph, values, sources) for graph in graphs]
    outputs: list[Operand] = []
    computed = []
    for position in range(len(node.operator.outputs)):
        references = [body.value(position) for body in bodies]
        if any(isinstance(value, Variable) for value in references):
            _let_same(scope, node, position, references)
            continue
        branches = [body.output(body.read(position)) for body in bodies]
        outputs.append(_merged(node.result(position).label, *branches))
        computed.append(position)
    for variable in assigned:
        branches = [body.output(body.scope.variables.read(variable)) for body in bodies]
        outputs.append(_merged(f"variable {variable.name!r}", *branches))
    if not outputs:
        return
    results = scope.builder.operation(
        OperationType.IF,
        [
            _condition(node, 0),
            *(scope.builder.subgraph(body.builder) for body in bodies),
            *_operands(scope, values, sources),
        ],
        outputs,
    )
    for position, operand in zip(computed, results, strict=False):
        scope.let(node.result(position).index, operand)
    for variable, operand in zip(assigned, results[len(computed) :], strict=True):
        scope.variables.assign(variable, operand)


def _while(scope: Scope, node: Node) -> None:
    condition, body = _loop(scope, node)
    count = len(node.operator.inputs)
    values = [scope.value(node, position) for position in range(count)]
    looping = [
        position
        for position, value in enumerate(values)
        if not isinstance(value, Variable)
        and body.inputs[position] != body.outputs[position]
    ]
    for position in looping:
        # What changes is no constant inside, even if the loop begins with one.
        values[position] = node.read(position)
    tested, done = scope.importing.flow.called(node.operator, scope.handles)
    if tested.writes:
        raise UnsupportedOperatorError(
            f"the condition of the loop assigns variable {tested.writes[0].name!r}"
        )
    fixed = [
        position
        for position, value in enumerate(values)
        if isinstance(value, int) and position not in set(looping)
    ]
    assigned = done.writes
    only_read = [
        variable
        for variable in _each([*_used(scope, tested), *_used(scope, done)])
        if variable not in assigned
    ]
    sources: list[_Source] = [*looping, *assigned, *fixed, *only_read]
    test = _Body(scope, condition, values, sources)
    test.output(test.condition())
    step = _Body(scope, body, values, sources)
    operands = _operands(scope, values, sources)
    changed = operands[: len(looping) + len(assigned)]
    outputs = [scope.builder.operand(operand) for operand in changed]
    for position, value in enumerate(values):
        if isinstance(value, Variable) and step.value(position) != value:
            raise UnsupportedOperatorError("the loop changes what a value refers to")
    after = [step.read(position) for position in looping]
    after += [step.scope.variables.read(variable) for variable in assigned]
    for source, before, operand in zip(sources, outputs, after, strict=False):
        _check_loop(_named(node, source), before, step.output(operand))
    if not outputs:
        raise UnsupportedOperatorError("a loop whose body changes nothing")
    graphs = [scope.builder.subgraph(each.builder) for each in (test, step)]
    inputs = [*graphs, *operands]
    results = scope.builder.operation(OperationType.WHILE, inputs, outputs)
    for position, operand in zip(looping, results, strict=False):
        scope.let(node.result(position).index, operand)
    for variable, operand in zip(assigned, results[len(looping) :], strict=True):
        scope.variables.assign(variable, operand)
    for position, index in enumerate(node.operator.outputs):
        if position not in set(looping):
            scope.let(index, values[position])


def _named(node: Node, source: _Source) -> str:
    if isinstance(source, Variable):
        return f"variable {source.name!r}"
    return node.tensor(source).label


def _loop(scope: Scope, node: Node) -> tuple[Graph, Graph]:
    """Return the condition and the body of a loop, which fit what it is given."""
    condition, body = scope.importing.flow.callees(node.operator)
    count = len(node.operator.inputs)
    _check_border(condition, count, 1)
    _check_border(body, count, count)
    if len(node.operator.outputs) != count:
        raise InvalidArgumentError(
            f"a loop over {count} values with {len(node.operator.outputs)} outputs"
        )
    return condition, body


def _call(scope: Scope, node: Node) -> None:
    (graph,) = scope.importing.flow.callees(node.operator)
    values = [
        scope.value(node, position) for position in range(len(node.operator.inputs))
    ]
    _check_border(graph, len(values), len(node.operator.outputs))
    _run_in_place(scope, node, graph, values)


def _run_in_place(
    scope: Scope, node: Node, graph: Graph, values: Sequence[Value]
) -> None:
    inner = Scope(
        scope.importing,
        graph,
        scope.builder,
        scope.variables,
        values,
        conditional=scope.conditional,
    )
    end = inner.run()
    for position, index in enumerate(node.operator.outputs):
        if index >= 0:
            scope.let(index, inner.value(end, position))


def _call_once(scope: Scope, node: Node) -> None:
    if scope.conditional:
        raise UnsupportedOperatorError("it initialises variables inside IF or WHILE")
    (graph,) = scope.importing.flow.callees(node.operator)
    run_once(scope, graph)


def _var_handle(scope: Scope, node: Node) -> None:
    scope.let(node.result().index, resource(node.operator))


def _read_variable(scope: Scope, node: Node) -> None:
    variable = referred(scope.graph, node.operator, scope.handles)
    index, variables = node.result().index, scope.variables
    if variable not in variables.assigned:
        tensor = variables.first.tensor(variable)
        if tensor.data is not None:
            scope.let(index, tensor)
            return
    scope.let(index, variables.read(variable))


def _assign_variable(scope: Scope, node: Node) -> None:
    variable = referred(scope.graph, node.operator, scope.handles)
    scope.variables.assign(variable, node.read(1))


def _check_border(graph: Graph, inputs: int, outputs: int) -> None:
    if (len(graph.inputs), len(graph.outputs)) != (inputs, outputs):
        raise InvalidArgumentError(
            f"{graph.label} has {len(graph.inputs)} inputs and {len(graph.outputs)} "
            f"outputs, not {inputs} and {outputs}"
        )


def _used(scope: Scope, accesses: Accesses) -> list[Variable]:
    """Return the variables that a body has to be given: others are constants."""
    assigned = scope.variables.assigned
    return [v for v in (*accesses.reads, *accesses.writes) if v in assigned]


def _each(variables: Iterable[Variable]) -> list[Variable]:
    return list(dict.fromkeys(variables))


def _operands(
    scope: Scope, values: Sequence[Value], sources: Sequence[_Source]
) -> list[int]:
    operands = []
    for source in sources:
        value: Value
        if isinstance(source, Variable):
            value = scope.variables.read(source)
        else:
            value = values[source]
        assert isinstance(value, int)
        operands.append(value)
    return operands


def _condition(node: Node, position: int) -> int:
    operand = node.read(position)
    condition = node.builder.operand(operand)
    if condition.type != _BOOL or any(length != 1 for length in condition.dimensions):
        raise InvalidArgumentError(
            f"{node.tensor(position).label} is a condition but not one boolean"
        )
    return node.reshape(operand, (1,))


def _let_same(
    scope: Scope, node: Node, position: int, references: Sequence[Value]
) -> None:
    if references[0] != references[1]:
        raise UnsupportedOperatorError("its branches refer to different variables")
    scope.let(node.operator.outputs[position], references[0])


def _merged(name: str, one: Operand, other: Operand) -> Operand:
    """Return what is known of a value that comes from one of two branches."""
    is_ranked = len(one.dimensions) == len(other.dimensions)
    if not is_ranked or not same_values(one, other):
        raise UnsupportedOperatorError(
            f"the branches give {name} different types, quantisations or ranks"
        )
    dimensions: Dimensions = tuple(
        first if first == second else 0
        for first, second in zip(one.dimensions, other.dimensions, strict=True)
    )
    return Operand(one.type, dimensions, scale=one.scale, zero_point=one.zero_point)


def _check_loop(name: str, before: Operand, after: Operand) -> None:
    if 0 in before.dimensions or before.dimensions != after.dimensions:
        raise UnsupportedOperatorError(
            f"the loop changes the shape of {name} from {list(before.dimensions)} to "
            f"{list(after.dimensions)}"
        )
    if not same_values(before, after):
        raise UnsupportedOperatorError(
            f"the loop changes the type or quantisation of {name}"
        )


CONVERTERS: dict[str, FlowConverter] = {
    "IF": _if,
    "WHILE": _while,
    "CALL": _call,
    "CALL_ONCE": _call_once,
    "STABLEHLO_COMPOSITE": _call,
    "VAR_HANDLE": _var_handle,
    "READ_VARIABLE": _read_variable,
    "ASSIGN_VARIABLE": _assign_variable,
}
