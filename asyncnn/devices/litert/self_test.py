"""Whether LiteRT's C API can be trusted here: tried in a process of its own.

A function whose arguments have changed since the release that asyncnn was written for
ends a process by a signal, or never returns. What is kept of the test is how fast it
has computed, too; see `asyncnn.devices.engine_verdicts`. It is ``python -m
asyncnn.devices.litert.self_test LIBRARY VERSION``.
"""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from asyncnn.devices.compiled_graph import Array, CApiUnavailableError, CompiledGraph
from asyncnn.devices.engine_verdicts import TrialError, Tried, require, trying
from asyncnn.devices.litert.c_api_engine import CApiEngine
from asyncnn.devices.litert.weights import PackedWeights, weights_key
from asyncnn.engine.costs import USUAL, Speeds
from asyncnn.memory.pages import aligned_bytes
from asyncnn.offload import start_thread

_REPETITIONS = 100
_OFFSETS_BYTES = (0, 4, 16, 64)
_MOST_INTERRUPTIONS = 500
_LATER_S, _MOMENTS = 50e-6, 50

LITERT = Tried("litert", "LiteRT's C API", "asyncnn.devices.litert.self_test", 4)


def reason_against(
    library: Path, version: str, *, command: Sequence[str] | None = None
) -> str:
    """Return why the library must not be used, or nothing if it may be.

    :raises OSError: as `Tried.reason_against`.
    """
    return LITERT.reason_against(library, version, command=command)


def speeds_of(library: Path, version: str) -> Speeds:
    """Return how fast a library was measured to be, usual speeds if that is not kept.

    :raises OSError: if there is no such library.
    """
    try:
        return msgspec.json.decode(LITERT.report_of(library, version), type=Speeds)
    except msgspec.DecodeError:  # it has not come to measuring
        return USUAL


class _Trial:
    """The test itself, in a process that it may end.

    :raises TrialError: if something is not as it should be.
    :raises CApiUnavailableError: if the library cannot even be loaded.
    """

    def __init__(self, library: Path, version: str) -> None:
        # What asks for the verdict has no use for it, and it takes long to import.
        from asyncnn.devices.litert.chain_model import Chain

        self._engine = CApiEngine(library, version)
        # Its arrays are so large that they are used in place, where one can look.
        self._chain = Chain(links=24, rows=80, width=128)
        self._model = self._chain.model()
        self._x = np.random.default_rng(0).integers(-8, 9, (80, 128)).astype(np.float32)
        self._early, self._late = self._chain.expected(self._x)

    def run(self) -> None:
        """Compile, run, interrupt and close graphs."""
        graph = self._engine.compile(self._model)
        for offset in _OFFSETS_BYTES:
            self._try_alignment(graph, offset)
        self._interrupt_before(graph)
        self._interrupt_within(graph)
        graph.close()
        weights = PackedWeights(weights_key(self._model, self._engine.version))
        for number in range(_REPETITIONS):
            again = self._engine.compile(
                self._model, weights=weights if number % 2 else None
            )
            self._compare(again, self._x)
            again.close()

    def speeds(self) -> Speeds:
        """Return how fast it computes."""
        from asyncnn.devices.litert.speed_trials import measured_speeds

        return measured_speeds(self._engine)

    def _outputs(self, offset: int = 0) -> list[Array]:
        made = []
        for like in (self._early, self._late):
            memory = aligned_bytes(like.nbytes + offset)[offset:].view(np.float32)
            memory[:] = np.nan
            made.append(memory.reshape(like.shape))
        return made

    def _compare(self, graph: CompiledGraph, x: Array, offset: int = 0) -> None:
        outputs = self._outputs(offset)
        require(graph.run([x], outputs), "a run says that it was interrupted")
        for found, right in zip(outputs, (self._early, self._late), strict=True):
            require(np.array_equal(found, right), f"wrong results at offset {offset}")

    def _try_alignment(self, graph: CompiledGraph, offset: int) -> None:
        memory = aligned_bytes(self._x.nbytes + offset)[offset:].view(np.float32)
        x = memory.reshape(self._x.shape)
        x[...] = self._x
        x.flags.writeable = False
        for _ in range(3):
            self._compare(graph, x, offset)

    def _interrupt_before(self, graph: CompiledGraph) -> None:
        graph.interrupt()
        ended = graph.run([self._x], self._outputs())
        require(not ended, "an interrupt has no effect")
        graph.clear_interrupt()
        self._compare(graph, self._x)

    def _interrupt_within(self, graph: CompiledGraph) -> None:
        """Interrupt until a run has come to its first output, but not to its last.

        Whoever sleeps gets the CPU in time, even if there is no other for the run.
        """
        for number in range(_MOST_INTERRUPTIONS):
            outputs = self._outputs()
            thread = threading.Thread(target=graph.run, args=([self._x], outputs))
            start_thread(thread)
            time.sleep(_LATER_S * (number % _MOMENTS))
            graph.interrupt()
            thread.join()
            graph.clear_interrupt()
            early, late = (np.isnan(each) for each in outputs)
            if late.all() and not early.any():
                self._compare(graph, self._x)
                return
        raise TrialError("an interrupt has no effect within a run")


def main(library: str, version: str) -> int:
    """Run the test; see `trying`. After a success, speeds are the last line written."""

    def run() -> str:
        trial = _Trial(Path(library), version)
        trial.run()
        return msgspec.json.encode(trial.speeds()).decode()

    return trying(run, CApiUnavailableError)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
