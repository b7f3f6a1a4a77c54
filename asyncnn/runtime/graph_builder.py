"""Builds one graph of a model: its operands and operations, and bodies that it runs.

`ConstantStore` places constants: small ones in the model, large ones in pools.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError, WrongTypeError
from asyncnn.hal.operands import AnyOperandType, dtype_of, is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    Dimensions,
    Memory,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    Subgraph,
    SymmPerChannelQuantParams,
)
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.handles import create_file
from asyncnn.memory.pages import os_errors, write_all
from asyncnn.memory.pools import from_buffer, view
from asyncnn.memory.shared import final_pool

_TENSOR_TYPES = {
    np.dtype(np.float32): OperandType.TENSOR_FLOAT32,
    np.dtype(np.float16): OperandType.TENSOR_FLOAT16,
    np.dtype(np.int32): OperandType.TENSOR_INT32,
    np.dtype(np.bool_): OperandType.TENSOR_BOOL8,
}


class GraphBuilder:
    """Collects the operands and operations of one graph.

    Every method that adds an operand returns its index, which means nothing in another
    graph. Operations are added in execution order. Types may be of an
    `Extension`, which devices must have. Made by `ModelBuilder`, or by `body` for what
    an IF or a WHILE runs.
    """

    def __init__(self, model: "GraphBuilder | None" = None) -> None:
        self._operands: list[Operand] = []
        self._operations: list[Operation] = []
        self._input_names: dict[int, str] = {}
        self._output_names: dict[int, str] = {}
        # By type and bytes: most operations of a graph take a few of the same ones.
        self._scalars: dict[tuple[int, bytes], int] = {}
        self._integers: dict[complex, int] = {}
        # Both are shared by all graphs of a model.
        self._constants: ConstantStore = (
            ConstantStore() if model is None else model._constants
        )
        self._bodies: dict[GraphBuilder, int] = {} if model is None else model._bodies

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
        """Add an input of the graph; axis length 0 is left to each request."""
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

        One that the graph has already is used again.

        :raises InvalidArgumentError: if the type is not a scalar's or cannot hold the
            value.
        """
        if type_ is None:
            # Most are integers that the graph has already, and found at once.
            known = self._integers.get(value) if type(value) is int else None
            if known is not None:
                return known
            type_ = _scalar_type(value)
        if not is_scalar(type_) or type_ is OperandType.OEM:
            raise InvalidArgumentError(f"{type_!r} is not a scalar type")
        packed = _packed(value, type_)
        if packed is not None:
            index = self._scalars.get((type_, packed))
            if index is None:
                location = self._constants.copied(packed)
                lifetime = OperandLifeTime.CONSTANT_COPY
                index = self._add(Operand(type_, lifetime=lifetime, location=location))
                self._scalars[type_, packed] = index
                if type_ is OperandType.INT32:
                    self._integers[value] = index
            return index
        dtype = dtype_of(type_)
        try:
            data = np.array(value, dtype)
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
                type_, tuple(dimensions), scale=scale, lifetime=OperandLifeTime.NO_VALUE
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
        :raises WrongTypeError: if ``type_`` is no number, such as text.
        """
        _check_number(type_, "OperationType.TANH")
        if isinstance(outputs, int | Operand):
            return self.operation(type_, inputs, (outputs,))[0]
        reads = tuple(inputs)
        if reads and not 0 <= min(reads) <= max(reads) < len(self._operands):
            for index in reads:
                self.operand(index)
        writes = tuple([self._written(output) for output in outputs])
        self._operations.append(Operation(type_, reads, writes))
        return writes

    def body(self) -> "GraphBuilder":
        """Return a new graph of the same model, for an IF or a WHILE to run.

        It sees no operand of others: its inputs and outputs are the operation's,
        in number, order and type. Constants of all graphs lie together.
        """
        return GraphBuilder(self)

    def subgraph(self, body: "GraphBuilder") -> int:
        """Add the operand that stands for ``body`` among an operation's inputs.

        >>> builder.operation(
        ...     OperationType.IF,
        ...     [condition, builder.subgraph(then), builder.subgraph(other), x],
        ...     Operand(OperandType.TENSOR_FLOAT32, (1, 4)),
        ... )

        :raises InvalidArgumentError: if it is not a body of the same model.
        """
        if body._bodies is not self._bodies or body is self:
            raise InvalidArgumentError(
                "the graph is not a body of this model", hint="make it by body()"
            )
        number = self._bodies.setdefault(body, len(self._bodies))
        return self._add(
            Operand(
                OperandType.SUBGRAPH,
                lifetime=OperandLifeTime.SUBGRAPH,
                location=DataLocation(offset=number),
            )
        )

    def output(self, index: int, name: str) -> None:
        """Make operand ``index`` the next output of the graph.

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

    def _finished(
        self, more_inputs: Iterable[int] = (), more_outputs: Iterable[int] = ()
    ) -> Subgraph:
        consumers = Counter(
            index for operation in self._operations for index in operation.inputs
        )
        return Subgraph(
            operands=tuple(
                replace(operand, number_of_consumers=consumers[index])
                for index, operand in enumerate(self._operands)
            ),
            operations=tuple(self._operations),
            input_indexes=(*self._input_names, *more_inputs),
            output_indexes=(*self._output_names, *more_outputs),
        )

    def _add(self, operand: Operand) -> int:
        _check_number(operand.type, "OperandType.TENSOR_FLOAT32")
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


