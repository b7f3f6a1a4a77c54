"""What is decided once for a subgraph and a set of input shapes.

Every operation becomes a `Step`. Steps whose shapes and needed values are known are
prepared here; the others (their shape depends on data, or their weights come with the
request) are prepared anew at each execution. Operations on constants alone are
computed here and disappear, as do operations whose results are not used. Constants are
read-only arrays over the memory that the model has them in.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.engine.arena import ArenaLayout, Lifespan, laying_out
from asyncnn.engine.delegation import Delegate, Step, delegating, dividing
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, failure_of
from asyncnn.hal.operands import (
    AnyOperandType,
    AnyOperationType,
    ExtensionOperandType,
    ExtensionOperationType,
    check_declared,
    dtype_of,
    has_unknown_dimensions,
    is_scalar,
)
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.types import (
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    OutputShape,
    OutputShapes,
    Subgraph,
    SymmPerChannelQuantParams,
)
from asyncnn.kernels import registry as kernels
from asyncnn.kernels.kernel import (
    EngineKernel,
    HeapScratch,
    NativeKernel,
    PreparedKernel,
)
from asyncnn.memory.pools import view
from asyncnn.pacing import Steps, take_apart

CONSTANT_LIFETIMES = frozenset(
    {OperandLifeTime.CONSTANT_COPY, OperandLifeTime.CONSTANT_REFERENCE}
)
_COPY = int(OperandLifeTime.CONSTANT_COPY)

_FOLDED_BYTES = 64 << 20
_FOLDED_TIMES = 16
"""A plan keeps results of so many bytes, and of so many times the model's constants.

