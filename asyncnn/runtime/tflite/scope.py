"""A subgraph while its operators become the operations of one graph of the model.

What a tensor stands for is its value: an operand, a constant of the file, or a variable
that it refers to. Constants and references are known when the file is read, so that
subgraphs get them as they are, not as inputs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from asyncnn.extensions import CustomOperators
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import Operand, OperandType
from asyncnn.pacing import Steps, completed
from asyncnn.runtime.allowance import Allowance
from asyncnn.runtime.axes import MAX_RANK, dimensions_of
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.tflite.custom_operators import PREFIX, convert_custom
from asyncnn.runtime.tflite.folding import folded
from asyncnn.runtime.tflite.many_axes import convert_many, has_many_axes
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.shapes import RULES, result_shapes
from asyncnn.runtime.tflite.subgraphs import Flow, Variable
from asyncnn.runtime.tflite.tensors import describe, same_values
from asyncnn.runtime.tflite.variables import Variables
from asyncnn.runtime.unsupported import Refusals, UnsupportedOperatorError
from asyncnn.tflite.tables import Graph, Operator, Tensor

_OPERATORS_PER_STEP = 16

Value: TypeAlias = int | Tensor | Variable | None
"""What a tensor stands for: None if nothing has computed it."""

FlowConverter: TypeAlias = Callable[["Scope", Node], None]
"""Turns an operator on subgraphs or variables into HAL operations."""

_SHAPE = "the shape of its result depends on the data"
_TABLES = "the HAL has no tables of keys"
_RANDOM = "each run draws other numbers, and the HAL has no such generator"
_VOLUMES = "the HAL has images, of rank 4, but no volumes"
_SEGMENTS = "the HAL has no reductions by segment"
_BITS = "the HAL has no arithmetic on bits"
_STABLEHLO = "of StableHLO, only what works element by element is imported"
_STABLEHLO_NAMES = """
BROADCAST_IN_DIM COMPARE CONCATENATE CONVOLUTION CUSTOM_CALL DOT_GENERAL DYNAMIC_SLICE
DYNAMIC_UPDATE_SLICE GATHER IOTA PAD REDUCE RESHAPE SCATTER SLICE SORT TRANSPOSE WHILE
"""
_STRINGS = "the HAL has no strings"
_WINDOWS = "the HAL has pools of averages, roots and largest values, on images"

NOT_IMPORTED: Mapping[str, str] = {
    "CONCAT_EMBEDDINGS": "TFLite itself has no kernel of it",
    "SKIP_GRAM": _STRINGS,
    "CUSTOM": "it is known by its name: see the extensions",
    "DELEGATE": "it stands for a part that another runtime has taken",
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "it is no operator",
    "EMBEDDING_LOOKUP_SPARSE": "the HAL looks up whole rows",
    "UNIQUE": _SHAPE,
    "WHERE": f"{_SHAPE}; of constants it is computed when the file is read",
    "RANGE": f"{_SHAPE}; of constants it is computed when the file is read",
    "BROADCAST_ARGS": "it is computed, of constants, when the file is read",
    "NON_MAX_SUPPRESSION_V4": "the HAL's suppression returns boxes, but not which",
    "NON_MAX_SUPPRESSION_V5": "the HAL's suppression returns boxes, but not which",
    "SEGMENT_SUM": _SEGMENTS,
    **{f"UNSORTED_SEGMENT_{n}": _SEGMENTS for n in ("PROD", "MAX", "SUM", "MIN")},
    **dict.fromkeys(("CONV_3D", "CONV_3D_TRANSPOSE"), _VOLUMES),
    **{f"HASHTABLE{end}": _TABLES for end in ("", "_FIND", "_IMPORT", "_SIZE")},
    **dict.fromkeys(("RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM"), _RANDOM),
    "BITCAST": _BITS,
    "BITWISE_XOR": _BITS,
    "DILATE": "the HAL puts nothing between elements",
    "REDUCE_WINDOW": _WINDOWS,
    "STABLEHLO_REDUCE_WINDOW": _WINDOWS,
    "STABLEHLO_RNG_BIT_GENERATOR": _RANDOM,
    "STABLEHLO_SHIFT_LEFT": _BITS,
    "STABLEHLO_REMAINDER": "a remainder of floats is not exact in the HAL",
    "STABLEHLO_CBRT": "the HAL's powers are of positive numbers",
    **{f"STABLEHLO_{name}": _STABLEHLO for name in _STABLEHLO_NAMES.split()},
}
"""Why other builtin operators of the schema are not imported, by their names."""


class Importing(msgspec.Struct, frozen=True, eq=False):
    """What all subgraphs of a file share while it is imported."""

    converters: Mapping[str, Converter]
    flow_converters: Mapping[str, FlowConverter]
    flow: Flow
    allowance: Allowance
    customs: CustomOperators
    refusals: Refusals


class Scope:
    """One run of ``graph`` in the graph of ``builder``, on ``inputs``.

    It is ``conditional`` if it may run never or often. Inputs are the values of those
    tensors.

    :raises InvalidArgumentError: if it does not take so many inputs, or of those types.
    :raises UnsupportedOperatorError: if one is quantised otherwise.
    """

    def __init__(
        self,
        importing: Importing,
        graph: Graph,
        builder: GraphBuilder,
        variables: Variables,
        inputs: Sequence[Value],
        *,
        conditional: bool = False,
    ) -> None:
        self.importing = importing
        self.graph = replace(graph, tensors=list(graph.tensors))
        self.builder = builder
        self.variables = variables
        self.conditional = conditional
        self.handles: dict[int, Variable] = {}
        self._operands: dict[int, int] = {}
        self._resized: set[int] = set()
        if len(inputs) != len(graph.inputs) or -1 in graph.inputs:
            raise InvalidArgumentError(
                f"{graph.label} has inputs {list(graph.inputs[:20])} "
                f"but is given {len(inputs)}"
            )
        for index, value in dict(zip(graph.inputs, inputs, strict=True)).items():
            self.let(index, value)

    @property
    def _tensors(self) -> list[Tensor]:
        assert isinstance(self.graph.tensors, list)
        return self.graph.tensors

    def let(self, index: int, value: Value) -> None:
        """Let tensor ``index`` stand for ``value``, and have its shape.

        :raises InvalidArgumentError: if it stands for another already.
        :raises UnsupportedOperatorError: if it has not its type and quantisation.
        """
        tensor = self.graph.tensors[index]
        if (
            index in self._operands
            or index in self.handles
            or tensor.data is not None
            or tensor.is_variable
        ):
            raise InvalidArgumentError(f"{tensor.label} is written twice")
        if isinstance(value, int):
            self._take(tensor, self.builder.operand(value))
            self._operands[index] = value
        elif isinstance(value, Variable):
            self.handles[index] = value
        elif isinstance(value, Tensor):
            if tensor.type != value.type:
                raise InvalidArgumentError(
                    f"{tensor.label} is of {tensor.type} but is given {value.type}"
                )
            self._tensors[index] = replace(value, index=index, name=tensor.name)

    def _take(self, tensor: Tensor, given: Operand) -> None:
        declared = describe(replace(tensor, shape=()))
        if not same_values(declared, given):
            raise UnsupportedOperatorError(
                f"{tensor.label} is given a value of another type or quantisation: "
                f"{OperandType(given.type).name}"
            )
        shape = dimensions_of(tensor.shape)
        if shape != given.dimensions and all(given.dimensions):
            if len(tensor.shape) > MAX_RANK:
                raise UnsupportedOperatorError(
                    f"{tensor.label} has more than four axes, which keep the lengths "
                    "that the file gives them"
                )
            self._resize(tensor.index, given.dimensions)

    def _resize(self, index: int, shape: Shape) -> None:
        self._tensors[index] = replace(self._tensors[index], shape=shape)
        self._resized.add(index)

    def names(self) -> dict[int, str]:
        """Return the names of tensors by the operands that they became."""
        names: dict[int, str] = {}
        for index, tensor in enumerate(self.graph.tensors):
            # What stands for parts of complex numbers is no tensor of the file.
            if tensor.name and index in self._operands:
                names.setdefault(self._operands[index], tensor.name)
        return names

    def value(self, node: Node, position: int) -> Value:
        """Return what input ``position`` of ``node`` stands for."""
        tensor = node.tensor(position)
        if tensor.index in self.handles:
            return self.handles[tensor.index]
        if tensor.data is not None:
            return tensor
        return node.read(position)

    def node(self, operator: Operator) -> Node:
        """Return ``operator`` bound to this scope."""
        return Node(
            self.graph,
            operator,
            self.builder,
            self._operands,
            self.variables,
            self.importing.allowance,
        )

    def run(self) -> Node:
        """Convert the operators; return a node whose inputs are the graph's outputs."""
        return completed(self.running())

    def running(self) -> Steps[Node]:
        """Do so in steps, but subgraphs that operators run in one."""
        operators = self.importing.flow.needs(self.graph).operators
        self.importing.allowance.take_operators(len(operators))
        needed = {operator.index for operator in operators}
        for count, operator in enumerate(self.graph.operators, 1):
            if operator.index not in needed:
                self._fold_unneeded(operator)
            elif not self._fold(operator):
                self._convert_or_refuse(operator)
            if not count % _OPERATORS_PER_STEP:
                yield
        end = len(self.graph.operators)
        return self.node(Operator(end, "outputs", self.graph.outputs, ()))

    def _fold(self, operator: Operator) -> bool:
        """Compute what follows from constants and shapes; return whether it did."""
        arrays = folded(self.graph, operator)
        for index, array in zip(operator.outputs, arrays, strict=False):
            self.importing.allowance.take_elements(array.shape)
            self.let(
                index, replace(self._tensors[index], shape=array.shape, data=array)
            )
        return bool(arrays)

    def _fold_unneeded(self, operator: Operator) -> None:
        """Compute what only serves shapes, which need not be the file's."""
        self.importing.allowance.take_operators(1)
        with suppress(AsyncnnError):  # it may be of no use at all
            self._fold(operator)

    def _convert_or_refuse(self, operator: Operator) -> None:
        refusals = self.importing.refusals
        known = refusals.count
        try:
            self._convert(operator)
        except UnsupportedOperatorError as error:
            place = place_of(self.graph, operator)
            refusals.add(operator.name, operator.index, place, error)
        except InvalidArgumentError as error:
            raise error.at(place_of(self.graph, operator)) from error
        if refusals.count > known:
            self.node(operator).stand_in()

    def _convert(self, operator: Operator) -> None:
        convert_flow = self.importing.flow_converters.get(operator.name)
        if convert_flow is not None:
            convert_flow(self, self.node(operator))
            return
        self._check_shapes(operator)
        node = self.node(operator)
        converter = self.importing.converters.get(operator.name)
        if converter is None:
            if not operator.name.startswith(PREFIX):
                reason = NOT_IMPORTED.get(operator.name, "this operator is not known")
                raise UnsupportedOperatorError(reason)
            convert_custom(node, self.importing.customs)
            return
        self._follow(node)
        if has_many_axes(node):
            convert_many(node, converter)
        else:
            converter(node)

    def _follow(self, node: Node) -> None:
        """Let results have the shapes that follow from the inputs'.

        Those in the file are hints: some say [1, 1] wherever lengths were not known.
        """
        operator = node.operator
        is_resized = not self._resized.isdisjoint(operator.inputs)
        if not is_resized and operator.name not in RULES:
            return
        try:
            shapes = result_shapes(node)
        except AsyncnnError:
            if is_resized:
                raise
            return  # the operator is refused for a better reason, or needs no shape
        for result, shape in zip(
            map(node.result, range(len(shapes))), shapes, strict=True
        ):
            counts = math.prod(shape), math.prod(result.shape)
            if shape != result.shape and (is_resized or counts[0] != counts[1]):
                self._resize(result.index, shape)

    def _check_shapes(self, operator: Operator) -> None:
        for index in operator.inputs:
            known = self._operands.get(index)
            if known is None:
                continue
            if 0 in self.builder.operand(known).dimensions:
                raise UnsupportedOperatorError(
                    f"{self.graph.tensors[index].label} has a shape that the branches "
                    "of an IF leave open"
                )


def place_of(graph: Graph, operator: Operator) -> str:
    """Return where an operator is, for messages."""
    place = f"operator {operator.index} ({operator.name})"
    if graph.index:
        place += f" of {graph.label}"
    outputs = [
        graph.tensors[index].label for index in operator.outputs[:1] if index >= 0
    ]
    return f"{place}, which computes {outputs[0]}" if outputs else place