def _check_number(type_: object, example: str) -> None:
    if not isinstance(type_, int):
        kind = example.partition(".")[0]
        raise WrongTypeError(f"{type_!r} is no {kind}", hint=f"give asyncnn.{example}")


def _tensor_type(dtype: np.dtype[np.generic]) -> OperandType:
    try:
        return _TENSOR_TYPES[dtype]
    except KeyError:
        raise InvalidArgumentError(
            f"the type of a constant of {dtype} must be given",
            hint="float32, float16, int32 and bool arrays have only one",
        ) from None


def _scalar_type(value: complex) -> OperandType:
    if isinstance(value, (bool, np.bool_)):
        return OperandType.BOOL
    if isinstance(value, (int, np.integer)):
        return OperandType.INT32
    return OperandType.FLOAT32


_INT32, _FLOAT32 = struct.Struct("=i"), struct.Struct("=f")


def _packed(value: object, type_: int) -> bytes | None:
    """Return the bytes of the commonest scalars, None for what takes more care."""
    kind = type(value)
    try:
        if type_ is OperandType.INT32 and kind is int:
            return _INT32.pack(value)
        if type_ is OperandType.FLOAT32 and kind is float:
            return _FLOAT32.pack(value)
    except (OverflowError, struct.error):
        return None
    if type_ is OperandType.BOOL and kind is bool:
        return b"\1" if value else b"\0"
    return None


MAX_COPIED_BYTES = 128
"""Largest constant that is copied into the model, as in the NNAPI."""

ALIGNMENT = 64
"""Alignment in bytes of constants in the model's own pool."""

_VALUE_ALIGNMENT = 4


class ConstantStore:
    """Places constants in the operand values or in pools.

    A small constant goes into the operand values. A large one that views a pool given
    to `add_pool` is referred to in place; others are gathered in one pool of the
    model's own, which drivers map, or become a pool each.
    """

    def __init__(self) -> None:
        self._values = bytearray()
        self._pools: list[Memory | None] = []
        self._known: list[tuple[int, Memory]] = []
        self._gathered: Descriptor | None = None
        self._gathered_pool = -1
        self._gathered_bytes = 0

    def add_pool(self, memory: Memory) -> None:
        """Let constants refer to ``memory``; it joins the model once one does.

        :raises GeneralFailureError: if the pool cannot be mapped.
        """
        self._known.append((_address(np.frombuffer(view(memory), np.uint8)), memory))

    def place(
        self, array: Array, *, copy: bool
    ) -> tuple[OperandLifeTime, DataLocation]:
        """Return the lifetime and location of ``array``, which is contiguous."""
        if array.nbytes <= MAX_COPIED_BYTES:
            return OperandLifeTime.CONSTANT_COPY, self.copied(array.tobytes())
        return OperandLifeTime.CONSTANT_REFERENCE, self._refer(array, copy=copy)

    def values(self) -> bytes:
        """Return the operand values."""
        return bytes(self._values)

    def pools(self) -> tuple[Memory, ...]:
        """Return the pools that locations refer to.

        What is gathered after this lies in another one.

        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        """
        if self._gathered is not None:
            self._pools[self._gathered_pool] = final_pool(self._gathered)
            self._gathered = None
        return tuple(memory for memory in self._pools if memory is not None)

    def copied(self, data: bytes) -> DataLocation:
        """Add ``data`` to the operand values, and return where they lie."""
        self._values.extend(bytes(-len(self._values) % _VALUE_ALIGNMENT))
        location = DataLocation(0, len(self._values), len(data))
        self._values.extend(data)
        return location

    def _refer(self, array: Array, *, copy: bool) -> DataLocation:
        address = _address(array)
        for start, memory in self._known:
            if start <= address and address + array.nbytes <= start + memory.size:
                pool = self._index_of(memory)
                return DataLocation(pool, address - start, array.nbytes)
        if copy:
            return self._add_to_gathered(array)
        return DataLocation(self._index_of(from_buffer(array)), 0, array.nbytes)

    def _index_of(self, memory: Memory) -> int:
        if memory not in self._pools:
            self._pools.append(memory)
        return self._pools.index(memory)

    def _add_to_gathered(self, array: Array) -> DataLocation:
        with os_errors("a pool of constants"):
            if self._gathered is None:
                self._gathered = Descriptor(create_file("asyncnn-constants"))
                self._gathered_pool, self._gathered_bytes = len(self._pools), 0
                self._pools.append(None)
            offset = self._gathered_bytes + -self._gathered_bytes % ALIGNMENT
            data = array.reshape(-1).view(np.uint8).data
            write_all(self._gathered.fd, data, offset)
        self._gathered_bytes = offset + array.nbytes
        return DataLocation(self._gathered_pool, offset, array.nbytes)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
