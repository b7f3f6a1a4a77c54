"""Ways from LoadGen's thread to an execution and back.

A system takes queries on LoadGen's thread. `ThreadsafeSystem` hands them to the lanes
of a device, `LoopSystem` to tasks of the event loop, `ThreadsSystem` to threads;
`BlockingSystem` executes at once. `Answers` go back from any thread, in batches, with
data where that is judged.
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.offload import start_thread
from asyncnn.runtime.reusable import ReusableExecution
from asyncnn.tools.loadgen.library import Library


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


Execute: TypeAlias = Callable[[int], Sequence[Array]]
"""Executes the sample of a number; outputs stay as they are until the next one."""

AwaitExecute: TypeAlias = Callable[[int], Awaitable[Sequence[Array]]]


class System(ABC):
    """A system under test: executes queries, and reports each to `Answers`."""

    _answers: Answers

    def begin(self, answers: Answers) -> None:
        """Answer all queries from here on there."""
        self._answers = answers

    @abstractmethod
    def issue(self, queries: Sequence[Any]) -> None:
        """Take queries, on LoadGen's thread; ``id`` and ``index`` are theirs."""


class BlockingSystem(System):
    """LoadGen's own thread executes, and answers."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def issue(self, queries: Sequence[Any]) -> None:
        """See `System`."""
        answers = self._answers
        answers.expect(len(queries))
        for query in queries:
            execute_and_answer(self._execute, query, answers)


def execute_and_answer(execute: Execute, query: Any, answers: Answers) -> None:
    """Execute a query on this thread, and answer it."""
    outputs: Sequence[Array] = ()
    try:
        if not answers.is_stopped:
            outputs = execute(query.index)
    except Exception as error:
        answers.fail(query.id, error)
    else:
        answers.give(query.id, outputs)


async def await_and_answer(execute: AwaitExecute, query: Any, answers: Answers) -> None:
    """Await the execution of a query, and answer it."""
    outputs: Sequence[Array] = ()
    try:
        if not answers.is_stopped:
            outputs = await execute(query.index)
    except Exception as error:
        answers.fail(query.id, error)
    else:
        answers.give(query.id, outputs)


class ThreadsSystem(System):
    """Threads take queries from one queue: no event loop has a part in it."""

    def __init__(self, executes: Sequence[Execute]) -> None:
        self._executes = executes
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def issue(self, queries: Sequence[Any]) -> None:
        """See `System`."""
        self._answers.expect(len(queries))
        for query in queries:
            self._queue.put(query)

    def _serve(self, execute: Execute) -> None:
        while (query := self._queue.get()) is not None:
            execute_and_answer(execute, query, self._answers)

    @contextmanager
    def serving(self) -> Iterator["ThreadsSystem"]:
        """Have the threads for the length of a ``with`` block."""
        threads = [
            threading.Thread(target=self._serve, args=(execute,), daemon=True)
            for execute in self._executes
        ]
        for thread in threads:
            start_thread(thread)
        try:
            yield self
        finally:
            for _ in threads:
                self._queue.put(None)
            for thread in threads:
                thread.join()


class SampleSlot(NamedTuple):
    """An execution of each sample, all of which write to the same ``outputs``."""

    executions: Sequence[ReusableExecution]
    outputs: Sequence[Array]


class ThreadsafeSystem(System):
    """LoadGen's thread launches executions itself; the lanes answer.

    What does not fit into the slots waits here, and is launched by the lane that has
    ended another one.
    """

    def __init__(self, slots: Sequence[SampleSlot]) -> None:
        self._lock = threading.Lock()
        self._free = list(slots)
        self._waiting: deque[Any] = deque()

    def issue(self, queries: Sequence[Any]) -> None:
        """See `System`."""
        self._answers.expect(len(queries))
        for query in queries:
            with self._lock:
                if not self._free:
                    self._waiting.append(query)
                    continue
                slot = self._free.pop()
            self._launch(slot, query)

    def _launch(self, slot: SampleSlot, query: Any) -> None:
        answers = self._answers
        while query is not None:
            if answers.is_stopped:
                answers.give(query.id, ())
            else:
                execution = slot.executions[query.index]
                try:
                    execution.launch_threadsafe(partial(self._ended, slot, query.id))
                except AsyncnnError as error:
                    answers.fail(query.id, error)
                else:
                    return
            query = self._following(slot)

    def _ended(self, slot: SampleSlot, query: int, error: AsyncnnError | None) -> None:
        if error is None:
            self._answers.give(query, slot.outputs)
        else:
            self._answers.fail(query, error)
        following = self._following(slot)
        if following is not None:
            self._launch(slot, following)

    def _following(self, slot: SampleSlot) -> Any:
        """Return the query that the slot is for now; None if it is free."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._free.append(slot)
            return None


class LoopSystem(System):
    """LoadGen's thread hands queries to the event loop, where tasks await executions.

    The loop is woken once for all queries that come before it looks. There is a task
    for each of ``executes``, which takes one query after the other.
    """

    def __init__(self, executes: Sequence[AwaitExecute]) -> None:
        self._loop = asyncio.get_running_loop()
        self._executes = executes
        self._waiting: deque[Any] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._is_announced = False

    def issue(self, queries: Sequence[Any]) -> None:
        """See `System`."""
        self._answers.expect(len(queries))
        self._waiting.extend(queries)
        if not self._is_announced:
            self._is_announced = True
            self._loop.call_soon_threadsafe(self._arrived)

    def _arrived(self) -> None:
        # First, so that what comes from here on is announced again.
        self._is_announced = False
        for _ in range(min(len(self._waiting), len(self._idle))):
            future = self._idle.pop()
            if not future.done():  # its task was not cancelled
                future.set_result(None)

    async def _serve(self, execute: AwaitExecute) -> None:
        waiting = self._waiting
        while True:
            if not waiting:
                future = self._loop.create_future()
                self._idle.append(future)
                await future
                continue
            await await_and_answer(execute, waiting.popleft(), self._answers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["LoopSystem"]:
        """Serve for the length of an ``async with`` block."""
        tasks = [
            self._loop.create_task(self._serve(execute)) for execute in self._executes
        ]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def slots_of(
    make: Callable[..., ReusableExecution], library: Library, count: int
) -> list[SampleSlot]:
    """Return slots of executions that ``make`` makes, as `PreparedModel.reusable`."""
    slots = []
    for _ in range(count):
        first = make(list(library.inputs[0]))
        outputs = [first.output(k) for k in range(library.output_count)]
        others = [make(list(each), out=outputs) for each in library.inputs[1:]]
        slots.append(SampleSlot((first, *others), outputs))
    return slots
