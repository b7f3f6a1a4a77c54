"""An extension whose operation tells of the process that it runs in."""

import gc
import sys

import numpy as np
from threadpoolctl import threadpool_info

from asyncnn.extensions import Argument, BoundOperation, Extension, stateless
from asyncnn.hal.types import Operand, OperandType
from asyncnn.interpreter_hooks import MOST_IMMORTAL
from asyncnn.kernels.kernel import Inputs, Outputs
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

F32 = OperandType.TENSOR_FLOAT32


def switch_interval_s() -> float:
    return sys.getswitchinterval()


def blas_threads() -> set[int]:
    libraries = threadpool_info()
    return {each["num_threads"] for each in libraries if each["user_api"] == "blas"}


def frozen_count() -> int:
    """Return how many objects are frozen that the collector has not frozen itself."""
    count = gc.get_freeze_count()
    return count if count > MOST_IMMORTAL else 0


def _tell(_: Inputs, outputs: Outputs) -> None:
    outputs[0][:] = switch_interval_s(), max(blas_threads(), default=0)


def _shape(_: BoundOperation) -> tuple[tuple[int, ...]]:
    return ((2,),)


facts = Extension("com.example.facts")
TELL = facts.operation(
    "TELL",
    0,
    inputs=[Argument("anything", F32)],
    outputs=[Argument("facts", F32)],
    shape=_shape,
    prepare=lambda operation: stateless(_tell),
)
NAME = f"{__name__}:facts"


def telling() -> NamedModel:
    """``facts`` of the process: its switch interval in seconds, BLAS's threads."""
    builder = ModelBuilder()
    anything = builder.input("anything", F32, (1,))
    builder.output(builder.operation(TELL, [anything], Operand(F32, (2,))), "facts")
    return builder.build()


ANYTHING = np.zeros(1, np.float32)
