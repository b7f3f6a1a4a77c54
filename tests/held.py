"""An operation that goes on for as long as a test wants, whatever it is asked for."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from asyncnn.extensions import V1_2, Argument, BoundOperation, Extension, row, stateless
from asyncnn.hal.errors import MissedDeadlineError, MissedDeadlineTransientError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

F32 = OperandType.TENSOR_FLOAT32
LONGEST_S = 30.0


class Held:
    """An extension, whose operation copies its input: not before `holding` lets it.

    ``copied`` has what it has copied, and ``places`` where that went. It was prepared
    for shapes as often as ``compiled`` says, which `compiling` delays likewise; so many
    of both were held as ``held`` says.
    """

    def __init__(self) -> None:
        self.copied: list[Array] = []
        self.places: list[Array] = []
        self.compiled = self.held = 0
        self._gate: threading.Event | None = None
        self._compiling: threading.Event | None = None
        self._reached = threading.Semaphore(0)
        self.extension = Extension("com.example.held")
        self._type = self.extension.operation(
            "HOLD",
            0,
            inputs=[Argument("values", "T")],
            outputs=[Argument("copied", "T")],
            rows=[row(V1_2, T=F32)],
            shape=lambda operation: (operation.shape(0),),
            prepare=self._prepare,
        )

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold what begins inside the block, before `go_on`, until the block ends."""
        self._gate = gate = threading.Event()
        try:
            yield
        finally:
            self._gate = None
            gate.set()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Hold compilations of the operation likewise."""
        self._compiling = gate = threading.Event()
        try:
            yield
        finally:
            self._compiling = None
            gate.set()

    def go_on(self) -> None:
        """Hold no more operations or compilations than those that are held now."""
        self._gate = self._compiling = None

    def wait_reached(self) -> None:
        """Wait until one more operation or compilation is held."""
        assert self._reached.acquire(timeout=LONGEST_S)

    async def late(self, run: Callable[[float], Awaitable[object]]) -> str:
        """Run with ever later deadlines until one passes while something is held.

        Return what the error of that one says.
        """
        held, timeout = self.held, 0.02
        while True:
            with pytest.raises(MissedDeadlineError) as missed:
                await run(timeout)
            if self.held > held:
                assert isinstance(missed.value, MissedDeadlineTransientError)
                return str(missed.value)
            timeout *= 2  # it had not even begun

    def model(self, *dimensions: int) -> NamedModel:
        """``y = x``, held; an axis of 0 is open."""
        builder = ModelBuilder()
        x = builder.input("x", F32, dimensions)
        builder.output(self._held(builder, x, dimensions), "y")
        return builder.build()

    def summing(self, width: int) -> NamedModel:
        """``y`` is the sum of the rows of ``x``, of which there is any number; held."""
        builder = ModelBuilder()
        rows = (0, width)
        held = self._held(builder, builder.input("x", F32, rows), rows)
        axes = builder.constant(np.zeros(1, np.int32))
        keeps = builder.scalar(False)
        summed = builder.operation(
            OperationType.REDUCE_SUM, [held, axes, keeps], Operand(F32, (width,))
        )
        builder.output(summed, "y")
        return builder.build()

    def counting(self, *dimensions: int) -> NamedModel:
        """``total += x``, held; ``y = 2 total``."""
        builder = ModelBuilder()
        x = builder.input("x", F32, dimensions)
        total = builder.state("total", F32, dimensions)
        none = builder.scalar(FusedActivationFunc.NONE)
        added = builder.operation(
            OperationType.ADD, [total, x, none], Operand(F32, dimensions)
        )
        held = self._held(builder, added, dimensions)
        doubled = builder.operation(
            OperationType.ADD, [held, held, none], Operand(F32, dimensions)
        )
        builder.output(doubled, "y")
        builder.next_state(total, held)
        return builder.build()

    def _held(self, builder: ModelBuilder, x: int, dimensions: tuple[int, ...]) -> int:
        return builder.operation(self._type, [x], Operand(F32, dimensions))

    def _prepare(self, operation: BoundOperation) -> PreparedKernel:
        self.compiled += 1
        self._wait(self._compiling)
        return stateless(self._run)

    def _run(self, inputs: Inputs, outputs: Outputs) -> None:
        self._wait(self._gate)
        self.copied.append(inputs[0].copy())
        self.places.append(outputs[0])
        np.copyto(outputs[0], inputs[0])

    def _wait(self, gate: threading.Event | None) -> None:
        if gate is not None:
            self.held += 1
            self._reached.release()
            assert gate.wait(LONGEST_S)
