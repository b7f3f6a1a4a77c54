"""Whether ONNX Runtime's C API does what it did when asyncnn was written for it.

Its functions are called by their places in a table. `asyncnn.devices.engine_verdicts`
has the test run: ``python -m asyncnn.devices.onnxruntime.runtime_trial LIBRARY
VERSION``; after the version, and a space, stands an `ExecutionProvider` in JSON.
"""

import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from asyncnn.devices.compiled_graph import CApiUnavailableError
from asyncnn.devices.engine_verdicts import require, trying
from asyncnn.devices.onnxruntime.providers import ExecutionProvider
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary
from asyncnn.devices.onnxruntime.session_graphs import OnnxRegions
from asyncnn.extensions.protobuf import encoded, message
from asyncnn.extensions.regions import DECLARED, ONNX
from asyncnn.hal.errors import AsyncnnError, EngineUnavailableError, GeneralFailureError
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import OperandType
from asyncnn.kernels.kernel import HeapScratch, InterruptibleRun
from asyncnn.memory.pages import aligned_bytes
from asyncnn.offload import start_thread

_LINKS, _SIDE = 100, 192
_REPETITIONS = 20
_MOST_INTERRUPTIONS = 50
_OFFSETS_BYTES = (0, 4, 16)
_FLOAT = 1


def chain(links: int, side: int, weights: Array | None = None) -> bytes:
    """Return an ONNX file: ``y`` is ``x`` times ``w`` as often as there are links.

    All three are square matrices of this side; the side of ``x`` is open. An input is
    ``w``, or else these ``weights``.
    """

    def number(field: int, value: int) -> bytes:
        return encoded(field << 3) + encoded(value)

    def text(field: int, value: str) -> bytes:
        return b"".join(message(field, [value.encode()]))

    def port(field: int, name: str, rows: bytes) -> bytes:
        axes = [*message(1, [rows]), *message(1, [number(1, side)])]
        tensor = [number(1, _FLOAT), *message(2, axes)]
        type_ = message(2, message(1, tensor))
        return b"".join(message(field, [text(1, name), *type_]))

    names = ["x", *(f"y{link}" for link in range(1, links)), "y"]
    nodes: list[bytes] = []
    for before, after in pairwise(names):
        operands = text(1, before) + text(1, "w") + text(2, after)
        nodes += message(1, [operands, text(4, "MatMul")])
    known, open_ = number(1, side), text(2, "rows")
    ports = [port(11, "x", open_), port(12, "y", open_)]
    if weights is None:
        ports.insert(1, port(11, "w", known))
    else:
        sides = number(1, side) * 2 + number(2, _FLOAT) + text(8, "w")
        ports += message(5, [sides, *message(9, [weights.tobytes()])])
    graph = message(7, [*nodes, text(2, "chain"), *ports])
    return b"".join([number(1, 8), *graph, *message(8, [number(2, 13)])])


