"""The load that ``asyncnn bench qos`` and others run, and what stops it."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from statistics import median
from typing import Any, TypeAlias

import numpy as np

import asyncnn
from asyncnn import hal
from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.workspace import BoundPlan
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Pause, Scheduler, Work
from asyncnn.qos.alarms import Alarms
from asyncnn.tools.bench.made_models import Layers
from asyncnn.tools.bench.processes import READY, Pipe
from asyncnn.tools.bench.rounds import percentile

Run: TypeAlias = Callable[[], Awaitable[object]]
"""Executes a model once."""

RunUntil: TypeAlias = Callable[[float], Coroutine[Any, Any, bool]]
"""Executes a model within so many seconds; returns whether it ended in time."""

_SEED = 1
_TIMED_RUNS = 20
_STOPPED_RUNS = 40
_SERVED_US = 200_000.0
_LEAST_REQUESTS = 4


def direct(program: Program, x: Array) -> Callable[[], bool]:
    """Return a function that executes ``program`` in the calling thread."""
    plan = program.plan((x.shape,))
    return lambda: PlanExecution(program, plan, [x], [None]).advance()


def longest_step_us(program: Program, inputs: Sequence[Array]) -> float:
    """Return the median time of the longest step of ``program``.

    :raises InvalidArgumentError: if only an execution prepares one of its steps.
    """
    plan = program.plan(tuple(array.shape for array in inputs))
    bound = BoundPlan(program.acquire(plan), inputs, [None] * len(plan.outputs))
    samples: dict[int, list[int]] = defaultdict(list)
    for _ in range(_TIMED_RUNS):
        for position, call in enumerate(bound.calls):
            if call is None:
                raise InvalidArgumentError(f"{plan.steps[position].name} is dynamic")
            run, given, results = call
            started = time.perf_counter_ns()
            run(given, results)
            samples[position].append(time.perf_counter_ns() - started)
    program.release(bound.workspace)
    return max(median(each) for each in samples.values()) / 1000


@contextmanager
def fifo_pool() -> Iterator[Callable[[Layers], Run]]:
    """Have what one would write without a driver: one thread, first come, first served.

    Yields what returns the execution of a model on the thread.
    """
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:

        def run(model: Layers) -> Run:
            call = direct(Program(model.build().model), model.input())
            return lambda: loop.run_in_executor(pool, call)

        yield run


@asynccontextmanager
async def saturated(run: Run, depth: int) -> AsyncIterator[None]:
    """Keep ``depth`` executions pending inside the block."""

    async def repeat() -> None:
        while not is_over:
            await run()

    is_over = False
    async with asyncio.TaskGroup() as tasks:
        for _ in range(depth):
            tasks.create_task(repeat())
        await run()
        try:
            yield
        finally:
            is_over = True


async def detect(pipe: Pipe, path: str, model: Layers, depth: int) -> None:
    """Be another client of a driver, with LOW runs from one message to the next.

    Each message is answered once these are under way, or have ended.
    """
    async with asyncnn.connect(path) as device:
        prepared = await device.prepare(model.build(), priority=hal.Priority.LOW)
        run = partial(prepared.run, [model.input()])
        pipe.send_bytes(READY)
        while True:
            await asyncio.to_thread(pipe.recv_bytes)
            async with saturated(run, depth):
                pipe.send_bytes(READY)
                await asyncio.to_thread(pipe.recv_bytes)
            pipe.send_bytes(READY)


@asynccontextmanager
async def detecting(pipe: Pipe) -> AsyncIterator[None]:
    """Have the process that `detect` is in keep its driver busy inside the block."""

    async def answered() -> None:
        pipe.send_bytes(READY)
        await asyncio.to_thread(pipe.recv_bytes)

    await answered()
    try:
        yield
    finally:
        await answered()


async def latencies_us(run: Run, count: int, pause_s: float) -> list[float]:
    """Time single executions, with pauses of random lengths about ``pause_s``."""
    rng = random.Random(_SEED)
    samples = []
    for _ in range(count):
        await asyncio.sleep(rng.uniform(0.5, 1.5) * pause_s)
        started = time.perf_counter_ns()
        await run()
        samples.append((time.perf_counter_ns() - started) / 1000)
    return samples


async def p99_us(run: Run, count: int, pause_s: float) -> float:
    """Return the 99th percentile of these."""
    return percentile(await latencies_us(run, count, pause_s), 0.99)


def within(run: Callable[[float], Awaitable[object]]) -> RunUntil:
    """Return the `RunUntil` of a run that takes a timeout and raises what is missed."""

    async def call(budget_s: float) -> bool:
        started = time.perf_counter()
        is_in_time = await _is_in_time(run(budget_s))
        return is_in_time and time.perf_counter() - started <= budget_s

    return call


async def share_missed(
    run: RunUntil, service_s: float, load: float, count: int, seed: int
) -> float:
    """Return the share of deadlines that are missed under an offered load.

    Requests arrive independently of each other and of their ends; a request's
    deadline is 2 to 30 times the service time away.
    """
    rng = random.Random(seed)
    due = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        running = []
        for _ in range(count):
            due += rng.expovariate(load / service_s)
            delay = due - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            budget_s = rng.uniform(2, 30) * service_s
            running.append(tasks.create_task(run(budget_s)))
    return 1 - sum(task.result() for task in running) / count


async def request_us(run: Run, concurrency: int, alone_us: float) -> float:
    """Return microseconds for each request while so many tasks repeat theirs.

    ``alone_us`` is about what a run takes.
    """
    wanted = int(_SERVED_US / max(alone_us, 1.0))
    each = max(wanted // concurrency, _LEAST_REQUESTS)

    async def client() -> None:
        for _ in range(each):
            await run()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(client())
    return (time.perf_counter() - started) * 1e6 / (each * concurrency)


def _now() -> Array:
    """Return the clock of `time.monotonic`, and processor seconds of the process."""
    return np.array([time.monotonic(), time.process_time()])


async def freed_us(
    stop: Callable[[float, Run], Awaitable[Array | None]], probe: Run, run_s: float
) -> tuple[float, float]:
    """Stop runs at random moments; return how long the lane goes on, 95th percentile.

    As time that passes, and as processor time of this process: a busy machine makes the
    former longer. ``stop`` begins a run and stops it after so many seconds. It returns
    both times from then until the probe had ended that waited behind it, or None if
    the run had ended before. ``probe`` runs a model that costs nothing on the same
    lane; what it takes there behind another probe is subtracted.
    """
    rng = random.Random(_SEED)
    free = [await _behind_another(probe) for _ in range(_TIMED_RUNS)]
    taken = [np.zeros(2)]
    for _ in range(_STOPPED_RUNS):
        spent = await stop(rng.uniform(0.1, 0.8) * run_s, probe)
        if spent is not None:
            taken.append(spent)
    passed_us, processor_us = (
        max((percentile(each, 0.95) - float(median(alone))) * 1e6, 0.0)
        for each, alone in zip(np.transpose(taken), np.transpose(free), strict=True)
    )
    return passed_us, processor_us


async def _behind_another(run: Run) -> Array:
    """Return what passes from the end of a run to the next one's, which waited."""
    first, second = (asyncio.ensure_future(_ended(run)) for _ in range(2))
    spent: Array = await second - await first
    return spent


