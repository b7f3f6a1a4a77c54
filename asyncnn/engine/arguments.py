"""Request arguments as arrays over the pools that they lie in, without copies."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from asyncnn.engine.plan import Plan
from asyncnn.engine.program import InputShapes, Program
from asyncnn.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operands import DTYPES, SCALAR_TYPES, combine_dimensions
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import (
    BufferToken,
    Dimensions,
    Memory,
    Operand,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import view


def input_shapes(program: Program, request: Request) -> InputShapes:
    """Return the shape of every input of a validated request."""
    declared = program.declared_shapes
    if declared is not None and not any(
        argument.has_no_value or argument.dimensions for argument in request.inputs
    ):
        return declared
    main = program.model.main
    return tuple(
        _input_shape(main.operands[index], argument)
        for index, argument in zip(main.input_indexes, request.inputs, strict=True)
    )


def _input_shape(operand: Operand, argument: RequestArgument) -> Shape | None:
    if argument.has_no_value:
        return None
    if operand.type in SCALAR_TYPES:
        return ()
    return combine_dimensions(operand.dimensions, argument.dimensions)


def input_arrays(
    plan: Plan, request: Request, shapes: Sequence[Shape | None]
) -> list[Array | None]:
    """Return a read-only array for each input, None where it is omitted.

    :raises GeneralFailureError: if a pool cannot be mapped.
    """
    operands = plan.subgraph.operands
    arrays: list[Array | None] = []
    for index, argument, shape in zip(
        plan.subgraph.input_indexes, request.inputs, shapes, strict=True
    ):
        if shape is None:
            arrays.append(None)
            continue
        array = _array(operands[index], argument, shape, request)
        array.flags.writeable = False
        arrays.append(array)
    return arrays


class OutputBinding(msgspec.Struct, frozen=True, eq=False):
    """Where an output goes: ``array`` if its buffer is known to suffice before
    execution, else None; ``is_sufficient`` is None while its shape is unknown.
    """

    array: Array | None
    is_sufficient: bool | None


def output_bindings(plan: Plan, request: Request) -> list[OutputBinding]:
    """Bind each output to its span of memory, as far as shapes are known.

    :raises InvalidArgumentError: if a pool cannot be written to.
    :raises GeneralFailureError: if a pool cannot be mapped, or the shape contradicts
        the request's dimensions.
    """
    bindings: list[OutputBinding] = []
    for index, argument in zip(
        plan.subgraph.output_indexes, request.outputs, strict=True
    ):
        shape = plan.shapes[index]
        bindings.append(_bind(plan.subgraph.operands[index], argument, shape, request))
    return bindings


def _bind(
    operand: Operand, argument: RequestArgument, shape: Shape | None, request: Request
) -> OutputBinding:
    if argument.has_no_value:
        return OutputBinding(None, True)
    if shape is None:
        return OutputBinding(None, None)
    if not _suffices(operand, argument, shape):
        return OutputBinding(None, False)
    return OutputBinding(_writable(operand, argument, shape, request), True)


def _suffices(operand: Operand, argument: RequestArgument, shape: Shape) -> bool:
    dimensions = argument.dimensions
    if dimensions and not _fits(dimensions, shape):
        raise GeneralFailureError(
            f"the output has shape {list(shape)}, the request says {list(dimensions)}"
        )
    size = math.prod(shape) * DTYPES[operand.type].itemsize
    return size <= argument.location.length


def _fits(dimensions: Dimensions, shape: Shape) -> bool:
    return len(dimensions) == len(shape) and all(
        axis in (0, length) for axis, length in zip(dimensions, shape, strict=True)
    )


def known_output_shapes(
    plan: Plan, bindings: Sequence[OutputBinding]
) -> tuple[OutputShape, ...]:
    """Return what will be reported, if every shape is known before execution."""
    shapes = plan.output_shapes
    return tuple(
        OutputShape(shape, binding.is_sufficient is not False)
        for shape, binding in zip(shapes, bindings, strict=True)
        if shape is not None and None not in shapes
    )


def store_outputs(
    plan: Plan,
    request: Request,
    bindings: Sequence[OutputBinding],
    outputs: Sequence[Array],
) -> tuple[OutputShape, ...]:
    """Copy outputs that were not computed in place, and report every shape.

    :raises GeneralFailureError: if a shape contradicts the request's dimensions.
    """
    shapes: list[OutputShape] = []
    for index, argument, binding, output in zip(
        plan.subgraph.output_indexes, request.outputs, bindings, outputs, strict=True
    ):
        is_sufficient = binding.is_sufficient
        if is_sufficient is None:
            operand = plan.subgraph.operands[index]
            is_sufficient = _suffices(operand, argument, output.shape)
            if is_sufficient:
                _writable(operand, argument, output.shape, request)[...] = output
        shapes.append(OutputShape(output.shape, is_sufficient))
    return tuple(shapes)


def _array(
    operand: Operand, argument: RequestArgument, shape: Shape, request: Request
) -> Array:
    location = argument.location
    pool = request.pools[location.pool_index]
    dtype = DTYPES[operand.type]
    if 0 in shape:
        return np.empty(shape, dtype)
    array = np.frombuffer(_bytes(pool), dtype, math.prod(shape), location.offset)
    return array if array.shape == shape else array.reshape(shape)


def _writable(
    operand: Operand, argument: RequestArgument, shape: Shape, request: Request
) -> Array:
    array = _array(operand, argument, shape, request)
    if not array.flags.writeable:
        raise InvalidArgumentError("an output lies in a pool that is read-only")
    return array


def _bytes(pool: Memory | BufferToken) -> memoryview:
    if isinstance(pool, BufferToken):
        raise GeneralFailureError("the device has no memory domains")
    return view(pool) if pool.buffer is None else pool.buffer
