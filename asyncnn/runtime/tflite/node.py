"""One operator of a TFLite graph while it becomes HAL operations.

A converter reads inputs with `Node.read`, adds operations with `Node.compute`, and
hands each result to `Node.store`, which adds what is missing between the value that the
HAL computes and the tensor that the file promises: requantisation or a reshape.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import QUANT8_TYPES, AnyOperationType
from asyncnn.hal.operations.check import check_operands
from asyncnn.hal.types import (
    Dimensions,
    FusedActivationFunc,
    HalVersion,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.runtime.allowance import Allowance
from asyncnn.runtime.building import DirectDraft
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.tflite.subgraphs import Variable
from asyncnn.runtime.tflite.tensors import (
    OperatorTensors,
    add_constant,
    describe,
    filled,
    same_values,
)
from asyncnn.runtime.tflite.variables import Variables
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.tflite.tables import Graph, Operator

_ACTIVATIONS = {
    FusedActivationFunc.RELU: OperationType.RELU,
    FusedActivationFunc.RELU1: OperationType.RELU1,
    FusedActivationFunc.RELU6: OperationType.RELU6,
}

_BYTE = Operand(OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)
"""What booleans are as bytes."""


class Node(OperatorTensors):
    """An operator bound to the model under construction.

    ``operands`` maps the tensors that are known so far to operands of the graph,
    ``variables`` has the current values of the ones that last; ``allowance`` is from
    the whole file. With ``as_bytes`` a converter sees booleans as bytes, 0 or 1: the
    HAL moves and picks bytes, but no booleans.
    """

    def __init__(
        self,
        graph: Graph,
        operator: Operator,
        builder: GraphBuilder,
        operands: dict[int, int],
        variables: Variables,
        allowance: Allowance,
    ) -> None:
        super().__init__(graph, operator)
        self.builder = builder
        self.allowance = allowance
        self.as_bytes = False
        self.variables = variables
        self._operands = operands

    def read(self, index: int) -> int:
        """Return the operand of input ``index``, adding it if it is a constant.

        :raises InvalidArgumentError: if nothing has computed it yet.
        """
        operand = self._read(index)
        is_shown = self.as_bytes and self.is_boolean(operand)
        return self.number(operand, _BYTE) if is_shown else operand

    @cached_property
    def draft(self) -> DirectDraft:
        """What composes operations on tensors of the file's shapes."""
        return DirectDraft(self.builder, self.allowance)

    def input(self, index: int) -> Value:
        """Return input ``index`` as a tensor of the draft."""
        return self.draft.tensor(self.read(index), self.tensor(index).shape)

    def real(self, index: int) -> Value:
        """Return input ``index`` as float32 if it is quantised or float16."""
        operand = self.dequantize(self.read(index))
        return self.draft.tensor(operand, self.tensor(index).shape)

    def put(self, value: Value, index: int = 0) -> None:
        """Make a tensor of the draft output ``index``; see `store`."""
        self.store(self.draft.operand(value), index)

    def _read(self, index: int) -> int:
        tensor = self.tensor(index)
        if tensor.is_variable:
            return self.variables.read(self.variable(index))
        known = self._operands.get(tensor.index)
        if known is not None:
            return known
        described = describe(tensor)
        if tensor.data is None:
            raise InvalidArgumentError(f"{tensor.label} is read but never computed")
        operand = add_constant(self.builder, tensor, described)
        self._operands[tensor.index] = operand
        return operand

    def variable(self, index: int) -> Variable:
        """Return the variable that the tensor of input ``index`` is."""
        return Variable.of(self.graph, self.tensor(index))

    def read_all(self) -> list[int]:
        """Return the operands of all inputs."""
        return [self.read(index) for index in range(len(self.operator.inputs))]

    def target(self, index: int = 0) -> Operand:
        """Return what the file promises output ``index`` to be."""
        target = super().target(index)
        if self.as_bytes and target.type == OperandType.TENSOR_BOOL8:
            return replace(target, type=OperandType.TENSOR_QUANT8_ASYMM, scale=1.0)
        return target

    def is_boolean(self, operand: int) -> bool:
        """Return whether ``operand`` is a tensor of booleans."""
        return self.builder.operand(operand).type == OperandType.TENSOR_BOOL8

    def number(self, operand: int, like: Operand) -> int:
        """Return booleans as numbers, 0 or 1, of the type and scale of ``like``."""
        dimensions = self.builder.operand(operand).dimensions
        output = replace(like, dimensions=dimensions)
        self.allowance.take_elements(dimensions)
        one_zero = [filled(self.builder, output, value) for value in (1, 0)]
        return self.compute(OperationType.SELECT, [operand, *one_zero], output)

    def truth(self, operand: int) -> int:
        """Return which elements of ``operand`` are not zero, as booleans."""
        source = self.builder.operand(operand)
        zero = self.zeros(replace(source, dimensions=(1,)))
        output = Operand(OperandType.TENSOR_BOOL8, source.dimensions)
        return self.compute(OperationType.NOT_EQUAL, [operand, zero], output)

    def scalar(self, value: float, type_: OperandType | None = None) -> int:
        """Add a scalar operand."""
        return self.builder.scalar(value, type_)

    def integers(self, values: Iterable[int]) -> int:
        """Add a constant vector of int32."""
        return self.builder.constant(np.array(tuple(values), np.int32))

    def zeros(self, like: Operand) -> int:
        """Add a constant of real zeros that is otherwise like ``like``.

        :raises InvalidArgumentError: if such constants get too large together.
        """
        self.allowance.take_elements(like.dimensions)
        return filled(self.builder, like, like.zero_point)

    def fused(self, code: int) -> int:
        """Return the scalar operand of a fused activation.

        :raises UnsupportedOperatorError: if the HAL cannot fuse it.
        """
        if code > FusedActivationFunc.RELU6:
            raise UnsupportedOperatorError(f"fused activation {code} has no HAL form")
        if code and self.type == OperandType.TENSOR_INT32:
            raise UnsupportedOperatorError("the HAL fuses no activation of integers")
        return self.scalar(code)

    def compute(
        self, type_: AnyOperationType, inputs: Sequence[int], output: Operand
    ) -> int:
        """Add an operation whose only output is like ``output``; return its operand."""
        return self.compute_all(type_, inputs, [output])[0]

    def compute_all(
        self, type_: AnyOperationType, inputs: Sequence[int], outputs: Sequence[Operand]
    ) -> tuple[int, ...]:
        """Add an operation with several outputs; return their operands.

        :raises UnsupportedOperatorError: if the HAL has no such operation on these
            types.
        """
        results = self.builder.operation(type_, inputs, outputs)
        operand = self.builder.operand
        given = tuple([operand(index) for index in inputs])
        made = tuple([operand(index) for index in results])
        try:
            check_operands(type_, given, made, HalVersion.AIDL_V4)
        except InvalidArgumentError as error:
            raise UnsupportedOperatorError(error.message, hint=error.hint) from error
        return results

    def store(self, operand: int, index: int = 0) -> None:
        """Make ``operand`` output ``index``, converted to what the file promises.

        :raises InvalidArgumentError: if that output has a value already.
        :raises UnsupportedOperatorError: if the file promises another shape.
        """
        tensor = self.result(index)
        if tensor.index in self._operands or tensor.data is not None:
            raise InvalidArgumentError(f"{tensor.label} is written twice")
        target = self.target(index)
        requantized = self.requantize(operand, target)
        computed = self.builder.operand(requantized).dimensions
        if 0 not in computed and math.prod(computed) != math.prod(target.dimensions):
            raise UnsupportedOperatorError(
                f"its result is of shape {list(computed)}, where the file says "
                f"{list(target.dimensions)}"
            )
        stored = self.reshape(requantized, target.dimensions)
        if self.as_bytes and tensor.type == "BOOL":
            stored = self.truth(stored)
        self._operands[tensor.index] = stored

    def store_complex(self, real: Value, imaginary: Value) -> None:
        """Make two tensors the parts of output 0, a complex one.

        :raises InvalidArgumentError: if that output has a value already.
        """
        keys = _complex_keys(self.result().index)
        if keys[0] in self._operands:
            raise InvalidArgumentError(f"{self.result().label} is written twice")
        parts = map(self.draft.operand, (real, imaginary))
        self._operands.update(zip(keys, parts, strict=True))

    def read_complex(self, index: int) -> tuple[Value, Value]:
        """Return both parts of input ``index``.

        :raises UnsupportedOperatorError: if no operator of the file has computed them.
        """
        tensor = self.tensor(index)
        real, imaginary = map(self._operands.get, _complex_keys(tensor.index))
        if real is None or imaginary is None:
            raise UnsupportedOperatorError(
                f"{tensor.label} is complex, but not a spectrum computed here"
            )
        return self.draft.tensor(real), self.draft.tensor(imaginary)

    def stand_in(self) -> None:
        """Let outputs without a value have one, after the operator was refused.

        Those that read them can then be looked at, too.
        """
        for index, number in enumerate(self.operator.outputs):
            if number < 0 or number in self._operands:
                continue
            with suppress(UnsupportedOperatorError):
                like = OperatorTensors.target(self, index)
                self._operands[number] = self.builder.temporary(
                    like.type,
                    like.dimensions,
                    scale=like.scale,
                    zero_point=like.zero_point,
                )

    def emit(self, type_: OperationType, inputs: Sequence[int]) -> None:
        """Add an operation that yields output 0 just as the file promises it."""
        self.store(self.compute(type_, inputs, self.target()))

    def emit_like(
        self, type_: OperationType, inputs: Sequence[int], source: int = 0
    ) -> None:
        """Add an operation whose result is quantised like its input ``source``."""
        like = self.builder.operand(inputs[source])
        output = replace(self.target(), scale=like.scale, zero_point=like.zero_point)
        self.store(self.compute(type_, inputs, output))

    def emit_float(self, type_: OperationType, inputs: Sequence[int]) -> None:
        """Add an operation that the HAL has in float only."""
        output = self.target()
        if output.type in QUANT8_TYPES | {OperandType.TENSOR_FLOAT16}:
            output = Operand(OperandType.TENSOR_FLOAT32, output.dimensions)
        self.store(
            self.compute(type_, [self.dequantize(index) for index in inputs], output)
        )

    def dequantize(self, operand: int) -> int:
        """Return ``operand`` as float32 if it is quantised or float16."""
        source = self.builder.operand(operand)
        output = Operand(OperandType.TENSOR_FLOAT32, source.dimensions)
        if source.type == OperandType.TENSOR_FLOAT16:
            return self.compute(OperationType.CAST, [operand], output)
        if source.type in QUANT8_TYPES | {OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL}:
            return self.compute(OperationType.DEQUANTIZE, [operand], output)
        return operand

    def requantize(self, operand: int, target: Operand) -> int:
        """Return ``operand`` with type and quantisation of ``target``.

        :raises UnsupportedOperatorError: if neither is float or quantised to 8 bits.
        """
        source = self.builder.operand(operand)
        if same_values(source, target):
            return operand
        real = self.dequantize(operand)
        output = replace(target, dimensions=source.dimensions)
        if target.type in QUANT8_TYPES:
            return self.compute(OperationType.QUANTIZE, [real], output)
        made = self.builder.operand(real)
        pair = OperandType(made.type), target.type
        if pair == (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16):
            return self.compute(OperationType.CAST, [real], output)
        if (made.type, made.scale) != (target.type, target.scale):
            raise UnsupportedOperatorError(
                f"its result is of type {OperandType(source.type).name} but its output "
                f"of type {OperandType(target.type).name}"
            )
        return real

    def reshape(self, operand: int, dimensions: Dimensions) -> int:
        """Return ``operand`` with other dimensions."""
        if self.builder.operand(operand).dimensions == dimensions:
            return operand
        draft = self.draft
        return draft.operand(draft.reshape(draft.tensor(operand), dimensions))

    def broadcast(self, operand: int, dimensions: Dimensions) -> int:
        """Return ``operand`` repeated along the axes where it has length 1.

        :raises InvalidArgumentError: if another length differs from ``dimensions``.
        """
        source = self.builder.operand(operand)
        if source.dimensions == dimensions:
            return operand
        draft = self.draft
        if source.type == OperandType.TENSOR_BOOL8:
            # The HAL repeats booleans only together with others.
            zeros = self.zeros(replace(source, dimensions=dimensions))
            pair = draft.tensor(operand), draft.tensor(zeros)
            return draft.operand(draft.binary(OperationType.LOGICAL_OR, *pair))
        return draft.operand(draft.expand(draft.tensor(operand), dimensions))

    def activate(self, operand: int, code: int) -> int:
        """Return ``operand`` after an activation that its operation cannot fuse.

        :raises UnsupportedOperatorError: if the HAL has no such activation.
        """
        if code == FusedActivationFunc.NONE:
            return operand
        self.fused(code)
        return self.compute(
            _ACTIVATIONS[FusedActivationFunc(code)],
            [operand],
            self.builder.operand(operand),
        )


