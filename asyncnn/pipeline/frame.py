"""One frame on its way through the stages, and the arrays that it goes through.

Arrays lie in shared pools and are allocated once: a `FrameSlot` has the arrays of one
frame at a time, `StateMemory` what a stage hands to itself in the next frame.
"""

import time
from collections.abc import Sequence, Set
from typing import Self, TypeAlias

import numpy as np

from asyncnn.deadlines import seconds_until
from asyncnn.fenced_run import FencedRun
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.interfaces import error_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.slabs import shared_array
from asyncnn.pipeline.results import FrameResult, StageCounter
from asyncnn.pipeline.wiring import FromPut, FromStage, FromState, Stage, Wiring
from asyncnn.runtime.buffers import DeviceBuffer
from asyncnn.runtime.model import TensorInfo
from asyncnn.runtime.requests import Tensor
from asyncnn.runtime.reusable import ReusableExecution
from asyncnn.tracing import Layer, Phase, begin

State: TypeAlias = dict[str, Tensor]
"""One frame's state by name of the output: in shared memory, or in the driver."""


class StateMemory:
    """The state of one stage from frame to frame.

    Every frame writes to a buffer of its own, which the next one reads. One more buffer
    keeps the state after the last frame that has ended well: when a frame has failed,
    the next to be launched goes on from there. Those launched before that are lost, as
    they depend on what failed; they are of a lineage that has ended.
    """

    def __init__(self, buffers: Sequence[State]) -> None:
        self._buffers = buffers
        self._free = list(range(1, len(buffers)))
        self._good = 0
        self._newest = 0
        self._newest_run: FencedRun | None = None
        self._lineage = 0
        self._lineages = [0] * len(self._buffers)

    @classmethod
    async def of(cls, stage: Stage, frames: int, shared: Set[str]) -> Self:
        """Return memory for ``frames`` on their way; ``shared`` state stays in arrays.

        :raises InvalidArgumentError: if an initial array is not what the stage takes.
        :raises AsyncnnError: if the device does not keep the state.
        """
        infos = [info for info in stage.model.outputs if info.name in stage.state]
        buffers = [
            {info.name: await _state(stage, info, shared) for info in infos}
            for _ in range(frames + 1)
        ]
        for info in infos:
            first = _initial(info, stage)
            tensor = buffers[0][info.name]
            if isinstance(tensor, DeviceBuffer):
                await tensor.write(first)
            else:
                tensor[...] = first
        return cls(buffers)

    def __getitem__(self, buffer: int) -> State:
        """Return what is in a buffer by name of the output."""
        return self._buffers[buffer]

    @property
    def newest(self) -> tuple[int, FencedRun | None]:
        """The buffer that the next frame reads, and the run that still writes it."""
        return self._newest, self._newest_run

    def take(self) -> int:
        """Return a buffer for the next frame to write."""
        return self._free.pop()

    def give_back(self, buffer: int) -> None:
        """Return a buffer of a frame that was not launched."""
        self._free.append(buffer)

    def launched(self, buffer: int, run: FencedRun) -> None:
        """Note that ``run`` writes ``buffer``."""
        self._newest, self._newest_run = buffer, run
        self._lineages[buffer] = self._lineage

    def succeeded(self, buffer: int) -> None:
        """Note that the oldest frame under way has written ``buffer``."""
        self._free.append(self._good)
        self._good = buffer
        if self._newest == buffer:
            self._newest_run = None

    def failed(self, buffer: int) -> None:
        """Note that the oldest frame under way has left ``buffer`` in disorder."""
        self._free.append(buffer)
        if self._lineages[buffer] == self._lineage:
            self._lineage += 1
            self._newest = self._good
            self._newest_run = None


class FrameSlot:
    """The arrays of one frame, and the calls over them, made when first needed."""

    def __init__(
        self,
        stages: Sequence[Stage],
        wiring: Wiring,
        memories: Sequence[StateMemory | None],
    ) -> None:
        self.stages = stages
        self._wiring = wiring
        self._memories = memories
        self.put = [_array(info) for info in wiring.put]
        self.outputs = [
            {
                i.name: _array(i)
                for i in stage.model.outputs
                if i.name not in stage.state
            }
            for stage in stages
        ]
        self._buffered = [
            [s for s in (*feeds, index) if memories[s] is not None]
            for index, feeds in enumerate(wiring.feeds)
        ]
        self._calls: dict[tuple[int, ...], ReusableExecution] = {}

    def call(self, index: int, read: int, written: Sequence[int]) -> ReusableExecution:
        """Return the call of stage ``index``.

        It reads buffer ``read`` of its state; ``written`` has the buffer that each
        stage up to this one writes.
        """
        key = (index, read, *[written[stage] for stage in self._buffered[index]])
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._make_call(index, read, written)
        return call

    def _make_call(
        self, index: int, read: int, written: Sequence[int]
    ) -> ReusableExecution:
        inputs: list[Tensor] = []
        for source in self._wiring.sources[index]:
            match source:
                case FromPut(position):
                    tensor: Tensor = self.put[position]
                case FromStage(stage, position):
                    tensor = self._output(stage, position, written[stage])
                case FromState(position):
                    tensor = self._output(index, position, read)
            inputs.append(tensor)
        model = self.stages[index].model
        out = [
            self._output(index, position, written[index])
            for position in range(len(model.outputs))
        ]
        return model.reusable(inputs, out=out)

    def _output(self, stage: int, position: int, buffer: int) -> Tensor:
        name = self.stages[stage].model.outputs[position].name
        memory = self._memories[stage]
        if memory is not None and name in memory[buffer]:
            return memory[buffer][name]
        return self.outputs[stage][name]


