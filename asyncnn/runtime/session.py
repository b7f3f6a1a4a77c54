"""Sessions: a model with state, step by step, whose state stays with the driver.

A step reads the state in one place and writes that after it to another. The session
turns to the other only when the step has succeeded, its outputs are copied and it is
saved if it has to be, which is decided here and in one turn of the loop. So a step that
fails, is cancelled or misses its deadline has not happened, even if the driver had just
completed it. What such a step may still be using is left to it: the next one gets other
places and arrays, and the one after that does not write where it may still read.
"""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeAlias

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.deadlines import deadline_after, seconds_until
from asyncnn.execution import Outputs
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExecutionOptions
from asyncnn.runtime.execution_options import (
    AnyPath,
    Path,
    check_path,
    copies_now,
    copies_of,
)
from asyncnn.runtime.home import get_ident
from asyncnn.runtime.model import TensorInfo
from asyncnn.runtime.opening import Opened, opens
from asyncnn.runtime.requests import Inputs
from asyncnn.runtime.reusable import Carry
from asyncnn.runtime.session_steps import BESIDE, HELD, SessionModel, State, StepCalls
from asyncnn.runtime.states import StatePlaces, lengths_by_name

_Saved: TypeAlias = tuple[int, tuple[Array, ...]]
"""A checkpoint: the steps before it, and the state after them."""


