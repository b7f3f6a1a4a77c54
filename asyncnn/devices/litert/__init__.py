"""Segments of plans on LiteRT, an inference engine with XNNPACK kernels.

A segment is a run of steps of a plan (`asyncnn.engine.delegation`). Each of its
operations is written in TFLite, the format that LiteRT takes, and LiteRT computes them
all at once. Nothing here imports LiteRT before it is needed to run a graph.

`claims`
    says whether an operation, whose shapes are known, is computed there

`claims` and `write_graph` follow one table of rules, in which operations of the HAL
have functions that write them: an operation is claimed exactly if its function can
write it. `docs/accelerated.md` shows the table. The files, from below:

`tflite_graph.py`
    tensors, constants and operators of a graph
`operand_tensors.py`
    the forms in which operands of the HAL lie in tensors: unsigned codes are computed
    as signed ones, float16 as float32
`operation_writer.py`
    what all rules share: one operation, its tensors, and checks of its operands
`operators_*.py`
    the rules, by family of operations
`claims.py`
    the whole table, and why the other operations are left to the kernels
`writer.py`, `flat_file.py`
    the bytes of the file, in the schema of TFLite and as a flatbuffer
`graph_file.py`
    the file with the constants that lie apart, where LiteRT reads it
`segment_record.py`
    what caches keep of a file
`region_kernels.py`, `region_file.py`
    files of others, as one operation: checked, with a head in front of them

No operation is claimed that
could make LiteRT end the process, which it does on some graphs that it cannot compute:
so limits of scales, strides and sizes are part of the rules.

>>> import numpy as np
>>> from asyncnn import OperandType, OperationType
>>> from asyncnn.devices.litert import claims, refusal, write_graph
>>> from asyncnn.engine.delegation import Segment
>>> from asyncnn.engine.plan import Step
>>> from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
>>> x = BoundOperand(OperandType.TENSOR_FLOAT32, (2, 3))
>>> tanh = BoundOperation(OperationType.TANH, (x,), (x,))
>>> claims(tanh)
True
>>> file = write_graph(Segment((Step(0, tanh, (0,), (1,), None),), (0,), (1,)))
>>> file[4:8]
b'TFL3'
>>> refusal(BoundOperation(OperationType.LOGICAL_NOT, (x,), (x,)))[:27]
'LOGICAL_NOT is not claimed:'

Errors are `GeneralFailureError`, as a segment that cannot be written is a fault of what
has put it together; it never is one of the model.
"""

from asyncnn.devices.litert.claims import claims, refusal
from asyncnn.devices.litert.writer import write_graph

__all__ = ("claims", "refusal", "write_graph")
