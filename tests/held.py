"""An operation that goes on for as long as a test wants, and cannot be stopped."""

import threading

import numpy as np

from asyncnn.extensions import Argument, Extension, stateless
from asyncnn.hal.types import Operand, OperandType
from asyncnn.kernels.kernel import Inputs, Outputs
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

F32 = OperandType.TENSOR_FLOAT32


class Held:
    """An extension whose operation copies its input once ``gate`` is open.

    ``begun`` is released each time that it begins; ``ended`` each time that it is done.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.extension = Extension("com.example.held")
        self._type = self.extension.operation(
            "HOLD",
            0,
            inputs=[Argument("values", F32)],
            outputs=[Argument("copied", F32)],
            shape=lambda operation: (operation.shape(0),),
            prepare=lambda operation: stateless(self._run),
        )

    def _run(self, inputs: Inputs, outputs: Outputs) -> None:
        self.begun.release()
        assert self.gate.wait(30)
        np.copyto(outputs[0], inputs[0])
        self.ended.release()

    def model(self, *dimensions: int) -> NamedModel:
        """``y = x``, held; an axis of 0 is open."""
        builder = ModelBuilder()
        x = builder.input("x", F32, dimensions)
        held = builder.operation(self._type, [x], Operand(F32, dimensions))
        builder.output(held, "y")
        return builder.build()
