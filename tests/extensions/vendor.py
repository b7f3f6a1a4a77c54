"""An extension that has one of everything."""

import numpy as np

from asyncnn.extensions import (
    V1_2,
    Argument,
    BoundOperation,
    Extension,
    Usage,
    row,
    stateless,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperandType
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel

F32, I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32

vendor = Extension("com.example.vendor")
COMPLEX = vendor.tensor_type("TENSOR_COMPLEX64", 7, np.complex64)
COMPLEX_SCALAR = vendor.scalar_type("COMPLEX64", 8, np.complex64)
RGB = vendor.tensor_type("TENSOR_RGB", 9, np.dtype("V3"))


def _same_shape(operation: BoundOperation) -> tuple[tuple[int, ...]]:
    return (operation.shape(0),)


def _no_broadcasting(usage: Usage) -> None:
    if usage.input("values").extra_params == b"broadcast":
        raise usage.error("values", "cannot be broadcast")


def _scaled(inputs: Inputs, outputs: Outputs) -> None:
    np.multiply(inputs[0], inputs[1], out=outputs[0])


SCALE = vendor.operation(
    "SCALE",
    0,
    inputs=[Argument("values", "T", ranks=(1, 2)), Argument("factor", "S")],
    outputs=[Argument("scaled", "T")],
    rows=[
        row(V1_2, T=COMPLEX, S=COMPLEX_SCALAR),
        row(V1_2, T=F32, S=OperandType.FLOAT32),
    ],
    checks=[_no_broadcasting],
    shape=_same_shape,
    prepare=lambda operation: stateless(_scaled),
)


def _prepare_magnitude(operation: BoundOperation) -> PreparedKernel:
    """Compute ``|values|``, to the power of the first opaque byte if there are any."""
    power = (operation.input(0).opaque_params or b"\1")[0]
    return stateless(
        lambda inputs, outputs: np.power(np.abs(inputs[0]), power, out=outputs[0])
    )


MAGNITUDE = vendor.operation(
    "MAGNITUDE",
    1,
    inputs=[Argument("values", COMPLEX)],
    outputs=[Argument("magnitude", F32)],
    shape=_same_shape,
    prepare=_prepare_magnitude,
)


def _places(operation: BoundOperation) -> list[Array]:
    return [np.flatnonzero(operation.value(0)).astype(np.int32)]


NONZERO = vendor.operation(
    "NONZERO",
    2,
    inputs=[Argument("values", COMPLEX)],
    outputs=[Argument("places", I32, ranks=(1,))],
    shape=lambda operation: (None,),
    compute=_places,
)

DECLARED_ONLY = vendor.operation(
    "DECLARED_ONLY",
    3,
    inputs=[Argument("values", COMPLEX)],
    outputs=[Argument("magnitude", F32)],
    shape=_same_shape,
)