class Session(Opened):
    """A model and its state, from step to step; made by `PreparedModel.session`.

    Steps follow one another in the order of the calls, whichever tasks make them.
    Sessions of one model share all but their state, and run beside each other.

    ``steps`` counts the steps that the state has behind it since it was set.
    """

    def __init__(
        self,
        model: SessionModel,
        carry: Callable[[Path], Carry],
        state: tuple[Array, ...],
        path: AnyPath,
        checkpoint: int | None,
        steps: int = 0,
    ) -> None:
        """Check what is given; the state has been, in the order of the states.

        :raises InvalidArgumentError: if there is no such path, or ``checkpoint`` is no
            number of steps.
        """
        if checkpoint is not None and checkpoint < 1:
            raise hal.InvalidArgumentError(
                f"checkpoint={checkpoint}",
                hint="the state is saved after every 1 or more steps",
            )
        check_path(path, bursts=True)
        self._model = model
        self._carry = carry
        self._path = self._by = path
        self._checkpoint = checkpoint
        self._turn = asyncio.Lock()
        self._burst: Carry | None = None
        self._running: asyncio.Task[Any] | None = None
        self._cut: asyncio.Task[Any] | None = None
        self._is_closed = False
        self._steps: StepCalls | None = None
        self._places: StatePlaces | None = None
        self._held: tuple[Array, ...] | None = None
        self._lengths: dict[str, int] = {}
        self._saved: _Saved | None = None
        self._lost: hal.DeviceUnavailableError | None = None
        self._lingers = False
        self._set(state, steps)

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What a step is given: the model's inputs but for its state."""
        return self._model.kept.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What a step returns: the model's outputs but for its state."""
        return self._model.kept.outputs

    @property
    def is_managed(self) -> bool:
        """Whether the state lies in device-managed buffers, or is going to.

        Otherwise, where a device has none, it lies in arrays that are shared with it.
        """
        return self._places is not None and self._places.are_managed

    async def run(
        self,
        inputs: Inputs,
        *,
        path: AnyPath | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a HAL deadline, in the driver
        measure: bool = False,
    ) -> Outputs:
        """Take one step and return new arrays.

        Cancelling the call stops the step at its next boundary. If it raises anything,
        the step has not happened, and the state is that before it.

        :param path: the session's by default; ``burst`` needs an open one.
        :param timeout: seconds from now until the deadline; waiting for steps before
            this one counts.
        :param measure: fill in ``outputs.timing``.
        :raises InvalidArgumentError: if an input is missing, unknown, or of the wrong
            dtype or shape, or there is no such path.
        :raises DeviceUnavailableError: if the driver has died or the session is closed.
        :raises AsyncnnError: for any other status of the driver.
        """
        home = self._model.target.home
        if get_ident() != home.loop._thread_id:
            home.refuse("the session")
        deadline = None if timeout is None else deadline_after(timeout)
        if deadline is None:
            await self._turn.acquire()
        else:
            await self._wait_for_turn(deadline)
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        self._running = task
        try:
            if self._is_closed or self._lost is not None:
                self._check_usable()
            self._by = self._path if path is None else path
            return await self._step(inputs, deadline, measure)
        except asyncio.CancelledError:
            if self._cut is task and task.uncancel() <= cancelled_before:
                raise _closed() from None
            raise
        finally:
            self._running = None
            self._turn.release()

    async def state(self) -> dict[str, Array]:
        """Return copies of the state by name, after all steps asked for before.

        :raises DeviceUnavailableError: if the driver has died or the session is closed.
        :raises AsyncnnError: for any other status of the driver.
        """
        _, arrays = await self._snapshot()
        names = [info.name for info in self._model.kept.infos]
        return dict(zip(names, arrays, strict=True))

    async def reset(self) -> None:
        """Go back to the first values, after all steps asked for before.

        Nothing is asked of the driver. A session whose driver has died goes on so.

        :raises DeviceClosedError: if the session is closed.
        """
        await self._replace(self._model.kept.first)

    async def load_state(self, state: State) -> None:
        """Have the next step begin with a copy of ``state``, as `reset` does.

        :raises InvalidArgumentError: if an array is missing, unknown, or of the wrong
            dtype or shape.
        :raises DeviceClosedError: if the session is closed.
        """
        await self._replace(self._model.kept.checked(state))

    @opens("session")
    async def copy(self) -> AsyncIterator["Session"]:
        """Open another session that begins with this one's state.

        It has the same path and checkpoints, and no part in this one's later steps.

        :raises AsyncnnError: as `state`.
        """
        steps, arrays = await self._snapshot()
        like = self._model, self._carry, arrays, self._path, self._checkpoint
        async with AsyncExitStack() as stack:
            opening = OpeningSession(Session(*like, steps))
            yield await stack.enter_async_context(opening)

    @opens("burst of the session", is_for_a_block=True)
    async def burst(self, *, spins: bool = True) -> AsyncIterator["Session"]:
        """Open a burst; within the block, steps go by it by default.

        :param spins: as of `PreparedModel.burst`.
        :raises AsyncnnError: if the driver refuses it.
        """
        path, before = self._path, self._burst
        async with self._model.burst(spins=spins) as (_, carry):
            self._burst, self._path = carry, "burst"
            try:
                yield self
            finally:
                self._burst, self._path = before, path

    def close(self) -> None:
        """End the step under way, and let go of the state. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self._release()
        self._cut = self._running
        if self._cut is not None:
            self._cut.cancel()
        self._steps = self._places = self._held = self._saved = None

    async def prepare(self) -> None:
        """Find places for the state, so that the first step need not.

        :raises AsyncnnError: if the driver is gone, or has too many buffers.
        """
        await self._begin()

    def _set(self, state: tuple[Array, ...], steps: int = 0) -> None:
        places = self._places
        if places is not None and places.shapes != [each.shape for each in state]:
            self._steps = None  # the next step finds others
        if self._steps is not None:
            self._steps.hold(state)  # first, as there may be no memory for it
        self._lengths = lengths_by_name(self._model.kept.infos, state)
        self.steps = steps
        self._now = HELD
        self._held = state
        self._saved = None if self._checkpoint is None else (steps, state)
        self._lost = None

    async def _replace(self, state: tuple[Array, ...]) -> None:
        self._model.target.home.check("the session")
        async with self._turn:
            self._check_open()
            self._set(state)

    async def _wait_for_turn(self, deadline: int) -> None:
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await self._turn.acquire()
        except TimeoutError:
            raise hal.MissedDeadlinePersistentError(
                "the deadline has passed while steps before this one were under way"
            ) from None

    async def _step(
        self, inputs: Inputs, deadline: int | None, measure: bool
    ) -> Outputs:
        check = self._model.check
        usual = check.usual(inputs)
        converted = await check.converted(inputs) if usual is None else usual
        if self._lengths:
            self._model.kept.check_lengths(converted, self._lengths)
        is_dead = self._is_dead()
        steps = self._steps
        if steps is None or is_dead:
            steps = await self._begin()
        places = self._places
        assert places is not None
        try:
            is_short, own = steps.is_short, steps.inputs
            last = own.put_now(converted) if is_short else await own.put(converted)
            if last:
                steps.rebind()
            call = steps.call(places, self._now)
            if deadline is None and not measure:
                views = await call.run()
            else:
                left = seconds_until(deadline)
                views = await call.run(timeout=left, measure=measure)
            saved = self._saved
            if saved is not None:
                saved = await self._saved_after(saved)
            names = [info.name for info in self._model.kept.outputs]
            if is_short:
                outputs = copies_now(views, names)
            else:
                outputs = await copies_of(views, names)
        except BaseException as error:
            self._steps = None  # what it uses may still be in use
            self._lingers = True
            if isinstance(error, hal.AsyncnnError):
                self._is_dead()
            raise
        if self._now == HELD:
            self._held = None
            steps.forget_held()
        elif self._lingers:
            self._steps = None  # the place before may still be read
        self._now = BESIDE[self._now]
        self._lingers = False
        self.steps += 1
        self._saved = saved
        return outputs

    async def _begin(self) -> StepCalls:
        """Return new steps, with the state where it is and other places beside it."""
        places, model = self._places, self._model
        if self._now == HELD or places is None:
            assert self._held is not None
            places = await model.allocate([a.shape for a in self._held], None)
        else:
            now = places.pair[self._now]
            places = await model.allocate(places.shapes, now)
            self._now = 0
        steps = StepCalls(model, self._execute)
        if self._held is not None:
            steps.hold(self._held)
        self._places, self._steps = places, steps
        return steps

    def _execute(
        self, request: hal.Request, options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        by = self._by
        if by != "burst":
            return self._carry(by)(request, options)
        if self._burst is None:
            raise hal.InvalidArgumentError(
                "no burst of the session is open", hint="async with session.burst()"
            )
        return self._burst(request, options)

    async def _snapshot(self) -> tuple[int, tuple[Array, ...]]:
        """Return the steps so far, and copies of the state after them."""
        self._model.target.home.check("the session")
        async with self._turn:
            self._check_usable()
            arrays = self._held
            if arrays is None and self._is_dead():
                arrays = self._held
            if arrays is None:
                return self.steps, await self._read()
            return self.steps, tuple(array.copy() for array in arrays)

    async def _read(self) -> tuple[Array, ...]:
        assert self._places is not None
        try:
            return await self._places.read(self._now)
        except hal.AsyncnnError:
            self._is_dead()
            raise

    async def _saved_after(self, saved: _Saved) -> _Saved:
        """Return what is to be saved once the step succeeds whose state is there."""
        assert self._checkpoint is not None
        assert self._places is not None
        steps = self.steps + 1
        if steps - saved[0] < self._checkpoint:
            return saved
        return steps, await self._places.read(BESIDE[self._now])

    def _is_dead(self) -> bool:
        """Return whether the driver has died; then the state is a checkpoint's."""
        cause = None if self._places is None else self._places.cause_of_death()
        if cause is None:
            return False
        lost = self._go_back(cause)
        if lost is not None:
            raise lost
        return True

    def _go_back(
        self, cause: hal.DeviceUnavailableError
    ) -> hal.DeviceUnavailableError | None:
        """Forget the state in the driver; return an error if steps are lost."""
        self._steps = self._places = None
        if self._held is not None:
            return None
        if self._saved is None:
            self._lost = type(cause)(
                f"{cause.message}; it had the state of the session",
                hint="reset the session, load a state, or open it with checkpoint=N",
            )
            return self._lost
        lost = self.steps - self._saved[0]
        self.steps, self._held = self._saved
        self._now = HELD
        if not lost:
            return None
        return type(cause)(
            f"{cause.message}; the session goes on after step {self.steps}, the "
            f"{lost} after that are lost"
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise _closed()

    def _check_usable(self) -> None:
        self._check_open()
        lost = self._lost
        if lost is not None:
            # A new one each time: one raised again keeps the frames of all calls.
            raise type(lost)(lost.message, hint=lost.hint)

    def __repr__(self) -> str:
        names = [info.name for info in self._model.kept.infos]
        return f"<Session {', '.join(names)}, step {self.steps}>"


def _closed() -> hal.DeviceClosedError:
    return hal.DeviceClosedError("the session is closed")


class OpeningSession:
    """The context in which a session is open.

    A class, and not a generator, since a hundred of them may be open for long. Once it
    is entered it does not keep the session, which may be forgotten.
    """

    __slots__ = ("_burst", "_opened", "_session")

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self._opened = weakref.ref(session)
        self._burst: AbstractAsyncContextManager[tuple[Any, Carry]] | None = None
        if session._path == "burst":
            self._burst = session._model.burst()

    async def __aenter__(self) -> Session:
        """Find places for the state, and open a burst if it is to have one.

        :raises AsyncnnError: if the driver is gone, or has too many buffers or bursts.
        """
        session, self._session = self._session, None
        assert session is not None
        try:
            session._model.target.home.check("the model")
            await session.prepare()
            if self._burst is not None:
                _, session._burst = await self._burst.__aenter__()
        except BaseException:
            session.close()
            raise
        return session

    async def __aexit__(self, *exc: Any) -> None:
        """Close the session."""
        session = self._opened()
        if session is not None:
            session.close()
        del session
        if self._burst is not None:
            await self._burst.__aexit__(*exc)
