"""The `Pipeline`: takes frames in, keeps some under way, hands results out in order."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, get_args

import anyio

from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    WrongTypeError,
    require_known,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.pipeline.frame import FrameSlot, PipelineFrame, StateMemory
from asyncnn.pipeline.results import FrameResult, PipelineStatistics, StageCounter
from asyncnn.pipeline.wiring import Stage, wire
from asyncnn.runtime.home import Home, get_ident
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.requests import InputCheck, Inputs

WhenFull: TypeAlias = Literal["wait", "drop_oldest"]
"""What happens to a frame that is put when there is no room."""

WhenFailed: TypeAlias = Literal["raise", "skip"]
"""What happens when a frame has failed, for example missed its deadline."""


class Pipeline:
    """Runs frames through ``stages``; iterate over it for results.

    It is a context manager, or opened by ``await`` and closed by `aclose`.

    Results come in the order in which frames were put. At most ``in_flight`` frames are
    on their way or wait to be taken as results. A frame beyond that makes `put` wait,
    or, with ``drop_oldest``, waits outside with at most ``backlog`` others, the oldest
    of which is dropped if there are more.

    A frame has ``timeout`` seconds from being put to the end of its last stage. When
    one fails, iterating raises its error and the pipeline is at its end; with ``skip``
    it is left out, and so are those that were launched before it failed and depend on
    its state. The next goes on with the state of the last frame that ended well.

    Closing it ends what is on its way.

    :raises InvalidArgumentError: if the stages do not fit together, a number is not
        positive, or a policy unknown.
    """

    def __init__(
        self,
        *stages: Stage,
        in_flight: int = 4,
        backlog: int = 1,
        when_full: WhenFull = "wait",
        when_failed: WhenFailed = "raise",
        timeout: float | None = None,
    ) -> None:
        if in_flight < 1 or backlog < 1 or not (timeout is None or timeout > 0):
            raise InvalidArgumentError(
                "a number of the pipeline is not positive: "
                f"in_flight={in_flight}, backlog={backlog}, timeout={timeout}"
            )
        _check_stages(*stages)
        require_known("policy", when_full, get_args(WhenFull))
        require_known("policy", when_failed, get_args(WhenFailed))
        self._stages = tuple(stage.opened() for stage in stages)
        self._wiring = wire(self._stages)
        self._check = InputCheck(self._wiring.put)
        self._in_flight = in_flight
        self._backlog = backlog
        self._drops = when_full == "drop_oldest"
        self._skips = when_failed == "skip"
        self._timeout_ns = None if timeout is None else round(timeout * 1e9)
        self._room: anyio.Semaphore
        self._memories: list[StateMemory | None] | None = None  # before it is open
        self._free: list[FrameSlot] = []
        self._frames: deque[PipelineFrame] = deque()
        self._counters = [StageCounter() for _ in stages]
        self._is_watching = self._is_advancing = False
        self._drained = asyncio.Event()
        self._home = Home()
        self._outside: deque[PipelineFrame] = deque()
        self._results: deque[FrameResult] = deque()
        self._news = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None
        self._takes_more = False
        self._is_stopped = False
        self._error: Exception | None = None
        self._traceback: TracebackType | None = None
        self._put = self._dropped = self._failed = self._delivered = 0

    async def __aenter__(self) -> Self:
        if self._memories is not None:
            raise RuntimeError("a pipeline is used once; make another")
        for stage in self._stages:
            stage.model.check_usable_here()
        memories = [
            await StateMemory.of(stage, self._in_flight, self._wiring.taken[index])
            if stage.state
            else None
            for index, stage in enumerate(self._stages)
        ]
        self._room = anyio.Semaphore(self._in_flight, fast_acquire=True)
        self._free = [
            FrameSlot(self._stages, self._wiring, memories)
            for _ in range(self._in_flight + self._drops * self._backlog)
        ]
        self._memories = memories
        self._takes_more = True
        self._home = Home()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def aclose(self) -> None:
        """End what is on its way. May be called again, and before it is opened."""
        if self._memories is None or self._home.is_inherited:
            return
        self._stop(None)
        if self._feeder is not None:
            self._feeder.cancel()
            await asyncio.wait([self._feeder])
        if self._frames:
            self._drained.clear()
            await self._drained.wait()
        self._results.clear()

    async def put(self, inputs: Inputs) -> int:
        """Send a frame on its way, once there is room; return its number.

        The arrays are copied, and can be used again at once.

        :raises InvalidArgumentError: if an input is missing, unknown, or of the wrong
            dtype or shape.
        :raises AsyncnnError: the error of a frame that has failed, if that was the end.
        :raises RuntimeError: if the pipeline is finished, or not open.
        """
        if self._drops:
            return self.put_nowait(inputs)
        self._check_open()
        if self._frames:
            # Devices that run short stages on the loop do so while it turns.
            await asyncio.sleep(0)
            self._check_open()
        await self._room.acquire()
        return self._put_in_room(inputs)

    def put_nowait(self, inputs: Inputs) -> int:
        """Send a frame on its way without waiting for room; return its number.

        :raises ResourceExhaustedTransientError: if there is no room, and none is made
            by dropping a frame.
        :raises InvalidArgumentError: as `put`, which raises the other errors as well.
        """
        self._check_open()
        try:
            self._room.acquire_nowait()
        except anyio.WouldBlock:
            if not self._drops:
                raise ResourceExhaustedTransientError(
                    f"{self._in_flight} frames are on their way, the limit",
                    hint="await put, or take the results",
                ) from None
        else:
            return self._put_in_room(inputs)
        arrays = self._checked(inputs)
        if len(self._outside) == self._backlog:
            self._free.append(self._outside.popleft().slot)
            self._dropped += 1
        frame = self._frame(arrays)
        self._outside.append(frame)
        return frame.number

    def finish(self) -> None:
        """Take no more frames: iterating ends after the results of those there are."""
        self._takes_more = False
        self._news.set()

    def process(
        self, frames: Iterable[Inputs] | AsyncIterable[Inputs]
    ) -> AsyncIterator[FrameResult]:
        """Put all of ``frames`` and return the iterator over the results.

        An error of ``frames`` is raised after the results of what came before.

        :raises RuntimeError: if the pipeline is finished, or not open.
        """
        self._check_open()
        if self._feeder is not None:
            raise RuntimeError("the pipeline processes frames already")
        self._feeder = asyncio.create_task(self._feed(frames))
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FrameResult:
        while not self._results:
            if not (self._takes_more or self._frames or self._outside):
                self._require_opened()
                self._raise_error()
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        self._delivered += 1
        result = self._results.popleft()
        self._make_room()
        return result

    def statistics(self) -> PipelineStatistics:
        """Return what has been done so far; before the start, nothing."""
        counts = [each.statistics() for each in self._counters]
        return PipelineStatistics(
            put=self._put,
            dropped=self._dropped,
            failed=self._failed,
            delivered=self._delivered,
            in_flight=len(self._frames) + len(self._results),
            waiting=len(self._outside),
            stages=dict(zip((s.name for s in self._stages), counts, strict=True)),
        )

    def __repr__(self) -> str:
        names = " -> ".join(stage.name for stage in self._stages)
        return f"<Pipeline {names}, {self._put} put, {self._delivered} delivered>"

    def _require_opened(self) -> Sequence[StateMemory | None]:
        if self._memories is None:
            raise RuntimeError(
                "the pipeline is not open yet: write 'async with pipeline:'"
            )
        return self._memories

    def _check_open(self) -> None:
        """Check that frames may be put.

        :raises Exception: what ended the pipeline, if it is at its end.
        """
        self._raise_error()
        if get_ident() != self._home.loop._thread_id:
            self._home.refuse("the pipeline")
        if not self._takes_more:
            self._require_opened()
            raise RuntimeError("the pipeline takes no more frames: it was finished")

    def _put_in_room(self, inputs: Inputs) -> int:
        """Launch a frame for which there is room; if that fails, the room is free."""
        try:
            self._check_open()
            frame = self._frame(self._checked(inputs))
        except BaseException:
            self._room.release()
            raise
        self._launch(frame)
        return frame.number

    def _checked(self, inputs: Inputs) -> list[Array]:
        arrays = self._check(inputs)
        given = [array for array in arrays if array is not None]
        if len(given) < len(arrays):
            raise InvalidArgumentError("no input of a pipeline can be omitted")
        return given

    def _frame(self, arrays: list[Array]) -> PipelineFrame:
        """Return a frame with copies of ``arrays``, to be launched or dropped."""
        memories, slot = self._require_opened(), self._free.pop()
        for target, array in zip(slot.put, arrays, strict=True):
            target[...] = array
        frame = PipelineFrame(self._put, slot, memories, self._timeout_ns)
        self._put += 1
        return frame

    def _launch(self, frame: PipelineFrame) -> None:
        """Send ``frame`` on its way; it may have ended when this returns."""
        frame.launch(self._wiring)
        self._frames.append(frame)
        self._advance()

    def _advance(self) -> None:
        """Report the frames that have ended, up to the first that has not."""
        if self._is_advancing:
            return  # one that has ended makes room for the next, which may end at once
        self._is_advancing = True
        try:
            while self._frames and not self._is_watching:
                run = self._frames[0].unfinished()
                if run is None:
                    frame = self._frames.popleft()
                    frame.settle(self._counters)
                    self._ended(frame)
                    self._free.append(frame.slot)
                else:
                    self._is_watching = True
                    run.fence.add_done_callback(self._run_has_ended)
        finally:
            self._is_advancing = False
        if not self._frames:
            self._drained.set()

    def _run_has_ended(self, _: SyncFence) -> None:
        self._is_watching = False
        self._advance()

    def _make_room(self) -> None:
        """Let the next frame have the room of one that is gone."""
        if self._outside:
            self._launch(self._outside.popleft())
        else:
            self._room.release()

    def _ended(self, frame: PipelineFrame) -> None:
        """Turn a frame into a result, or deal with its failure."""
        self._news.set()
        if self._is_stopped:
            return
        if frame.error is None:
            self._results.append(frame.result())
            return
        self._failed += 1
        if self._skips:
            self._make_room()
        else:
            frame.error.add_note(
                f"in stage {self._stages[frame.failed_stage].name}, "
                f"frame {frame.number}"
            )
            self._stop(frame.error)

    def _stop(self, error: Exception | None) -> None:
        """Take no more frames, and end those on their way."""
        self._is_stopped = True
        self._fail(error)
        self.finish()
        while self._outside:
            self._free.append(self._outside.popleft().slot)
        for frame in self._frames:
            frame.cancel()
        for _ in range(self._room.statistics().tasks_waiting):
            self._room.release()  # whoever waits to put hears of the end

    def _fail(self, error: Exception | None) -> None:
        if self._error is None and error is not None:
            self._error, self._traceback = error, error.__traceback__

    def _raise_error(self) -> None:
        """Raise what ended the pipeline, if it was an error."""
        if self._error is not None:
            # With where it began; otherwise it would keep the frames of every raise.
            raise self._error.with_traceback(self._traceback)

    async def _feed(self, frames: Iterable[Inputs] | AsyncIterable[Inputs]) -> None:
        try:
            if isinstance(frames, AsyncIterable):
                async for inputs in frames:
                    await self.put(inputs)
            else:
                for inputs in frames:
                    await self.put(inputs)
                    if self._drops:  # nothing else lets others have the loop
                        await asyncio.sleep(0)
        except Exception as error:
            if self._takes_more:
                self._fail(error)
        self.finish()


def _check_stages(*stages: object) -> None:
    for stage in stages:
        model: object = getattr(stage, "model", None)
        if not isinstance(stage, Stage) or isinstance(model, NamedModel):
            raise WrongTypeError(
                f"{stage!r} is no stage of a model that is prepared",
                hint="give Stage('name', await device.prepare(model))",
            )