Few bytes of a model can stand for very many equal elements.
"""

_SMALL_BYTES = 1 << 12
"""Shapes and the like are always known."""


def constant_array(model: Model, operand: Operand) -> Array:
    """Return the value of a constant operand of a validated model, without a copy.

    :raises GeneralFailureError: if its pool cannot be mapped.
    """
    type_, location = operand.type, operand.location
    source: bytes | memoryview = model.operand_values
    if operand.lifetime != _COPY:
        source = view(model.pools[location.pool_index])
    shape: Shape = () if is_scalar(type_) else operand.dimensions
    array: Array = np.ndarray(shape, dtype_of(type_), source, location.offset)
    if array.dtype.kind == "b":
        array = np.asarray(array.view(np.uint8) != 0)  # any byte but 0 is true
    array.flags.writeable = False
    return array


CONTROL_FLOW = frozenset({OperationType.IF, OperationType.WHILE})
_RANDOM = frozenset({OperationType.RANDOM_MULTINOMIAL})

OPERANDS_PER_STEP = 64
"""Operands that are looked at between two steps of cooperative work."""

_OPERATION_TYPES = {int(type_): type_ for type_ in OperationType}
_OPERAND_TYPES = {int(type_): type_ for type_ in OperandType}


class Port(msgspec.Struct, frozen=True, eq=False):
    """An input or output of a plan, and what its array has to be.

    ``shape`` is None for an input that is omitted, for an output whose shape only
    execution shows it, and for what may have any lengths; ``count`` and ``size_bytes``
    are 0 then.
    """

    index: int
    operand: Operand
    dtype: np.dtype[Any]
    shape: Shape | None
    count: int
    size_bytes: int

    @classmethod
    def of(cls, index: int, operand: Operand, shape: Shape | None) -> "Port":
        """Describe operand ``index``, which has this shape."""
        dtype = dtype_of(operand.type)
        count = 0 if shape is None else math.prod(shape)
        return cls(index, operand, dtype, shape, count, count * dtype.itemsize)


class Plan(msgspec.Struct, frozen=True, eq=False):
    """A subgraph prepared for inputs of given shapes. ``shapes`` is by operand index,
    None where only execution shows it; ``constants`` likewise.

    ``known_outputs`` is what is reported of outputs with enough space, if all their
    shapes are known; ``ports`` are inputs, then outputs. A plan ``is_straight`` if
    every step is prepared beforehand, for known lengths. It ``uses_blas`` if a step
    may, which no delegate computes. It ``is_fixed`` if it is straight, and has ports of
    known shapes and ordinary numbers alone.
    """

    subgraph: Subgraph
    shapes: tuple[Shape | None, ...]
    constants: dict[int, Array]
    steps: tuple[Step, ...]
    arena: ArenaLayout
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    ports: tuple[Port, ...]
    known_outputs: OutputShapes | None
    is_straight: bool
    uses_blas: bool
    is_fixed: bool


def building_plan(
    model: Model,
    subgraph: Subgraph,
    input_shapes: Sequence[Shape | None],
    delegate: Delegate | None = None,
    identity: bytes = b"",
    regions: dict[int, Array] | None = None,
    *,
    makes_way: bool = False,
) -> Steps[Plan]:
    """Prepare ``subgraph`` of a validated model for inputs of these shapes, in steps.

    An input shape of None is an input that the request omits. What ``delegate`` claims
    it computes; ``identity`` names the model. ``regions`` keeps constants of types
    of extensions, which are the same arrays in all plans of a program then. For
    ``makes_way`` see `BoundOperation`.

    :raises GeneralFailureError: if an operation has no kernel, or its operands have
        illegal values or shapes.
    """
    builder = _PlanBuilder(model, subgraph, delegate, identity, regions, makes_way)
    try:
        return (yield from builder.building(input_shapes))
    except GeneratorExit as given_up:
        # Its frames hold what was built, too: once they are gone, that is freed object
        # by object, and holds nobody.
        pieces = builder.pieces()
        del builder
        given_up.__traceback__ = None
        take_apart(pieces)
        raise


def assembled(
    subgraph: Subgraph,
    shapes: Sequence[Shape | None],
    constants: dict[int, Array],
    steps: Sequence[Step],
    arena: ArenaLayout,
) -> Plan:
    """Return the plan of these parts."""

    def ports(indexes: Iterable[int]) -> tuple[Port, ...]:
        return tuple(
            Port.of(index, subgraph.operands[index], shapes[index]) for index in indexes
        )

    inputs, outputs = ports(subgraph.input_indexes), ports(subgraph.output_indexes)
    is_straight = not any(step.kernel is None or step.is_open for step in steps)
    known = [port.shape for port in outputs if port.shape is not None]
    return Plan(
        subgraph=subgraph,
        shapes=tuple(shapes),
        constants=constants,
        steps=tuple(steps),
        arena=arena,
        inputs=inputs,
        outputs=outputs,
        ports=inputs + outputs,
        known_outputs=(
            tuple(OutputShape(shape, True) for shape in known)
            if len(known) == len(outputs)
            else None
        ),
        is_straight=is_straight,
        uses_blas=any(
            not step.parts
            and not isinstance(step.kernel, NativeKernel | EngineKernel)
            and (step.kernel is None or kernels.may_use_blas(step.operation.type))
            for step in steps
        ),
        # Bytes of booleans may be anything, and are looked at.
        is_fixed=is_straight
        and all(port.count and port.dtype.kind != "b" for port in inputs + outputs),
    )


class _PlanBuilder:
    def __init__(
        self,
        model: Model,
        subgraph: Subgraph,
        delegate: Delegate | None,
        identity: bytes,
        regions: dict[int, Array] | None,
        makes_way: bool,
    ) -> None:
        self._regions = {} if regions is None else regions
        self._makes_way = makes_way
        self._model = model
        self._subgraph = subgraph
        self._delegate = delegate
        self._identity = identity
        self._claimed: set[int] = set()
        self._operands = subgraph.operands
        self._output_indexes = frozenset(subgraph.output_indexes)
        self._shapes: list[Shape | None] = [None] * len(self._operands)
        self._values: dict[int, Array] = {}
        self._omitted: set[int] = set()
        self._bound: dict[int, BoundOperand] = {}
        self._steps: list[Step] = []
        self._kernels = kernels.SharedKernels()
        constants = len(model.operand_values) + sum(pool.size for pool in model.pools)
        self._foldable_bytes = _FOLDED_BYTES + _FOLDED_TIMES * constants

    def _place(
        self, index: int, operand: Operand, inputs: dict[int, Shape | None]
    ) -> None:
        if operand.lifetime in CONSTANT_LIFETIMES:
            value = self._regions.get(index)
            if value is None:
                value = constant_array(self._model, operand)
                if isinstance(operand.type, ExtensionOperandType):
                    self._regions[index] = value
            self._values[index] = value
            self._shapes[index] = value.shape
        elif operand.lifetime == OperandLifeTime.NO_VALUE:
            self._omitted.add(index)
        elif index in inputs:
            self._shapes[index] = inputs[index]
            if inputs[index] is None:
                self._omitted.add(index)
        elif is_scalar(operand.type):
            self._shapes[index] = ()

    def building(self, input_shapes: Sequence[Shape | None]) -> Steps[Plan]:
        inputs = dict(zip(self._subgraph.input_indexes, input_shapes, strict=True))
        for index, operand in enumerate(self._operands):
            self._place(index, operand, inputs)
            if not (index + 1) % OPERANDS_PER_STEP:
                yield
        for position, operation in self._live_operations():
            try:
                yield from self._adding(position, operation)
            except AsyncnnError:
                raise
            except Exception as error:
                raise failure_of(error, unprepared(operation)) from error
            yield
        if self._delegate is not None and self._claimed:
            self._steps = yield from delegating(
                self._steps,
                self._claimed,
                self._values.keys(),
                self._output_indexes,
                self._delegate,
                self._identity,
                self._with_kernel,
            )
        arena = yield from laying_out(list(self._lifespans()))
        return assembled(self._subgraph, self._shapes, self._values, self._steps, arena)

    def pieces(self) -> list[list[object]]:
        """Return lists that hold all of its small parts; see `Program.pieces`."""
        return [list(self._values.values()), list(self._bound.values()), [*self._steps]]

    def _live_operations(self) -> list[tuple[int, Operation]]:
        """Drop operations whose results reach no output of the subgraph."""
        needed = set(self._subgraph.output_indexes)
        live: list[tuple[int, Operation]] = []
        operations = self._subgraph.operations
        for position in reversed(range(len(operations))):
            operation = operations[position]
            if needed.intersection(operation.outputs):
                needed.update(operation.inputs)
                live.append((position, operation))
        live.reverse()
        return live

    def _bind(self, operation: Operation) -> BoundOperation:
        return BoundOperation(
            type=operation_type(operation.type),
            inputs=tuple(map(self._bind_operand, operation.inputs)),
            outputs=tuple(map(self._bind_output, operation.outputs)),
            relaxed=self._model.relax_computation_float32_to_float16,
            packed={},
            makes_way=self._makes_way,
        )

    def _bind_output(self, index: int) -> BoundOperand:
        operand, shape = self._operands[index], self._shapes[index]
        if shape is None and not has_unknown_dimensions(operand):
            shape = operand.dimensions
        return bound_operand(operand, shape, None)

    def _bind_operand(self, index: int) -> BoundOperand | None:
        bound = self._bound.get(index)
        if bound is None and index not in self._omitted:
            shape = self._shapes[index]
            bound = bound_operand(self._operands[index], shape, self._values.get(index))
            if shape is not None:
                self._bound[index] = bound
        return bound

    def _adding(self, position: int, operation: Operation) -> Steps[None]:
        bound = self._bind(operation)
        if not (bound.type in CONTROL_FLOW or kernels.is_supported(bound.type)):
            name = bound.type.name
            raise GeneralFailureError(f"{name} is not supported by this device")
        shapes, kernel = self._kernels.like(bound)
        cost_ns = None
        if bound.type in CONTROL_FLOW:
            # Declared shapes are trusted where they are complete.
            for index, output in zip(operation.outputs, bound.outputs, strict=True):
                self._shapes[index] = output.shape
        elif self._infer(operation, bound, shapes):
            if any(output.shape is None for output in bound.outputs):
                outputs = [self._bound[index] for index in operation.outputs]
                bound = replace(bound, outputs=tuple(outputs))
            if kernel is None and self._delegate and self._varies(operation):
                cost_ns = self._delegate.claims(bound)
            if kernel is None and cost_ns is None:
                kernel = self._prepare(bound)
        if kernel is not None and self._can_fold(operation):
            self._fold(operation, kernel)
            return
        if cost_ns is not None:
            self._claimed.add(position)
        operands = operation.inputs, operation.outputs
        costs_ns = () if cost_ns is None else (cost_ns,)
        step = Step(position, bound, *operands, kernel, costs_ns=costs_ns)
        steps, self._subgraph = yield from dividing(step, self._subgraph)
        self._steps += steps
        self._operands = self._subgraph.operands
        self._shapes += [o.dimensions for o in self._operands[len(self._shapes) :]]

    def _infer(
        self, operation: Operation, bound: BoundOperation, shapes: kernels.Shapes
    ) -> bool:
        """Set the shapes of the outputs; False if only execution shows them."""
        is_open = any(each is not None and each.shape is None for each in bound.inputs)
        if is_open or kernels.is_data_dependent(bound.type):  # whatever is declared
            return False
        try:
            inferred = shapes or infer_shapes(bound)
        except ValueNeededError:
            return False
        results = operation.outputs, bound.outputs, inferred
        for index, output, shape in zip(*results, strict=True):
            if shape is None:
                return False
            check_declared(self._operands[index], shape, bound.type)
            self._shapes[index] = shape
            known = output if output.shape == shape else replace(output, shape=shape)
            self._bound[index] = known
        return True

    def _with_kernel(self, step: Step) -> Step:
        return replace(step, kernel=self._prepare(step.operation))

    def _prepare(self, bound: BoundOperation) -> PreparedKernel | None:
        is_alone = len(self._subgraph.operations) == 1
        try:
            return (kernels if is_alone else self._kernels).prepare(bound)
        except ValueNeededError:
            return None

    def _varies(self, operation: Operation) -> bool:
        """Return whether an input is computed, or comes with the request."""
        return not all(
            i in self._values or i in self._omitted for i in operation.inputs
        )

    def _can_fold(self, operation: Operation) -> bool:
        """Return whether results are always the same, and no outputs of the plan."""
        if operation.type in _RANDOM:
            return False
        if not self._output_indexes.isdisjoint(operation.outputs):
            return False
        return not self._varies(operation) and self._may_keep(operation)

    def _may_keep(self, operation: Operation) -> bool:
        """Take from what results may hold; False if so much is not left."""
        size = sum(
            array_bytes(self._operands[index], self._shapes[index] or ())
            for index in operation.outputs
        )
        if size > max(self._foldable_bytes, _SMALL_BYTES):
            return False
        self._foldable_bytes -= size
        return True

    def _fold(self, operation: Operation, kernel: PreparedKernel) -> None:
        outputs = [
            np.empty(self._shapes[index] or (), dtype_of(self._operands[index].type))
            for index in operation.outputs
        ]
        inputs = [self._values.get(index) for index in operation.inputs]
        with np.errstate(all="ignore"):
            kernel(HeapScratch())(inputs, outputs)
        for index, value in zip(operation.outputs, outputs, strict=True):
            value.flags.writeable = False
            self._values[index] = value
            del self._bound[index]

    def _lifespans(self) -> Iterable[Lifespan]:
        """Yield the life of every temporary of known shape that a step writes."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, step in enumerate(self._steps):
            for index in step.outputs:
                first[index] = last[index] = position
            for index in step.inputs:
                last[index] = position
        for index, born in first.items():
            shape = self._shapes[index]
            if shape is not None and index not in self._output_indexes:
                size = array_bytes(self._operands[index], shape)
                yield Lifespan(index, size, born, last[index])


def array_bytes(operand: Operand, shape: Shape) -> int:
    """Return the bytes of a value of ``operand`` that has this shape."""
    return math.prod(shape) * dtype_of(operand.type).itemsize


def bound_operand(
    operand: Operand, shape: Shape | None, value: Array | None
) -> BoundOperand:
    """Return an operand with what is known of it."""
    extra = operand.extra_params
    return BoundOperand(
        _operand_type(operand.type),
        shape,
        operand.scale,
        operand.zero_point,
        extra if isinstance(extra, SymmPerChannelQuantParams) else None,
        value,
        extra if isinstance(extra, bytes) else b"",
    )


def unprepared(operation: Operation) -> str:
    """Say which operation's rules or kernel, maybe an extension's, have failed."""
    return f"{operation_type(operation.type).name} cannot be prepared"


def operation_type(type_: int) -> AnyOperationType:
    """Return the type that a resolved model means by a number."""
    if isinstance(type_, ExtensionOperationType):
        return type_
    return _OPERATION_TYPES[type_]


def _operand_type(type_: int) -> AnyOperandType:
    if isinstance(type_, ExtensionOperandType):
        return type_
    return _OPERAND_TYPES[type_]