class _RuntimeTrial:
    """The test itself, in a process that it may end, of the CPU or of a provider.

    :raises TrialError: if something is not as it should be.
    :raises CApiUnavailableError: if the library cannot even be loaded.
    """

    def __init__(self, library: Path, provider: ExecutionProvider | None) -> None:
        self._provider = provider
        self._regions = OnnxRegions(OnnxRuntimeLibrary(library).on(provider))
        random = np.random.default_rng(0)
        self._x = random.random((_SIDE, _SIDE), np.float32)
        self._w = np.roll(np.eye(_SIDE, dtype=np.float32), 1, axis=1)
        self._right = np.roll(self._x, _LINKS, axis=1)

    def run(self) -> str:
        """Prepare, run and interrupt regions; there is nothing to report.

        :raises EngineUnavailableError: if the provider lacks what it needs.
        """
        try:
            kernel = self._regions.prepare(self._region(_SIDE))
        except GeneralFailureError as error:
            if self._provider is None:
                raise
            raise EngineUnavailableError(error.message) from error
        run = kernel(HeapScratch())
        assert isinstance(run, InterruptibleRun)
        for offset in _OFFSETS_BYTES:
            self._compare(run, offset)
        self._interrupt(run)
        self._compute(b"", self._x, self._w)
        self._compute(chain(_LINKS, _SIDE, self._w), self._x)  # weights beside it
        self._refuse()
        for _ in range(_REPETITIONS):
            again = self._regions.prepare(self._region(_SIDE))(HeapScratch())
            assert isinstance(again, InterruptibleRun)
            self._compare(again, 0)
        return ""

    def _region(
        self, rows: int | None, *values: Array, content: bytes = b""
    ) -> BoundOperation:
        file = content or chain(_LINKS, _SIDE)
        graph = np.frombuffer(file, np.uint8)
        declared = DECLARED[ONNX]
        float_, square = OperandType.TENSOR_FLOAT32, (_SIDE, _SIDE)
        given = values or (None, None)
        return BoundOperation(
            declared.operation_types[0],
            (
                BoundOperand(declared.operand_types[0], graph.shape, value=graph),
                *(BoundOperand(float_, square, value=each) for each in given),
            ),
            (BoundOperand(float_, None if rows is None else (rows, _SIDE)),),
        )

    def _output(self, offset: int) -> Array:
        memory = aligned_bytes(self._x.nbytes + offset)[offset:].view(np.float32)
        memory[:] = np.nan
        return memory.reshape(self._x.shape)

    def _compare(self, run: InterruptibleRun, offset: int) -> None:
        x, y = self._output(offset), self._output(offset)
        x[...] = self._x
        x.flags.writeable = False
        run.clear()
        inputs = [None, x, self._w]
        require(run.attempt(inputs, [y]), "a run says that it was interrupted")
        require(np.array_equal(y, self._right), f"wrong results at offset {offset}")

    def _interrupt(self, run: InterruptibleRun) -> None:
        inputs, output = [None, self._x, self._w], self._output(0)
        run.interrupt()
        require(not run.attempt(inputs, [output]), "an interrupt has no effect")
        self._compare(run, 0)
        if self._provider is not None:  # which may have made one node of all
            return
        for _ in range(_MOST_INTERRUPTIONS):
            begun, ended = threading.Event(), [True]
            run.clear()

            def attempt(begun: threading.Event = begun, to: list[bool] = ended) -> None:
                begun.set()
                to[0] = run.attempt(inputs, [output])

            thread = threading.Thread(target=attempt)
            start_thread(thread)
            begun.wait()
            time.sleep(0.001)
            run.interrupt()
            thread.join()
            if not ended[0]:
                self._compare(run, 0)
                return
        require(False, "an interrupt has no effect within a run")

    def _compute(self, content: bytes, *given: Array) -> None:
        """Have a graph run on what is given, without known shapes."""
        region = self._region(None, *given, content=content)
        run, outputs = self._regions.prepare_open(region)(HeapScratch()), [self._x]
        require(run.attempt([None, *given], outputs), "a run was interrupted")
        found = [each.tolist() for each in outputs]
        require(found == [self._right.tolist()], "wrong results of its own memory")

    def _refuse(self) -> None:
        wrong = self._region(
            _SIDE, content=chain(2, _SIDE).replace(b"MatMul", b"MutMal")
        )
        try:
            self._regions.prepare(wrong)
        except AsyncnnError as error:
            require("MutMal" in str(error), f"it says {error}")
        else:
            require(False, "an operator that there is not is taken")


def main(library: str, version: str) -> int:
    """Run the test; see `trying`."""
    given = version.partition(" ")[2] or "null"
    provider = msgspec.json.decode(given, type=ExecutionProvider | None)
    return trying(
        lambda: _RuntimeTrial(Path(library), provider).run(), CApiUnavailableError
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