def _array(info: TensorInfo) -> Array:
    return shared_array(info.dimensions, info.dtype)


async def _state(stage: Stage, info: TensorInfo, shared: Set[str]) -> Tensor:
    """Return a place for the state that an output gives."""
    if stage.state_on is None or info.name in shared:
        return _array(info)
    taken = stage.model.input(stage.state[info.name])
    return await stage.state_on.buffer_for(stage.model.output(info.name), taken)


def _initial(info: TensorInfo, stage: Stage) -> Array:
    """Return the state that the first frame takes: zeros if none is given."""
    taken = stage.state[info.name]
    given = stage.initial.get(taken)
    if given is None:
        return np.zeros(info.dimensions, info.dtype)
    array = np.asarray(given)
    if (array.dtype, array.shape) != (info.dtype, info.dimensions):
        raise InvalidArgumentError(
            f"the initial {taken} is {array.dtype} {list(array.shape)}, not "
            f"{info.dtype} {list(info.dimensions)}"
        )
    return array


STATELESS = 0


class PipelineFrame:
    """A frame that was put, with its slot; `launch` sends it on its way.

    ``failed_stage`` is the stage in which it failed first, and ``error`` says how.
    """

    def __init__(
        self,
        number: int,
        slot: FrameSlot,
        memories: Sequence[StateMemory | None],
        timeout_ns: int | None,
    ) -> None:
        self.number = number
        self.slot = slot
        self.put_at_ns = time.monotonic_ns()
        self.deadline_ns = None if timeout_ns is None else self.put_at_ns + timeout_ns
        self.runs: list[FencedRun] = []
        self.error: AsyncnnError | None = None
        self.failed_stage = 0
        self._memories = memories
        self._written: list[int] = []
        self._trace = begin()

    def launch(self, wiring: Wiring) -> None:
        """Launch every stage; if one is refused, the frame fails."""
        for index, memory in enumerate(self._memories):
            wait_for = [self.runs[stage] for stage in wiring.feeds[index]]
            read = STATELESS
            if memory is not None:
                read, run_before = memory.newest
                if run_before is not None:
                    wait_for.append(run_before)
            self._written.append(STATELESS if memory is None else memory.take())
            call = self.slot.call(index, read, self._written)
            try:
                run = call.run_fenced(
                    wait_for, timeout=seconds_until(self.deadline_ns), measure=True
                )
            except AsyncnnError as error:
                self._refused(index, error)
                return
            self.runs.append(run)
            if memory is not None:
                memory.launched(self._written[index], run)

    def _refused(self, index: int, error: AsyncnnError) -> None:
        # Its traceback refers to this frame and its arrays.
        self.error, self.failed_stage = error.with_traceback(None), index
        memory = self._memories[index]
        if memory is not None:
            memory.give_back(self._written[index])
        self.cancel()

    def cancel(self) -> None:
        """End every stage soon."""
        for run in self.runs:
            run.cancel()

    def unfinished(self) -> FencedRun | None:
        """Return a run that has not ended, the last if possible; None if all have.

        Also of a frame that has failed, the slot is in use until all have ended.
        """
        for run in reversed(self.runs):
            if run.status is None:
                return run
        return None

    def settle(self, counters: Sequence[StageCounter]) -> None:
        """Count, hand the state on, and find out what failed; all stages have ended."""
        for index, run in enumerate(self.runs):
            succeeded = run.status is ErrorStatus.NONE
            memory = self._memories[index]
            if memory is not None:
                settle = memory.succeeded if succeeded else memory.failed
                settle(self._written[index])
            if succeeded:
                timing = run.timing
                counters[index].count(None if timing is None else timing.fenced)
            elif self.error is None:
                assert run.status is not None
                hal = self.slot.stages[index].model.hal
                self.error = error_of(hal, run.status, run.reason)
                self.failed_stage = index
        if self.error is not None:
            counters[self.failed_stage].failed += 1
        if self._trace is not None:
            failure = "" if self.error is None else self.error.status.name
            name = f"frame {self.number}"
            self._trace.end(name, Layer.APPLICATION, Phase.EXECUTION, failure)

    def result(self) -> FrameResult:
        """Return copies of what the last stage gave, without its state."""
        latency_us = (time.monotonic_ns() - self.put_at_ns) // 1000
        outputs = self.slot.outputs[-1].items()
        copies = ((name, array.copy()) for name, array in outputs)
        return FrameResult(self.number, latency_us, copies)
