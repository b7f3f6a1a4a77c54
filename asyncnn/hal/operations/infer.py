"""Finds the output shapes of an operation."""

import math

from asyncnn.errors import GeneralFailureError
from asyncnn.hal.extensions import ExtensionOperandType
from asyncnn.hal.operations.bound import BoundOperation, OperationFailedError, Shape
from asyncnn.hal.operations.signature import OperationSignature
from asyncnn.hal.operations.table import signature_of

_MAX_SIZE_BYTES = 0xFFFFFFFF


def infer_shapes(operation: BoundOperation) -> tuple[Shape | None, ...]:
    """Return the shape of each output, None where only the computed data tell it.

    :raises ValueNeededError: if it takes a value or shape that is not known yet; always
        for IF and WHILE, whose results are those of a subgraph.
    :raises OperationFailedError: if shapes, values or quantisation do not fit.
    :raises GeneralFailureError: if nothing is known of the operation.
    """
    signature = signature_of(operation.type)
    if signature is None:
        raise GeneralFailureError(f"{operation.type.name} is not supported")
    _check_quantization(signature, operation)
    shapes = signature.shape(operation)
    for shape, operand in zip(shapes, operation.outputs, strict=True):
        size = math.prod(shape or ()) * operand.dtype.itemsize
        if size > _MAX_SIZE_BYTES:
            raise OperationFailedError(
                f"{operation.type.name}: an output of {size} bytes exceeds 32 bits"
            )
    return shapes


def _check_quantization(
    signature: OperationSignature, operation: BoundOperation
) -> None:
    """Check arguments with a fixed quantisation, the same ones in every layout."""
    layout = signature.layouts[0]
    pairs = (
        *zip(layout.inputs, operation.inputs, strict=False),
        *zip(layout.outputs, operation.outputs, strict=False),
    )
    for argument, operand in pairs:
        if argument.quantization is None or operand is None:
            continue
        if isinstance(operand.type, ExtensionOperandType):
            continue
        actual = operand.scale, operand.zero_point
        expected = argument.quantization.get(operand.type, actual)
        if actual != expected:
            raise OperationFailedError(
                f"{operation.type.name}: {argument.name} has scale {actual[0]} and "
                f"zero point {actual[1]}, expected {expected[0]} and {expected[1]}"
            )
