"""Floor 2: reference kernels, one file per family of operations.

`prepare`
    does all one-time work of an operation, such as packing weights, and returns its
    kernel
`compute`
    runs the operations whose output shapes only the data show; `is_data_dependent`
    says which these are
`supported_operations`
    all operations of the HAL that have a kernel; `is_supported` knows an extension's
    as well

NumPy, and C where it was built: no event loop, no files, no global state. A prepared
kernel is shared by all executions of a model. It becomes a run when it is given a
``Scratch``, from which it takes its buffers, and that run is called by one thread at a
time. Runs of different workspaces may go on at once. A run reads its inputs, which may
be read-only and of any alignment, and fills the outputs that it is given; it keeps
neither. `compute` returns new arrays.

Arrays hold stored values, in the dtype of their operand type: a quantised number is
``scale * (stored - zero_point)``. Shapes are complete before `prepare` is called: that
is what `asyncnn.hal.operations.infer_shapes` is for. `asyncnn.kernels.kernel` says
precisely what a kernel may do and must do, for those who write one.

`prepare` and `compute` raise `GeneralFailureError` if there is no kernel, or if an
operand has an illegal value. `prepare` raises ``ValueNeededError``
(`asyncnn.extensions.ValueNeededError`) if it takes a value that only the execution
brings: the engine prepares anew then, at each execution.

>>> import numpy as np
>>> from asyncnn.hal import OperandType, OperationType
>>> from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
>>> from asyncnn.kernels import prepare
>>> from asyncnn.kernels.kernel import HeapScratch
>>> vector = BoundOperand(OperandType.TENSOR_FLOAT32, (4,))
>>> operation = BoundOperation(OperationType.FLOOR, (vector,), (vector,))
>>> run = prepare(operation)(HeapScratch())
>>> y = np.empty(4, np.float32)
>>> run([np.float32([-1.5, -0.5, 0.5, 1.5])], [y])
>>> y
array([-2., -1.,  0.,  1.], dtype=float32)

A family knows no other; what they share is in ``numerics`` (stored values, and tables
of them) and ``rounding`` (sums that become codes). Imports only `asyncnn.hal`.
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.kernels.registry import compute as compute
    from asyncnn.kernels.registry import is_data_dependent as is_data_dependent
    from asyncnn.kernels.registry import is_supported as is_supported
    from asyncnn.kernels.registry import prepare as prepare
    from asyncnn.kernels.registry import supported_operations as supported_operations
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "asyncnn.kernels.registry": "compute is_data_dependent is_supported "
            "prepare supported_operations"
        },
    )