Converter: TypeAlias = Callable[[Node], None]
"""Turns one operator into HAL operations.

:raises UnsupportedOperatorError: if that is not possible.
"""


Argument: TypeAlias = int | Callable[[Node], int]
"""An argument of an operation: which input it is, or what adds its operand."""


def emitting(
    emit: Callable[[Node, OperationType, list[int]], None],
    type_: OperationType,
    *arguments: Argument,
) -> Converter:
    """Return what adds one operation of all inputs or, if there are, ``arguments``."""

    def convert(node: Node) -> None:
        inputs = [
            node.read(argument) if isinstance(argument, int) else argument(node)
            for argument in arguments
        ]
        emit(node, type_, inputs or node.read_all())

    return convert


def with_booleans(convert: Converter) -> Converter:
    """Return the converter, which is then shown booleans as bytes."""

    def convert_bytes(node: Node) -> None:
        node.as_bytes = True
        convert(node)

    return convert_bytes


def of_codes(convert: Converter) -> Converter:
    """Return the converter of an operator that LiteRT computes on codes as they are.

    :raises UnsupportedOperatorError: if these stand for other numbers, here or there.
    """

    def convert_alike(node: Node) -> None:
        indexes = range(len(node.operator.inputs))
        forms = [node.tensor(index) for index in indexes if node.has(index)]
        known = {
            (each.type, tuple(each.scales), each.zero_points)
            for each in (*forms, node.result())
            if each.scales
        }
        if len(known) > 1:
            raise UnsupportedOperatorError("it takes numbers of several scales alike")
        convert(node)

    return convert_alike


exact = partial(emitting, Node.emit)
like_input = partial(emitting, Node.emit_like)
in_float = partial(emitting, Node.emit_float)


def option(kind: str, name: str, convert: Callable[[Any], float] = int) -> Argument:
    """Return the argument that is the scalar ``name`` in options of class ``kind``."""
    return lambda node: node.scalar(convert(getattr(node.options(kind), name)()))


def fused_by(kind: str) -> Argument:
    """Return the argument that is the activation in options of class ``kind``."""
    return lambda node: node.fused(node.options(kind).FusedActivationFunction())


def constant(value: float) -> Argument:
    """Return the argument that is a scalar of this ``value``."""
    return lambda node: node.scalar(value)


def axis_in(index: int) -> Argument:
    """Return the axis in constant input ``index``."""
    return lambda node: node.scalar(node.axis(node.value(index), node.rank()))


def last_axis(node: Node) -> int:
    """Return the last axis of input 0 as an argument."""
    return node.scalar(node.rank() - 1)


def _complex_keys(tensor: int) -> tuple[int, int]:
    """Return what stands for the parts of a tensor where operands are kept.

    Numbers of tensors are not negative, so that nothing takes a part for the whole.
    """
    return -2 * tensor - 1, -2 * tensor - 2
