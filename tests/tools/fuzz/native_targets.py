"""What feeds modules in C that `asyncnn fuzz` has no target for; see native.py.

Bytes are a script, as those of `asyncnn.tools.fuzz.driver_calls`: calls with arbitrary
numbers, lengths, objects and orders, from within one another as well.
"""

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from typing import Any

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import AlreadyNotifiedError
from asyncnn.hal.types import OperandType
from asyncnn.runtime.model import TensorInfo
from asyncnn.runtime.requests import InputCheck, OutputSpace
from asyncnn.tools.fuzz.driver_calls import CallScript, EndError
from asyncnn.tools.fuzz.targets import FuzzTarget, Try
from asyncnn.tools.fuzz.twins import same
from asyncnn.turn import End, Waiter, in_this_turn
from tests.runtime.test_usual_arrays import Emptying
from tests.tools.fuzz.job_scripts import play, play_on_lanes

_MOST_STEPS = 80
_TYPES = (
    *(OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32, OperandType.TENSOR_BOOL8),
    *(OperandType.TENSOR_FLOAT16, OperandType.TENSOR_QUANT8_ASYMM),
)


def take_arrays(data: bytes) -> None:
    """Take what is given for inputs in C and in Python."""
    script = CallScript(data)
    with suppress(EndError):
        check = InputCheck([_info(script, f"x{n}") for n in range(script.byte() % 4)])
        space = OutputSpace([_info(script, f"y{n}") for n in range(script.byte() % 3)])
        take = space.taker(check)
        for _ in range(_MOST_STEPS if take else 0):
            values = _values(script, check)
            taken, usual = take(values), _usual(check, values)
            if type(values) is not tuple:  # which the other has in order first
                same("usual", taken is None, usual is None)
            if taken and usual:
                same("arrays", [*map(id, taken[0][: len(usual)])], [*map(id, usual)])
                same("made", len(taken[0]) - len(usual), len(space.infos))


def _info(script: CallScript, name: str) -> TensorInfo:
    shape = script.some(lambda: 1 + script.byte() % 4)
    return TensorInfo(name, script.one(_TYPES), shape)


def _usual(check: InputCheck, values: Any) -> Sequence[Any] | None:
    try:
        return check.usual(values)
    except InvalidArgumentError:
        return None


def _values(script: CallScript, check: InputCheck) -> Any:
    arrays = [_array(script, info) for info in check.infos]
    arrays += script.some(lambda: None, 1)
    del arrays[script.byte() % 8 :]
    names = [*check.names, "other"]
    if script.byte() > 200:
        names.reverse()
    match script.byte() % 5:
        case 0:
            return dict(zip(names, arrays, strict=False))
        case 1:
            return tuple(arrays)
        case 2:
            return arrays[0] if arrays else None
        case 3 if script.byte() > 250:
            Emptying(arrays)
            gc.collect()
    return arrays


def _array(script: CallScript, info: TensorInfo) -> Any:
    right = np.ones(info.dimensions, info.dtype)
    match script.byte() % 16:
        case 0:
            return right.astype(script.one("?bhifdF"))
        case 1:
            return np.ones(script.some(lambda: script.byte() % 5), info.dtype)
        case 2:
            return np.repeat(right, 2, axis=-1)[..., ::2] if right.ndim else None
        case 3:
            odd = np.zeros(right.nbytes + 1, np.uint8)[1:]
            return odd.view(info.dtype).reshape(right.shape)
        case 4:
            return right.view(np.matrix) if right.ndim == 2 else right.tolist()
        case 5:
            right.flags.writeable = False
    return right


class FuzzedEnd(End):
    """An end that is awaited on any loop."""

    __slots__ = ("left",)

    def _leave(self, waiter: Waiter) -> None:
        self.left = waiter


class _Turns:
    """Takes steps of ends, waiters and the tasks that await them."""

    answers = (
        *(RuntimeError, TypeError, ValueError, StopIteration, AttributeError),
        *(AlreadyNotifiedError, asyncio.CancelledError),
    )

    def __init__(self, script: CallScript) -> None:
        self._script = script
        self._ends: list[Any] = [FuzzedEnd()]
        self._waiters: list[Any] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._left = _MOST_STEPS

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        while self._left:
            try:
                self.step()
            except EndError:
                break
            if not self._left % 4:
                loop.call_soon(in_this_turn, self._within)
                await asyncio.sleep(0)
        self._left = 0
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _within(self, *_: object) -> None:
        with suppress(EndError):
            self.step()

    def step(self) -> None:
        """Take one step, as long as some are left."""
        if not self._left:
            return
        self._left -= 1
        script, end = self._script, self._script.one(self._ends)
        waiter = script.one(self._waiters or [None])
        value = script.one((None, 0, self, ValueError("thrown")))
        steps: tuple[Callable[[], object], ...] = (
            lambda: self._ends.append(FuzzedEnd()),
            lambda: self._waiters.append(end.__await__()),
            lambda: next(waiter),
            lambda: waiter.send(value),
            lambda: waiter.throw(value),
            lambda: waiter.throw(asyncio.CancelledError, value),
            lambda: waiter.add_done_callback(self._within),
            lambda: waiter.add_done_callback(self._within, context=copy_context()),
            lambda: waiter.cancel(value),
            lambda: waiter.result(),
            lambda: (waiter.done(), waiter.get_loop(), iter(waiter)),
            lambda: end._wake(value),
            lambda: end._resolve(value),
            lambda: setattr(end, "_result", value),
            lambda: setattr(end, "_waiting", None),
            lambda: self._tasks.append(asyncio.ensure_future(_awaited(end))),
            lambda: script.one(self._tasks or [None]).cancel(),
            lambda: in_this_turn(self._within),
            lambda: setattr(waiter, "_asyncio_future_blocking", script.byte() > 99),
            lambda: self._waiters.remove(waiter),
            lambda: len(self._ends) > 1 and self._ends.remove(end),
            lambda: script.byte() > 240 and gc.collect(),
        )
        with suppress(*self.answers):
            script.one(steps)()


async def _awaited(end: Any) -> object:
    return await end


@contextmanager
def _turns(_: str) -> Iterator[Try]:
    with asyncio.Runner() as runner:
        yield lambda data: runner.run(_Turns(CallScript(data)).play())


def _always(function: Try) -> Callable[[str], AbstractContextManager[Try]]:
    return lambda _: nullcontext(function)


def _scripts() -> Iterable[bytes]:
    return [bytes(range(256)), bytes(range(255, -1, -1)), bytes(64)]


_LANES = FuzzTarget("jobs on lanes", _scripts, _always(play_on_lanes), ())
TARGETS = {
    "arrays": FuzzTarget("arrays of runs", _scripts, _always(take_arrays)),
    "turn": FuzzTarget("ends that tasks await", _scripts, _turns, ()),
    "job": FuzzTarget("segments, jobs and runs", _scripts, _always(play), ()),
    "lanes": _LANES,
    "threads": _LANES,
}
"""By the names of native.py."""
