"""The judge of conformance finds what is wrong: it is shown devices that err."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import FencedOutcome, IExecutionCallback, IPreparedModelCallback
from asyncnn.devices import ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IPreparedModel, ISyncFence
from asyncnn.hal.types import (
    ErrorStatus,
    HalVersion,
    MeasureTiming,
    Memory,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.tools.conformance.executing import REFUSES_OPEN_OUTPUTS
from asyncnn.tools.conformance.judging import RefusedError, judge
from asyncnn.tools.conformance.preparing import preparing
from asyncnn.tools.conformance.vectors import Case, load_cases

Answer = tuple[ErrorStatus, tuple[OutputShape, ...], Timing]
Err = Callable[[Request, Answer], Answer]


CARRIED = frozenset({"async", "sync", "fenced"})
"""The ways of executing on which an `ErringModel` errs."""


class ErringModel:
    """A prepared model whose answers are falsified on their way."""

    def __init__(self, model: IPreparedModel, err: Err) -> None:
        self._model = model
        self._err = err

    async def execute_synchronously_1_3(self, request: Request, *rest: Any) -> Answer:
        answer = await self._model.execute_synchronously_1_3(request, *rest)
        return self._err(request, answer)

    def execute_1_3(self, request: Request, *rest: Any) -> ErrorStatus:
        *settings, callback = rest
        assert isinstance(callback, IExecutionCallback)

        async def run() -> None:
            answer = await self.execute_synchronously_1_3(request, *settings)
            callback.notify_1_3(*answer)

        self._task = asyncio.ensure_future(run())
        return ErrorStatus.NONE

    def execute_fenced(
        self, request: Request, wait_for: Any, *rest: Any
    ) -> tuple[ErrorStatus, ISyncFence | None, FencedOutcome | None]:
        """Answer as honestly as the rest, with fences that fit the falsified status."""
        status, fence, callback = self._model.execute_fenced(request, wait_for, *rest)
        if callback is None:
            status, _, _ = self._err(request, (status, (), Timing()))
            return status, None, None
        told, source = SyncFence.pair()
        outcome = FencedOutcome()

        async def run() -> None:
            with suppress(AsyncnnError):
                await fence
            status, timing, _ = callback.get_execution_info()
            status, _, timing = self._err(request, (status, (), timing))
            outcome.complete(status, timing, timing)
            if status is ErrorStatus.NONE:
                source.signal()
            else:
                source.fail(status)

        self._task = asyncio.ensure_future(run())
        return ErrorStatus.NONE, told, outcome


class ErringDevice:
    def __init__(self, device: ReferenceDevice, err: Err | None) -> None:
        self._device = device
        self._err = err

    def prepare_model_1_3(self, *arguments: Any) -> ErrorStatus:
        *rest, callback = arguments
        if self._err is None:
            callback.notify_1_3(ErrorStatus.GENERAL_FAILURE, None)
            return ErrorStatus.NONE
        return self._device.prepare_model_1_3(*rest, _Wrapping(callback, self._err))


class _Wrapping(IPreparedModelCallback):
    def __init__(self, callback: IPreparedModelCallback, err: Err) -> None:
        super().__init__()
        self._callback = callback
        self._err = err

    def notify_1_3(self, status: ErrorStatus, prepared_model: Any) -> None:
        wrapped = prepared_model and ErringModel(prepared_model, self._err)
        self._callback.notify_1_3(status, wrapped)


def honest(request: Request, answer: Answer) -> Answer:
    return answer


def wrong_values(request: Request, answer: Answer) -> Answer:
    pool = request.pools[1]
    assert isinstance(pool, Memory)
    assert pool.buffer is not None
    np.frombuffer(pool.buffer, np.uint8)[:4] ^= 0x7F
    return answer


def wrong_shape(request: Request, answer: Answer) -> Answer:
    status, shapes, timing = answer
    first = replace(shapes[0], dimensions=(1, *shapes[0].dimensions))
    return status, (first, *shapes[1:]), timing


def too_many_shapes(request: Request, answer: Answer) -> Answer:
    status, shapes, timing = answer
    return status, (*shapes, *shapes), timing


def failure(request: Request, answer: Answer) -> Answer:
    return ErrorStatus.GENERAL_FAILURE, (), answer[2]


def uncalled_for_timing(request: Request, answer: Answer) -> Answer:
    return answer[0], answer[1], Timing(1, 2)


def impossible_timing(request: Request, answer: Answer) -> Answer:
    timing = answer[2]
    if timing != Timing():
        timing = Timing(timing.time_in_driver + 1, timing.time_in_driver)
    return answer[0], answer[1], timing


def never_short(request: Request, answer: Answer) -> Answer:
    status, shapes, timing = answer
    if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        return ErrorStatus.NONE, shapes, timing
    return answer


def never_refusing(request: Request, answer: Answer) -> Answer:
    status, shapes, timing = answer
    if status is ErrorStatus.INVALID_ARGUMENT:
        return ErrorStatus.NONE, shapes, timing
    return answer


def short_without_shape(request: Request, answer: Answer) -> Answer:
    status, shapes, timing = answer
    if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        return status, (replace(shapes[0], dimensions=(0,)),), timing
    return answer


def short_but_sufficient(request: Request, answer: Answer) -> Answer:
    status, shapes, timing = answer
    if status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
        return status, (replace(shapes[0], is_sufficient=True),), timing
    return answer


@pytest.fixture(scope="module")
def add(shared: Path) -> Case:
    return load_cases(shared / "vts" / "V1_0" / "add.json.gz")[0]


@pytest.fixture(scope="module")
def endless(shared: Path) -> Case:
    specs = (shared / "vts").rglob("while_infinite_loop.json.gz")
    (case, *_) = [case for path in specs for case in load_cases(path)]
    assert case.expect_failure
    return case


async def judged(case: Case, err: Err | None, path: str = "sync") -> list[str]:
    async with ReferenceDevice() as device:
        erring = ErringDevice(device, err)
        prepare = preparing(erring, HalVersion.V1_3)  # type: ignore[arg-type]
        return await judge(case, prepare, path)


@pytest.mark.parametrize("path", sorted(CARRIED))
async def test_right_answers_pass(add: Case, path: str) -> None:
    assert await judged(add, honest, path) == []


WRONG_ON_EVERY_PATH = [
    (wrong_values, "elements differ"),
    (failure, "GENERAL_FAILURE"),
    (uncalled_for_timing, "not asked for"),
    (impossible_timing, "exceeds"),
]


@pytest.mark.parametrize("path", sorted(REFUSES_OPEN_OUTPUTS))
@pytest.mark.parametrize(
    ("err", "problem"), [*WRONG_ON_EVERY_PATH, (never_refusing, "open outputs: NONE")]
)
async def test_wrong_answers_without_shapes_fail(
    add: Case, path: str, err: Err, problem: str
) -> None:
    problems = await judged(add, err, path)
    assert any(problem in line for line in problems)


@pytest.mark.parametrize("path", sorted(CARRIED - REFUSES_OPEN_OUTPUTS))
@pytest.mark.parametrize(
    ("err", "problem"),
    [
        *WRONG_ON_EVERY_PATH,
        (wrong_shape, "shape is"),
        (too_many_shapes, "2 output shapes"),
        (never_short, "short output: NONE"),
        (short_without_shape, "short output: shapes"),
        (short_but_sufficient, "short output: is_sufficient"),
    ],
)
async def test_wrong_answers_fail(add: Case, path: str, err: Err, problem: str) -> None:
    problems = await judged(add, err, path)
    assert problems
    assert any(problem in line for line in problems)


async def test_a_model_that_is_not_taken_is_refused(add: Case) -> None:
    with pytest.raises(RefusedError, match="GENERAL_FAILURE"):
        await judged(add, None)


class TestExpectedFailure:
    @pytest.mark.parametrize("path", sorted(CARRIED))
    async def test_missing_the_deadline_passes(self, endless: Case, path: str) -> None:
        assert await judged(endless, honest, path) == []

    async def test_refusing_passes(self, endless: Case) -> None:
        assert await judged(endless, None) == []

    @pytest.mark.parametrize(
        ("answer", "problem"),
        [
            ((ErrorStatus.NONE, (), Timing()), "expected to fail"),
            ((ErrorStatus.GENERAL_FAILURE, (), Timing()), "where a deadline"),
            (
                (
                    ErrorStatus.MISSED_DEADLINE_TRANSIENT,
                    (OutputShape((1,), True),),
                    Timing(),
                ),
                "reports shapes",
            ),
        ],
    )
    async def test_anything_else_fails(
        self, endless: Case, answer: Answer, problem: str
    ) -> None:
        (line,) = await judged(endless, lambda *_: answer)
        assert problem in line


def test_measuring_is_part_of_every_case() -> None:
    assert set(MeasureTiming) == {MeasureTiming.NO, MeasureTiming.YES}
