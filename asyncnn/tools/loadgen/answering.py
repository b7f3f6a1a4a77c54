"""What answers LoadGen: from any thread, in batches, with data where that is judged."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array


class Answers:
    """Answers queries of one run of LoadGen, each exactly once. Thread-safe.

    Up to ``held`` answers are given together: where a scenario judges single answers,
    that is 1, and each is given at once. With ``keeps_data`` LoadGen gets the bytes of
    the outputs, which it writes to its accuracy log.

    Once it ``is_stopped``, queries are answered without being executed: LoadGen has no
    other way to end a run early.
    """

    def __init__(
        self, loadgen: Any, held: int = 1, *, keeps_data: bool = False
    ) -> None:
        self._complete: Callable[[Sequence[Any]], None] = loadgen.QuerySamplesComplete
        self._response = loadgen.QuerySampleResponse
        self._held = held
        self._keeps_data = keeps_data
        self._lock = threading.Lock()
        self._batch: list[Any] = []
        self._expected = 0
        self.is_stopped = False
        self.failure: BaseException | None = None

    def expect(self, count: int) -> None:
        """Note that as many queries have come."""
        if self._held > 1:
            with self._lock:
                self._expected += count

    def give(self, query: int, outputs: Sequence[Array]) -> None:
        """Answer the query of that id."""
        if self._keeps_data:
            data = np.frombuffer(b"".join(map(_bytes_of, outputs)), np.uint8)
            # LoadGen copies the bytes before it returns.
            response = self._response(query, data.ctypes.data, data.nbytes)
            self._complete([response])
            return
        response = self._response(query, 0, 0)
        if self._held == 1:
            self._complete([response])
            return
        with self._lock:
            batch = self._batch
            batch.append(response)
            self._expected -= 1
            if len(batch) < self._held and self._expected:
                return
            self._batch = []
        self._complete(batch)

    def fail(self, query: int, error: BaseException) -> None:
        """Answer a query whose execution has failed; the run stops with its error."""
        if self.failure is None:
            self.failure = error
        self.is_stopped = True
        self.give(query, ())


def _bytes_of(array: Array) -> bytes:
    return np.ascontiguousarray(array).tobytes()
