"""Request arguments as arrays over the pools that they lie in, without copies."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncnn import hal
from asyncnn.engine.plan import Plan, Port
from asyncnn.engine.program import InputShapes, Program
from asyncnn.hal.operands import combine_dimensions, has_lengths, is_scalar
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import OutputShapes
from asyncnn.memory.managed import ClaimedBuffer
from asyncnn.memory.pools import view

_AT_ONCE = 1 << 20
"""Elements of an output that are copied between two checks."""


def bound_arrays(plan: Plan, request: hal.Request) -> list[Array] | None:
    """Return an array for each port of a fixed plan over the memory of a request.

    The inputs', which come first, are read-only. None if an argument needs a closer
    look, see `bound_array`. All pools of ``request`` are memory.
    """
    pools: Sequence[hal.Memory] = request.pools  # type: ignore[assignment]
    arrays: list[Array] = []
    inputs = len(plan.inputs)
    for port, argument in zip(
        plan.ports, (*request.inputs, *request.outputs), strict=True
    ):
        data = pools[argument.location.pool_index].buffer if pools else None
        array = bound_array(port, argument, data, is_read=len(arrays) < inputs)
        if array is None:
            return None
        arrays.append(array)
    return arrays


def bound_array(
    port: Port, argument: hal.RequestArgument, data: Any, *, is_read: bool
) -> Array | None:
    """Return the array of a plain argument over ``data``, its pool or buffer.

    None if it is omitted, has other dimensions or too few bytes, or its memory is not
    mapped here, not aligned, or not writable but to be written.
    """
    location = argument.location
    if (
        data is None
        or argument.has_no_value
        or (argument.dimensions and argument.dimensions != port.shape)
        or location.length < port.size_bytes
    ):
        return None
    assert port.shape is not None
    array = np.ndarray(port.shape, port.dtype, data, location.offset)
    flags = array.flags
    if not flags.aligned or not (is_read or flags.writeable):
        return None
    if is_read:
        array.setflags(write=False)
    return array


def input_shapes(program: Program, request: hal.Request) -> InputShapes:
    """Return the shape of every input of a validated request."""
    declared = program.declared_shapes
    if declared is not None:
        for argument in request.inputs:
            if argument.has_no_value or argument.dimensions:
                break
        else:
            return declared
    main = program.model.main
    return tuple(
        _input_shape(main.operands[index], argument)
        for index, argument in zip(main.input_indexes, request.inputs, strict=True)
    )


def _input_shape(operand: hal.Operand, argument: hal.RequestArgument) -> Shape | None:
    if argument.has_no_value:
        return None
    if is_scalar(operand.type):
        return ()
    return combine_dimensions(operand.dimensions, argument.dimensions)


def input_arrays(plan: Plan, request: hal.Request) -> list[Array | None]:
    """Return a read-only array for each input, None where it is omitted.

    :raises GeneralFailureError: if a pool cannot be mapped.
    """
    arrays: list[Array | None] = []
    for index, port in enumerate(plan.inputs):
        argument = request.inputs[index]
        shape = port.shape
        if shape is None:  # it is omitted, or the plan is for any lengths
            shape = _input_shape(port.operand, argument)
        if shape is None:
            arrays.append(None)
        else:
            array = _array(request, argument, port, shape)
            if port.dtype.kind == "b":
                array = _truth(array)
            elif not array.flags.aligned:
                array = array.copy()  # BLAS takes no others
            array.setflags(write=False)
            arrays.append(array)
    return arrays


def output_arrays(plan: Plan, request: hal.Request) -> list[Array | None]:
    """Return an array for each output to compute in place.

    None stands for an output that is omitted, whose shape is not known yet, or that
    is too short while the others' shapes are still to be found.

    :raises OutputInsufficientSizeError: if one is too short and all shapes are known.
    :raises InvalidArgumentError: if a pool cannot be written to.
    :raises GeneralFailureError: if a pool cannot be mapped, or a shape contradicts
        the request's dimensions.
    """
    arrays: list[Array | None] = []
    is_short = False
    for index, port in enumerate(plan.outputs):
        argument = request.outputs[index]
        if port.shape is None or argument.has_no_value:
            arrays.append(None)
        elif (
            port.size_bytes <= argument.location.length
            if not argument.dimensions
            else _suffices(argument, port.shape, port.size_bytes)
        ):
            arrays.append(_writable(request, argument, port, port.shape))
        else:
            is_short = True
            arrays.append(None)
    if is_short and plan.known_outputs is not None:
        raise _insufficient(_reported(plan, request, plan.known_outputs))
    return arrays


def copy_outputs(
    computed: Sequence[Array | None],
    places: Sequence[Array | None],
    check: Callable[[], None],
) -> None:
    """Copy outputs to places of their shapes; ``check`` is called now and then."""
    for array, place in zip(computed, places, strict=True):
        if place is None or array is None:
            continue
        source, target = array.reshape(-1), place.reshape(-1)
        for start in range(0, target.size, _AT_ONCE):
            check()
            target[start : start + _AT_ONCE] = source[start : start + _AT_ONCE]


def store_outputs(
    plan: Plan,
    request: hal.Request,
    in_place: Sequence[Array | None],
    outputs: Sequence[Array],
) -> OutputShapes:
    """Copy outputs that were not computed in place, and return every shape.

    :raises OutputInsufficientSizeError: if a buffer is too short.
    :raises InvalidArgumentError: if a pool cannot be written to.
    :raises GeneralFailureError: if a shape contradicts the request's dimensions.
    """
    if plan.known_outputs is not None:
        return plan.known_outputs
    shapes = tuple(hal.OutputShape(output.shape, True) for output in outputs)
    reported = _reported(plan, request, shapes)
    for port, argument, array, output, shape in zip(
        plan.outputs, request.outputs, in_place, outputs, reported, strict=True
    ):
        if array is None and shape.is_sufficient and not argument.has_no_value:
            _writable(request, argument, port, output.shape)[...] = output
    if not all(shape.is_sufficient for shape in reported):
        raise _insufficient(reported)
    return reported


def _reported(
    plan: Plan, request: hal.Request, shapes: Sequence[hal.OutputShape]
) -> OutputShapes:
    return tuple(
        hal.OutputShape(
            shape.dimensions,
            argument.has_no_value
            or _suffices(
                argument,
                shape.dimensions,
                math.prod(shape.dimensions) * port.dtype.itemsize,
            ),
        )
        for port, argument, shape in zip(
            plan.outputs, request.outputs, shapes, strict=True
        )
    )


def _suffices(argument: hal.RequestArgument, shape: Shape, size_bytes: int) -> bool:
    dimensions = argument.dimensions
    if dimensions and not has_lengths(shape, dimensions):
        raise hal.GeneralFailureError(
            f"the output has shape {list(shape)}, the request says {list(dimensions)}"
        )
    return size_bytes <= argument.location.length


def _insufficient(shapes: OutputShapes) -> hal.OutputInsufficientSizeError:
    short = [index for index, shape in enumerate(shapes) if not shape.is_sufficient]
    return hal.OutputInsufficientSizeError(f"outputs {short} need more space", shapes)


def _writable(
    request: hal.Request, argument: hal.RequestArgument, port: Port, shape: Shape
) -> Array:
    array = _array(request, argument, port, shape)
    if not array.flags.writeable:
        raise hal.InvalidArgumentError("an output lies in a pool that is read-only")
    return array


def _array(
    request: hal.Request, argument: hal.RequestArgument, port: Port, shape: Shape
) -> Array:
    location = argument.location
    pool = request.pools[location.pool_index]
    count = port.count if shape is port.shape else math.prod(shape)
    if not count:
        return np.empty(shape, port.dtype)
    if isinstance(pool, hal.BufferToken):
        return _in_buffer(pool, count * port.dtype.itemsize, port).reshape(shape)
    data = view(pool) if pool.buffer is None else pool.buffer
    return np.ndarray(shape, port.dtype, data, location.offset)


def _in_buffer(pool: hal.BufferToken, size_bytes: int, port: Port) -> Array:
    if not isinstance(pool, ClaimedBuffer):
        raise hal.GeneralFailureError("the device has no memory domains")
    return pool.storage.reserve(size_bytes).view(port.dtype)


def _truth(array: Array) -> Array:
    """Return booleans of which every byte is 0 or 1, whatever a client wrote.

    NumPy computes with the bytes of booleans and relies on that.
    """
    return np.asarray(array.view(np.uint8) != 0)
