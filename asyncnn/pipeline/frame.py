"""One frame on its way through the stages."""

import time
from collections.abc import Sequence

from asyncnn.errors import AsyncnnError, error_for
from asyncnn.hal.types import ErrorStatus
from asyncnn.pipeline.memory import Slot, StateMemory
from asyncnn.pipeline.result import FrameResult
from asyncnn.pipeline.statistics import StageTally
from asyncnn.pipeline.wiring import Wiring
from asyncnn.runtime.fenced import FencedRun
from asyncnn.tracing import Layer, Phase, begin

STATELESS = 0


class Frame:
    """A frame that was put, with its slot; `launch` sends it on its way.

    ``failed_stage`` is the stage in which it failed first, and ``error`` says how.
    """

    __slots__ = (
        "_memories",
        "_trace",
        "_written",
        "deadline_ns",
        "error",
        "failed_stage",
        "number",
        "put_at_ns",
        "runs",
        "slot",
    )

    def __init__(
        self,
        number: int,
        slot: Slot,
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
                run = call.run_fenced(wait_for, timeout=self._left_s(), measure=True)
            except AsyncnnError as error:
                self._refused(index, error)
                return
            self.runs.append(run)
            if memory is not None:
                memory.launched(self._written[index], run)

    def _left_s(self) -> float | None:
        if self.deadline_ns is None:
            return None
        return (self.deadline_ns - time.monotonic_ns()) / 1e9

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

    def settle(self, tallies: Sequence[StageTally]) -> None:
        """Count, hand the state on, and find out what failed; all stages have ended."""
        for index, run in enumerate(self.runs):
            succeeded = run.status is ErrorStatus.NONE
            memory = self._memories[index]
            if memory is not None:
                settle = memory.succeeded if succeeded else memory.failed
                settle(self._written[index])
            if succeeded:
                tallies[index].count(run.timing.fenced)
            elif self.error is None:
                assert run.status is not None
                self.error = error_for(run.status, run.fence.reason)
                self.failed_stage = index
        if self.error is not None:
            tallies[self.failed_stage].failed += 1
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
