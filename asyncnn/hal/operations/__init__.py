"""The operations of the HAL: what they accept and which shapes they give.

`SIGNATURES`
    the declaration of every operation: arguments, allowed types, versions, shape rule
`check_operation`
    checks one operation of a model; returns the oldest version that allows its use
`infer_shapes`
    the shapes of its outputs, as soon as enough is known of its inputs
`allowed_types`
    the main operand types of an operation, each with the version that added it

All of this is data and pure functions. Nothing is opened or kept but a cache of the
patterns of operands that were found right, and any thread may call it. `SIGNATURES`
cannot be changed. Shapes are tuples of axis lengths. In operands of a model, as in the
HAL, an axis of length 0 is open and no dimensions at all leave the rank open; in
`infer_shapes` a shape is complete and 0 means empty, or it is None.

`check_operation` raises `InvalidArgumentError` for wrong counts, types or ranks and for
an operation that the asked version does not have yet. `infer_shapes` raises
``ValueNeededError`` where it takes a value that is not known yet, and
``OperationFailedError``, a `GeneralFailureError`, where shapes or values do not fit.
Both are in ``bound``, with the operations that it takes. An output whose shape only the
computed data show has None instead.

One file for each family declares its operations. ``declaring`` says how and reads it
into a ``signature``; ``bound`` is an operation with all that is known of its operands,
which kernels read as well, and ``sliding_windows`` has the arithmetic that both share.
Imports nothing of asyncnn but the HAL's data and the errors.

>>> from asyncnn.hal import HalVersion, Operand, OperandLifeTime, OperandType
>>> from asyncnn.hal import Operation, OperationType
>>> from asyncnn.hal.operations import allowed_types, check_operation, infer_shapes
>>> F32, I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32
>>> operands = (Operand(F32, (2, 3)), Operand(I32, (2,)), Operand(F32))
>>> transpose = Operation(OperationType.TRANSPOSE, inputs=(0, 1), outputs=(2,))
>>> check_operation(transpose, operands, HalVersion.V1_3)
<HalVersion.V1_1: 2>
>>> allowed_types(OperationType.TRANSPOSE)[OperandType.TENSOR_FLOAT16]
<HalVersion.V1_2: 3>

Without the permutation, input 1, the axes are reversed:

>>> check_operation(
...     Operation(OperationType.TRANSPOSE, inputs=(0, 3), outputs=(2,)),
...     (*operands, Operand(I32, (2,), lifetime=OperandLifeTime.NO_VALUE)),
...     HalVersion.V1_3,
... )
<HalVersion.V1_1: 2>

An operation that is bound to the shapes and values of its inputs:

>>> import numpy as np
>>> from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
>>> matrix = BoundOperand(F32, (2, 3))
>>> axes = BoundOperand(I32, (2,), value=np.int32([1, 0]))
>>> result = BoundOperand(F32, None)
>>> bound = BoundOperation(OperationType.TRANSPOSE, (matrix, axes), (result,))
>>> infer_shapes(bound)
((3, 2),)
"""

from asyncnn.hal.operations.check import check_operation, infer_shapes
from asyncnn.hal.operations.table import SIGNATURES, allowed_types

__all__ = ("SIGNATURES", "allowed_types", "check_operation", "infer_shapes")
