"""What CALL_ONCE runs, evaluated while the file is read: first values of variables."""

from collections.abc import Sequence

from msgspec.structs import replace

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.validate import validate_model
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.building import own
from asyncnn.runtime.model import located
from asyncnn.runtime.tflite.node import Node
from asyncnn.runtime.tflite.scope import Scope
from asyncnn.runtime.tflite.subgraphs import Variable, referred
from asyncnn.runtime.tflite.variables import FirstValues, Variables
from asyncnn.runtime.unsupported import Refusals, UnsupportedOperatorError
from asyncnn.tflite.tables import Graph, Tensor

_FLOW = ("VAR_HANDLE", "READ_VARIABLE", "CALL")
_CHEAP = frozenset(
    {
        *("ADD", "BROADCAST_TO", "CAST", "CONCATENATION", "DEQUANTIZE", "DIV"),
        *("EXPAND_DIMS", "FILL", "MUL", "NEG", "PACK", "QUANTIZE", "RESHAPE"),
        *("SHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE", "SUB", "TILE", "TRANSPOSE"),
        "ZEROS_LIKE",
    }
)
"""Operators whose work is no more than writing their results."""


def run_once(scope: Scope, graph: Graph) -> None:
    """Let the variables that ``graph`` assigns begin with what it computes.

    :raises UnsupportedOperatorError: if ``scope`` has used one of them already, or an
        operator takes more than writing its result.
    :raises InvalidArgumentError: if the values get too large together.
    """
    variables = scope.variables
    for variable in scope.importing.flow.accesses(graph, ()).writes:
        if variables.holds(variable):
            raise UnsupportedOperatorError(
                f"variable {variable.name!r} is used before it is initialised"
            )
    with located(f"{graph.label}, which initialises variables"):
        _Initialisation(scope, graph, variables.first).run()


def _refuse(node: Node) -> None:
    raise UnsupportedOperatorError("it takes more than writing its result")


class _Initialisation:
    def __init__(self, outer: Scope, graph: Graph, first: FirstValues) -> None:
        self._first = first
        self._allowance = outer.importing.allowance
        self._computed: dict[Variable, Tensor] = {}
        self._refusals = Refusals()
        self._builder = ModelBuilder()
        self._values = Variables(self._builder, first, self._computed.keys())
        converters = outer.importing.converters
        flow = outer.importing.flow_converters
        importing = replace(
            outer.importing,
            converters={
                name: converter if name in _CHEAP else _refuse
                for name, converter in converters.items()
            },
            refusals=self._refusals,
            flow_converters={
                "ASSIGN_VARIABLE": self._assign,
                **{name: flow[name] for name in _FLOW},
            },
        )
        self._scope = Scope(importing, graph, self._builder, self._values, ())

    def run(self) -> None:
        self._scope.run()
        self._refusals.raise_any()
        if not self._computed:
            return
        for variable in self._computed:
            operand = own(self._builder, self._values.read(variable))
            self._builder.output(operand, f"output_{operand}")
        arrays = self._evaluated()
        for (variable, tensor), array in zip(
            self._computed.items(), arrays, strict=True
        ):
            self._first.put(variable, replace(tensor, data=array.reshape(tensor.shape)))

    def _assign(self, scope: Scope, node: Node) -> None:
        variable = referred(scope.graph, node.operator, scope.handles)
        value = scope.value(node, 1)
        if isinstance(value, Tensor):
            self._computed.pop(variable, None)
            self._first.put(variable, value)
        elif isinstance(value, int):
            self._computed[variable] = node.tensor(1)
            self._values.replace(variable, value)
        else:
            raise UnsupportedOperatorError("a variable that holds a variable")

    def _evaluated(self) -> Sequence[Array]:
        # Most files begin with constants: the engine is loaded for the others only.
        from asyncnn.engine.plan_execution import run_straight
        from asyncnn.engine.program import Program

        model = self._builder.build().model
        validate_model(model)
        for operation in model.main.operations:
            for index in operation.outputs:
                self._allowance.take_elements(model.main.operands[index].dimensions)
        program = Program(model)
        if not program.is_straight:
            raise UnsupportedOperatorError("its values depend on each other's shapes")
        plan = program.plan(())
        return run_straight(program, plan, (), [None] * len(self._computed))
