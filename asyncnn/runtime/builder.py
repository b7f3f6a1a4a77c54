"""Builds models operand by operand.

>>> builder = ModelBuilder()
>>> x = builder.input("x", OperandType.TENSOR_FLOAT32, (1, 4))
>>> weights = builder.constant(np.eye(4, dtype=np.float32))
>>> bias = builder.constant(np.zeros(4, np.float32))
>>> y = builder.operation(
...     OperationType.FULLY_CONNECTED,
...     [x, weights, bias, builder.scalar(FusedActivationFunc.NONE)],
...     Operand(OperandType.TENSOR_FLOAT32, (1, 4)),
... )
>>> builder.output(y, "y")
>>> model = builder.build()
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import AnyOperandType, dtype_of, is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    Dimensions,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    Subgraph,
    SymmPerChannelQuantParams,
)
from asyncnn.runtime.model import ConstantStore, NamedModel

_TENSOR_TYPES = {
    np.dtype(np.float32): OperandType.TENSOR_FLOAT32,
    np.dtype(np.float16): OperandType.TENSOR_FLOAT16,
    np.dtype(np.int32): OperandType.TENSOR_INT32,
    np.dtype(np.bool_): OperandType.TENSOR_BOOL8,
}


class ModelBuilder:
    """Collects operands and operations; `build` returns the model.

    Every method that adds an operand returns its index. Operations are added in
    execution order. Types may be those of an `Extension`, which devices must have.
    The model is not validated here: preparing it does that.
    ``relaxed`` allows float16 precision for float32 arithmetic.
    """

    def __init__(self, *, relaxed: bool = False) -> None:
        self._relaxed = relaxed
        self._operands: list[Operand] = []
        self._operations: list[Operation] = []
        self._input_names: dict[int, str] = {}
        self._output_names: dict[int, str] = {}
        self._states: dict[int, tuple[str, Array | None]] = {}
        self._next_states: dict[int, int] = {}
        self._constants = ConstantStore()

    def add_pool(self, memory: Memory) -> None:
        """Let large constants that view ``memory`` refer to it instead of a copy.

        :raises GeneralFailureError: if the pool cannot be mapped.
        """
        self._constants.add_pool(memory)

    def operand(self, index: int) -> Operand:
        """Return operand ``index``; its consumers are not counted yet.

        :raises InvalidArgumentError: if there is no such operand.
        """
        if not 0 <= index < len(self._operands):
            raise InvalidArgumentError(
                f"operand {index} is not one of the {len(self._operands)} operands"
            )
        return self._operands[index]

    def input(
        self,
        name: str,
        type_: int,
        dimensions: Dimensions = (),
        *,
        scale: float = 0.0,
        zero_point: int = 0,
        channel_quant: SymmPerChannelQuantParams | None = None,
    ) -> int:
        """Add an input of the model; axis length 0 is left to each request."""
        index = self._add(
            Operand(
                type_,
                tuple(dimensions),
                scale=scale,
                zero_point=zero_point,
                lifetime=OperandLifeTime.SUBGRAPH_INPUT,
                extra_params=channel_quant,
            )
        )
        self._input_names[index] = name
        return index

    def state(
        self,
        name: str,
        type_: int,
        dimensions: Dimensions,
        *,
        scale: float = 0.0,
        zero_point: int = 0,
        initial: Array | None = None,
    ) -> int:
        """Add a tensor that keeps its value from one step to the next.

        The operand holds the value before the step; `next_state` says which operand
        holds that after it.

        :param initial: value before the first step; None for real zeros.
        """
        index = self._add(
            Operand(
                type_,
                tuple(dimensions),
                scale=scale,
                zero_point=zero_point,
                lifetime=OperandLifeTime.SUBGRAPH_INPUT,
            )
        )
        self._states[index] = (name, initial)
        return index

    def constant(
        self,
        array: Array,
        type_: AnyOperandType | None = None,
        *,
        scale: float = 0.0,
        zero_point: int = 0,
        channel_quant: SymmPerChannelQuantParams | None = None,
        copy: bool = True,
    ) -> int:
        """Add a constant tensor; unquantised types follow from the dtype.

        ``copy=False`` makes a large array that views no pool a pool itself, which
        must not change while the model is in use.

        :raises InvalidArgumentError: if the array is empty or a scalar, or its dtype
            is not the type's.
        """
        if type_ is None:
            type_ = _tensor_type(array.dtype)
        if is_scalar(type_) or array.dtype != dtype_of(type_):
            raise InvalidArgumentError(f"{array.dtype} data cannot be a {type_!r}")
        if not array.size or not array.ndim:
            raise InvalidArgumentError(
                f"a constant tensor cannot have shape {array.shape}",
                hint="use scalar() for a scalar",
            )
        lifetime, location = self._constants.place(
            np.ascontiguousarray(array), copy=copy
        )
        return self._add(
            Operand(
                type_,
                array.shape,
                scale=scale,
                zero_point=zero_point,
                lifetime=lifetime,
                location=location,
                extra_params=channel_quant,
            )
        )

    def scalar(self, value: complex, type_: AnyOperandType | None = None) -> int:
        """Add a constant scalar: BOOL, INT32 or FLOAT32, by the type of ``value``.

        :raises InvalidArgumentError: if the type is not a scalar's or cannot hold the
            value.
        """
        if type_ is None:
            type_ = _scalar_type(value)
        if not is_scalar(type_) or type_ is OperandType.OEM:
            raise InvalidArgumentError(f"{type_!r} is not a scalar type")
        try:
            data = np.array(value, dtype_of(type_))
        except (OverflowError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"{value} is no {type_.name}: {error}") from None
        if not np.array_equal(data, value) and data.dtype.kind not in "fc":
            raise InvalidArgumentError(f"{value} is no {type_.name}")
        lifetime, location = self._constants.place(data, copy=True)
        return self._add(Operand(type_, lifetime=lifetime, location=location))

    def omitted(
        self, type_: int, dimensions: Dimensions = (), *, scale: float = 0.0
    ) -> int:
        """Add an operand that stands for an optional input left out.

        One of a quantised type needs a ``scale`` all the same.
        """
        return self._add(
            Operand(
                type_,
                tuple(dimensions),
                scale=scale,
                lifetime=OperandLifeTime.NO_VALUE,
            )
        )

    def temporary(
        self,
        type_: int,
        dimensions: Dimensions = (),
        *,
        scale: float = 0.0,
        zero_point: int = 0,
    ) -> int:
        """Add an operand that an operation is going to write."""
        return self._add(
            Operand(type_, tuple(dimensions), scale=scale, zero_point=zero_point)
        )

    @overload
    def operation(
        self, type_: int, inputs: Iterable[int], output: int | Operand, /
    ) -> int: ...

    @overload
    def operation(
        self, type_: int, inputs: Iterable[int], outputs: Sequence[int | Operand], /
    ) -> tuple[int, ...]: ...

    def operation(
        self,
        type_: int,
        inputs: Iterable[int],
        outputs: int | Operand | Sequence[int | Operand],
        /,
    ) -> int | tuple[int, ...]:
        """Add an operation and return the index of its output, or a tuple of several.

        An output is an operand added before, or an `Operand` whose type, dimensions
        and quantisation describe a new one.

        :raises InvalidArgumentError: if an index is not an operand's.
        """
        if isinstance(outputs, int | Operand):
            return self.operation(type_, inputs, (outputs,))[0]
        reads = tuple(inputs)
        for index in reads:
            self.operand(index)
        writes = tuple(self._written(output) for output in outputs)
        self._operations.append(Operation(type_, reads, writes))
        return writes

    def next_state(self, state: int, index: int) -> None:
        """Let ``state`` hold, after a step, the value of operand ``index``.

        :raises InvalidArgumentError: if ``state`` is none or has a next value already,
            or the operand is an output already, or an input or constant.
        """
        if state not in self._states or state in self._next_states:
            raise InvalidArgumentError(
                f"operand {state} is not a state that lacks its next value"
            )
        self._make_output(index, self._states[state][0])
        self._next_states[state] = index

    def output(self, index: int, name: str) -> None:
        """Make operand ``index`` the next output of the model.

        :raises InvalidArgumentError: if it is an output already, or an input or
            constant.
        """
        self._make_output(index, name)
        self._output_names[index] = name

    def _make_output(self, index: int, name: str) -> None:
        operand = self.operand(index)
        if operand.lifetime != OperandLifeTime.TEMPORARY_VARIABLE:
            raise InvalidArgumentError(
                f"operand {index} cannot be output {name!r}: it is a "
                f"{OperandLifeTime(operand.lifetime).name}"
            )
        self._operands[index] = replace(
            operand, lifetime=OperandLifeTime.SUBGRAPH_OUTPUT
        )

    def build(self) -> NamedModel:
        """Return the model as it stands.

        :raises InvalidArgumentError: if a name is used twice, or a state has no next
            value or one of another type or shape.
        """
        for index, (name, _) in self._states.items():
            if index not in self._next_states:
                raise InvalidArgumentError(f"state {name!r} has no next value")
        consumers = Counter(
            index for operation in self._operations for index in operation.inputs
        )
        main = Subgraph(
            operands=tuple(
                replace(operand, number_of_consumers=consumers[index])
                for index, operand in enumerate(self._operands)
            ),
            operations=tuple(self._operations),
            input_indexes=(*self._input_names, *self._states),
            output_indexes=(
                *self._output_names,
                *(self._next_states[index] for index in self._states),
            ),
        )
        model = Model(
            main,
            operand_values=self._constants.values(),
            pools=self._constants.pools(),
            relax_computation_float32_to_float16=self._relaxed,
        )
        return NamedModel.of(
            model,
            tuple(self._input_names.values()),
            tuple(self._output_names.values()),
            tuple(self._states.values()),
        )

    def _add(self, operand: Operand) -> int:
        self._operands.append(operand)
        return len(self._operands) - 1

    def _written(self, output: int | Operand) -> int:
        if not isinstance(output, Operand):
            self.operand(output)
            return output
        return self._add(
            Operand(
                output.type,
                output.dimensions,
                scale=output.scale,
                zero_point=output.zero_point,
                extra_params=output.extra_params,
            )
        )


def _tensor_type(dtype: np.dtype[np.generic]) -> OperandType:
    try:
        return _TENSOR_TYPES[dtype]
    except KeyError:
        raise InvalidArgumentError(
            f"the type of a constant of {dtype} must be given",
            hint="float32, float16, int32 and bool arrays have only one",
        ) from None


def _scalar_type(value: complex) -> OperandType:
    if isinstance(value, bool | np.bool_):
        return OperandType.BOOL
    if isinstance(value, int | np.integer):
        return OperandType.INT32
    return OperandType.FLOAT32
