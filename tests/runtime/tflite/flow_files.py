"""Operators on subgraphs and variables, for files of tests."""

from asyncnn.hal.types import OperationType
from asyncnn.memory.pools import from_buffer
from tests.runtime.tflite.cases import F32, boolean, const, f32, i32
from tests.runtime.tflite.files import G, Op, T
from tests.runtime.tflite.importing import import_tflite


def unary(name: str, shape: tuple[int, ...] = (2, 3)) -> G:
    x, y = f32(*shape), f32(*shape)
    return G([Op(name, [x], [y])], [x], [y], name.lower())


def if_(inputs: list[T], outputs: list[T], then: int = 1, other: int = 2) -> Op:
    fields = {"ThenSubgraphIndex": then, "ElseSubgraphIndex": other}
    return Op("IF", inputs, outputs, "IfOptions", fields)


def while_(inputs: list[T], outputs: list[T], test: int = 1, body: int = 2) -> Op:
    fields = {"CondSubgraphIndex": test, "BodySubgraphIndex": body}
    return Op("WHILE", inputs, outputs, "WhileOptions", fields)


def call(inputs: list[T], outputs: list[T], graph: int = 1) -> Op:
    return Op("CALL", inputs, outputs, "CallOptions", {"Subgraph": graph})


def less_than(limit: int, *more: T) -> G:
    """Return the condition that the first value of the loop is below a limit."""
    i, yes = i32(1), boolean(1)
    return G([Op("LESS", [i, const([limit])], [yes])], [i, *more], [yes], "test")


def names_of(file: bytes) -> list[str]:
    model = import_tflite(from_buffer(file)).model
    return [OperationType(operation.type).name for operation in model.main.operations]


def handle() -> T:
    return T(object, ())


def named(resource: T, name: str = "total", container: str = "") -> Op:
    fields = {"SharedName": name, "Container": container}
    return Op("VAR_HANDLE", [], [resource], "VarHandleOptions", fields)


def read(resource: T, value: T) -> Op:
    return Op("READ_VARIABLE", [resource], [value], "ReadVariableOptions")


def assign(resource: T, value: T) -> Op:
    return Op("ASSIGN_VARIABLE", [resource, value], [], "AssignVariableOptions")


def once(graph: int = 1) -> Op:
    return Op("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": graph})


def add(x: T, y: T, z: T) -> Op:
    return Op("ADD", [x, y], [z], "AddOptions")


def initial(value: T, name: str = "total", *before: Op) -> G:
    resource = handle()
    return G([*before, named(resource, name), assign(resource, value)], [], [], "init")


def constant(*values: float) -> T:
    return T.constant(values, F32)