async def _ended(run: Run) -> Array:
    await run()
    return _now()


async def cancelled(
    prepared: asyncnn.PreparedModel, inputs: Sequence[Array], after_s: float, probe: Run
) -> Array | None:
    """Begin a run and cancel it after so many seconds; see `freed_us`."""
    task = asyncio.create_task(_is_in_time(prepared.run(inputs)))
    await asyncio.sleep(after_s)
    waiting = asyncio.create_task(_ended(probe))
    await asyncio.sleep(0)  # it is submitted
    stopped = _now()
    is_stopped = task.cancel()
    spent: Array = await waiting - stopped
    return spent if is_stopped else None


async def out_of_time(
    prepared: asyncnn.PreparedModel, inputs: Sequence[Array], after_s: float, probe: Run
) -> Array | None:
    """Begin a run that has so many seconds until its deadline; see `freed_us`."""
    moments: list[Array] = []
    due_ns = time.monotonic_ns() + int(after_s * 1e9)
    alarms = Alarms(asyncio.get_running_loop())
    alarms.call_at(due_ns, lambda: moments.append(_now()))
    running = _is_in_time(prepared.run(inputs, timeout=after_s))
    task = asyncio.create_task(running)
    await asyncio.sleep(0)  # it is submitted
    ended = await _ended(probe)
    alarms.close()
    if await task:
        return None
    # The alarm may be late itself; the clocks are the same one.
    _, processor_s = moments[0] if moments else ended
    spent: Array = ended - np.array([due_ns * 1e-9, processor_s])
    return spent


async def _is_in_time(running: Awaitable[object]) -> bool:
    try:
        await running
    except (hal.MissedDeadlineTransientError, hal.MissedDeadlinePersistentError):
        return False
    return True


class _PlanWork(Work):
    """An execution of a plan without a request."""

    def __init__(self, execution: PlanExecution, ended: Callable[[], None]) -> None:
        super().__init__(Priority.MEDIUM)
        self._execution = execution
        self._ended = ended

    def advance(self, pause: Pause) -> bool:
        return self._execution.advance(pause)

    def abort(self, status: ErrorStatus) -> None:
        self._execution.abort(status)

    def finish(self) -> ErrorStatus:
        self._ended()
        return ErrorStatus.NONE


async def run_scheduled(
    scheduler: Scheduler, make: Callable[[], PlanExecution], count: int
) -> None:
    """Schedule so many executions of plans, all pending, and wait for them."""
    is_over = asyncio.get_running_loop().create_future()
    left = count

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            is_over.set_result(None)

    for _ in range(count):
        scheduler.submit(_PlanWork(make(), ended))
    await is_over
