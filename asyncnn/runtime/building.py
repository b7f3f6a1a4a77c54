"""Gives drafts to builders: what is needed in the end, or each operation at once."""

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.operations.bound import Shape
from asyncnn.pacing import Steps
from asyncnn.runtime.allowance import Allowance
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import (
    HAL_TYPES,
    Draft,
    Drafted,
    Form,
    Omitted,
    Scalar,
    Value,
    hal_array,
    operand_of,
)
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.model import NamedModel, names_by_index
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_OPERATIONS_PER_STEP = 64

_CAST_TO_COPY = frozenset(
    {hal.OperandType.TENSOR_BOOL8, hal.OperandType.TENSOR_QUANT16_SYMM}
)
"""Types that the HAL does not reshape."""


def own(builder: GraphBuilder, index: int) -> int:
    """Return an operand that can be an output: a copy of one with another role."""
    operand = builder.operand(index)
    if operand.lifetime == hal.OperandLifeTime.TEMPORARY_VARIABLE:
        return index
    if operand.type in _CAST_TO_COPY or not all(operand.dimensions):
        return builder.operation(hal.OperationType.CAST, [index], operand)
    shape = builder.constant(np.array(operand.dimensions, np.int32))
    return builder.operation(hal.OperationType.RESHAPE, [index, shape], operand)


class Operands:
    """What tensors and arguments of a draft are in the graph of ``builder``.

    Constants are gathered: few weights are in a file as the HAL has them, and aligned,
    and each pool in a file keeps all of it.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._known: dict[Value | Scalar | Omitted, int] = {}

    def put(self, value: Value, index: int) -> None:
        """Let ``value`` be operand ``index``."""
        self._known[value] = index

    def add(self, operation: Drafted) -> None:
        """Add an operation, whose inputs are there, or constants."""
        given = [self.read(value) for value in operation.inputs]
        outputs = [operand_of(value) for value in operation.outputs]
        results = self._builder.operation(operation.type, given, outputs)
        self._known.update(zip(operation.outputs, results, strict=True))

    def read(self, value: Value | Scalar | Omitted) -> int:
        """Return the operand of a tensor or argument; constants are added.

        :raises InvalidArgumentError: if nothing has computed it.
        :raises UnsupportedOperatorError: if the HAL has no such constant.
        """
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._added(value)
        return known

    def _added(self, value: Value | Scalar | Omitted) -> int:
        if isinstance(value, Scalar):
            return self._builder.scalar(value.value, value.type)
        if isinstance(value, Omitted):
            return self._builder.omitted(value.type)
        if value.data is None:
            raise hal.InvalidArgumentError(f"{value.name!r} is read but never computed")
        what = f"constant {value.name[:80]!r}"
        if value.dtype not in HAL_TYPES:
            raise UnsupportedOperatorError(f"{what} has elements of {value.dtype}")
        if not value.data.size:
            raise UnsupportedOperatorError(f"{what} has no elements")
        return self._builder.constant(
            hal_array(value.data, what).reshape(value.dimensions),
            value.type,
            scale=value.form.scale,
            zero_point=value.form.zero_point,
            channel_quant=value.form.channels,
        )

    def names(self) -> tuple[str, ...]:
        """Return the names of tensors, by operand; constants' are empty."""
        return names_by_index(
            {
                index: value.name
                for value, index in self._known.items()
                if isinstance(value, Value) and value.name and not value.is_constant
            }
        )


class Building:
    """Gives the needed part of a draft to a `ModelBuilder`."""

    def __init__(
        self, order: Callable[[Sequence[Drafted], Sequence[Value]], Sequence[Drafted]]
    ) -> None:
        self._order = order
        self._builder = ModelBuilder()
        self._operands = Operands(self._builder)

    def building(
        self,
        draft: Draft,
        inputs: Sequence[Value],
        outputs: Sequence[tuple[str, Value]],
    ) -> Steps[NamedModel]:
        """Make the model in steps; dimensions and constants are the values'."""
        for value in inputs:
            index = self._builder.input(
                value.name,
                value.type,
                value.dimensions,
                scale=value.form.scale,
                zero_point=value.form.zero_point,
            )
            self._operands.put(value, index)
        ends = [value for _, value in outputs]
        needed = self._order(draft.needed(ends), ends)
        for count, operation in enumerate(needed, 1):
            if not count % _OPERATIONS_PER_STEP:
                yield
            self._operands.add(operation)
        for name, value in outputs:
            operand = own(self._builder, self._operands.read(value.source))
            self._builder.output(operand, name)
        return replace(self._builder.build(), operand_names=self._operands.names())


class DirectDraft(Composer):
    """A draft whose operations a builder gets at once.

    Its tensors are operands of ``builder``, be they added here or elsewhere.
    """

    def __init__(self, builder: GraphBuilder, allowance: Allowance) -> None:
        super().__init__()
        self.allowance = allowance
        self._builder = builder
        self._operands = Operands(builder)

    def append(self, operation: Drafted) -> None:
        """Add an operation with its outputs."""
        self._operands.add(operation)

    def tensor(self, index: int, shape: Shape | None = None) -> Value:
        """Return operand ``index``, of a file's tensor of ``shape`` if that is given.

        Its elements are not known here, even if it is a constant.
        """
        operand = self._builder.operand(index)
        channels = operand.extra_params
        form = Form(
            hal.OperandType(operand.type),
            operand.scale,
            operand.zero_point,
            channels if isinstance(channels, hal.SymmPerChannelQuantParams) else None,
        )
        lengths = operand.dimensions if shape is None else shape
        value = Value(DTYPES[operand.type], lengths, form)
        self._operands.put(value, index)
        return value

    def operand(self, value: Value) -> int:
        """Return the operand that a tensor is."""
        return self._operands.read(value.source)
