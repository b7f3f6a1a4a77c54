"""Segments of plans on LiteRT, an inference engine with XNNPACK kernels.

A segment is a run of steps of a plan (`asyncnn.engine.delegation`). Each of its
operations is written in TFLite, the format that LiteRT takes, and LiteRT computes them
all at once. Nothing here imports LiteRT before it is needed to run a graph.

`claims` and `write_graph` follow one table of rules, in which operations of the HAL
have functions that write them: an operation is claimed exactly if its function can
write it. `docs/accelerated.md` shows the table. The files, from below: tensors and
operators of a graph (`tflite_graph`), the forms of operands in it (`operand_tensors`),
what rules share (`operation_writer`), the rules by family (`operators_*`), all of them
(`claims`), the bytes (`writer`, `flat_file`) and where LiteRT reads them
(`graph_file`), what caches keep (`segment_record`); and files of others, each as one
operation (`region_kernels`, `region_file`).

No operation is claimed that could make LiteRT end the process, as some do that it does
not compute: so limits of scales, strides and sizes are part of the rules.

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
