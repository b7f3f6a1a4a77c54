"""Runs of plans that an engine computes alone: one call, without the interpreter lock.

A `JobSegment` is a graph of an engine that a function of C runs, or a kernel that is
one. A `Job` is a straight plan of such segments, made once for a workspace. Each
argument of a segment is an array of the run, by the number of its port, or memory of
the workspace's own.
All numbers and sizes are checked as the job is made; the arrays of a run are when it
begins. Then the interpreter lock is given up until all segments have run.

``_job.c`` has both. Where that was not built, `JobSegment` is `PythonSegment` and there
is no `Job`: the segments are run one by one (`PlanExecution`), which computes the same.
``ASYNCNN_PURE_JOB=1`` asks for that.

**Where an engine reads and writes.** An array of up to `COPIED_BYTES` is copied from or
to memory of the graph's own: that takes less time than any question about it. A larger
one is used where it lies if the engine takes its address and it `has_tail`, and copied
otherwise. Memory of the workspace is used in place whatever its size. For each set of
addresses, the last `MOST_BINDINGS` of them, a segment remembers the words to call the
function with. They hold for whatever lies there, so no array is remembered.

**How a run is stopped.** Whoever stops it, on any thread, sets a word of its `Control`,
then raises the flag of the segment that the control names, which the engine asks for
while it computes. The run lowers the flag, has the control name the segment, and then
looks at the word. These four are sequentially consistent: if the stopper finds another
segment or none, its word was set before the run looks; if it finds this one, the flag
was lowered before it is raised. So none is lost. One that comes late, to the next run,
ends that early without a reason, which then begins anew (`MOST_ATTEMPTS`).

A pause does the same with a word of its own, at most `MOST_INTERRUPTED` times for one
segment: what that has computed is lost, and it has to end some time. Whoever requests a
pause says so before calling `Control.pause`. So a run forgets older calls first, reads
``requested`` second. From the time of its review on, a run pauses by itself.

A deadline needs nobody who stops the run: it lies behind the flag, where `MUST_END`,
the function that the engine asks, looks at it too.

An engine that does not ask for the flag has `StopCalls`: one is called as the flag is
raised, and one as that is lowered, under a lock, so that the engine knows what the flag
says. Nothing else changes above. Who stops it at its deadline is the alarm of the
scheduler. It is never paused: it would begin anew from its first node.

The flag of a graph that has to `end`, as the process does, stays raised.

**Lanes.** A `Lane` is a thread that never takes the interpreter lock. `IJob.offer`
makes a run ready and hands it over; the lane runs it and leaves it at a `Port`, whose
`drain` lists what has ended, and how. What has computed a part of a run when it stops
lies in memory of the job: no other one of it begins before that has gone on.
Interpreters other than the main one, and forked children, have no lanes.
"""

import ctypes
import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from asyncnn.engine.array_memory import address_of, has_tail
from asyncnn.hal.errors import BusyError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus
from asyncnn.kernels.kernel import NativeKernel
from asyncnn.lazy import compiled_module
from asyncnn.memory.pages import TAIL_BYTES
from asyncnn.turn import End

WORDS = 8
"""Of a call, at most."""

COPIED_BYTES = 1 << 15
"""Arrays of so many bytes are copied: in a microsecond or two."""

ALIGNMENT_BYTES = 64
"""What most engines want the address of an array to be a multiple of."""

MOST_BINDINGS = 32
"""Sets of addresses whose words a segment keeps for whatever comes there."""

DONE, PAUSED, STOPPED, LATE = range(4)
"""How `Job.run` ends."""

CLEAR, INTERRUPTED, ENDED = b"\0", b"\1", b"\2"
"""What the first byte of a flag says; the second is 0."""

FLAG_BYTES = 16
"""Of a flag: behind the first half is the deadline of the run under way, 0 for none."""


class StopCalls(NamedTuple):
    """How an engine that does not ask for the flag is ended early.

    Addresses of functions, that have it end and that let it go on, and the word that
    they are called with. What such an engine returns from a run is a pointer.
    """

    end: int
    go_on: int
    word: int


class TensorCalls(NamedTuple):
    """How an engine has a tensor made over each array, for the time of a run.

    Each call has ``words``. ``make`` is the address of a function of 7 words:
    ``maker``, address and bytes of the array, the three of ``shapes``, and the one of
    ``cells``, where it puts the tensor; it returns 0, or what a run may return.
    ``unmake`` is called with the tensor. Inputs come first; what is pointed to has to
    last. Arrays are used where they lie if their address has the ``alignment``.
    """

    words: tuple[int, ...]
    make: int
    unmake: int
    maker: int
    cells: tuple[int, ...]
    shapes: tuple[tuple[int, int, int], ...]
    alignment: int


Bound: TypeAlias = tuple[tuple[int, ...], object]
"""The words of a call, and the object that keeps what they point to."""


class PythonSegment:
    """A graph of an engine, run by calling a function of up to `WORDS` words.

    Inputs and outputs say the ``dtype`` and ``nbytes`` that arrays have. ``flag`` is
    aligned memory of `FLAG_BYTES`, whose first byte the engine asks for, or `MUST_END`
    does: it ends early unless that is 0. ``stop_by`` is for one that asks for none.
    Large arrays are used where they lie if they are aligned as ``tensors`` say. An
    engine without these has addresses bound, again and again the same ones as far as
    possible: at multiples of `ALIGNMENT_BYTES`, and it may read behind them as well.
    The class that derives from this makes sure that the graph is run by one thread at a
    time and not freed meanwhile: by ``_acquire``, ``_refuse``, ``_release``,
    ``_is_closing`` and ``_free_if_idle`` of `CompiledGraph`, whose ``_check``
    says what is wrong with arrays.

    :raises InvalidArgumentError: if there is no function, or a tensor without bytes.
    """

    _acquire: Any
    _refuse: Any
    _release: Any
    _is_closing: bool
    _free_if_idle: Any
    _check: Any

    def __init__(
        self,
        function: int,
        flag: Any,
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        stop_by: StopCalls | None = None,
        tensors: TensorCalls | None = None,
    ) -> None:
        if not function or (stop_by and not (stop_by.end and stop_by.go_on)):
            raise InvalidArgumentError("there is no function at 0")
        for tensor in inputs + outputs:
            if tensor.nbytes <= 0:
                raise InvalidArgumentError(f"a tensor of {tensor.nbytes} bytes")
        words = [ctypes.c_size_t] * WORDS
        if tensors is not None:
            if not (tensors.make and tensors.unmake):
                raise InvalidArgumentError("there is no function at 0")
            if not tensors.alignment:
                raise InvalidArgumentError("an alignment of 0 bytes")
            cells, shapes = len(tensors.cells), len(tensors.shapes)
            count = len(inputs + outputs)
            if cells != count or shapes != count or len(tensors.words) > WORDS:
                message = f"{cells} cells and {shapes} shapes for {count} tensors"
                raise InvalidArgumentError(message)
            self._make = ctypes.CFUNCTYPE(ctypes.c_ssize_t, *words)(tensors.make)
            self._unmake = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(tensors.unmake)
        self._tensors = tensors
        status = ctypes.c_int if stop_by is None else ctypes.c_ssize_t
        self._function = ctypes.CFUNCTYPE(status, *words)(function)
        self._byte = flag
        self._stop_by = stop_by
        self._changing = threading.Lock()
        self._standing_in: dict[int, Array] = {}
        self._bindings: dict[tuple[int, ...], Bound] = {}

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Compute ``outputs`` from ``inputs``; False if it was interrupted.

        :raises AsyncnnError: see `CompiledGraph.run`.
        """
        if not self._acquire(False):
            refused: bool = self._refuse()
            return refused
        try:
            return self._run(inputs, outputs)
        finally:
            self._release()
            if self._is_closing:
                self._free_if_idle()

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Do what `run` does, in its turn."""
        self._check(inputs, outputs)
        arrays = [*inputs, *outputs]
        places = [self._place(*each) for each in enumerate(arrays)]
        addresses = tuple(map(address_of, places))
        bound = self._bound(addresses)  # which keeps what the words point to
        words = bound[0] + (0,) * (WORDS - len(bound[0]))
        split = len(inputs)
        for array, place in zip(inputs, places[:split], strict=True):
            if place is not array:
                place[:] = array.reshape(-1)
        with self._made(places) as status:
            status = status or self._function(*words)
        if status:
            self._ended(status)
            return False
        for array, place in zip(outputs, places[split:], strict=True):
            if place is not array:
                array.reshape(-1)[:] = place
        return True

    def _place(self, number: int, array: Array) -> Array:
        """Return the memory that the engine uses for an array."""
        address, tensors = address_of(array), self._tensors
        if array.nbytes <= COPIED_BYTES:
            is_fit = False
        elif tensors is None:
            is_fit = not address % ALIGNMENT_BYTES and has_tail(array, address)
        else:
            is_fit = not address % tensors.alignment
        if is_fit:
            return array
        memory = self._standing_in.get(number)
        if memory is None:
            raw = np.zeros(array.nbytes + TAIL_BYTES + ALIGNMENT_BYTES, np.uint8)
            start = -address_of(raw) % ALIGNMENT_BYTES
            memory = raw[start : start + array.nbytes].view(array.dtype)
            self._standing_in[number] = memory
        return memory

    def _bound(self, addresses: tuple[int, ...]) -> Bound:
        if self._tensors is not None:
            return self._tensors.words, None
        bound = self._bindings.get(addresses)
        if bound is None:
            bound = self._bind(addresses)
            while len(self._bindings) >= MOST_BINDINGS:
                self._bindings.pop(next(iter(self._bindings)))
            self._bindings[addresses] = bound
        return bound

    @contextmanager
    def _made(self, places: Sequence[Array]) -> Iterator[int]:
        """Yield what the engine says of tensors over these; they last for the block."""
        made: list[ctypes.c_size_t] = []
        status = 0
        if self._tensors is not None:
            _, _, _, maker, cells, shapes, _ = self._tensors
            for place, cell, shape in zip(places, cells, shapes, strict=True):
                about = maker, address_of(place), place.nbytes, *shape, cell, 0
                status = self._make(*about)
                if status:
                    break
                made.append(ctypes.c_size_t.from_address(cell))
        try:
            yield status
        finally:
            for tensor in made:
                self._unmake(tensor.value)

    def _bind(self, addresses: tuple[int, ...]) -> Bound:
        """Return the words of a call on these addresses, inputs first."""
        raise NotImplementedError

    def _ended(self, status: int) -> None:
        """Return if a run that ended with ``status`` was interrupted, else raise."""
        raise NotImplementedError

    def interrupt(self) -> None:
        """Have runs end early, from any thread; until `clear_interrupt`."""
        with self._changing:
            if self._byte[0] == CLEAR:
                self._byte[0] = INTERRUPTED
            self._signal(is_to_end=True)

    def clear_interrupt(self) -> None:
        """Let runs go on to their ends again, unless it was to `end`."""
        with self._changing:
            if self._byte[0] == INTERRUPTED:
                self._byte[0] = CLEAR
                self._signal(is_to_end=False)

    def end(self) -> None:
        """Have runs end early for good."""
        with self._changing:
            self._byte[0] = ENDED
            self._signal(is_to_end=True)

    def _signal(self, *, is_to_end: bool) -> None:
        if self._stop_by is not None:
            end, go_on, word = self._stop_by
            function = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_size_t)
            function(end if is_to_end else go_on)(word)

    def forget(self) -> None:
        """Forget the addresses that it has run on."""
        self._bindings = {}

    def bound_addresses(self) -> list[tuple[int, ...]]:
        """Return the sets of addresses whose words it knows."""
        return list(self._bindings)


Arguments: TypeAlias = tuple[int | Array, ...]
"""Of a segment in a job: the number of a port, or memory that is the same each time."""

Placed: TypeAlias = tuple[PythonSegment, Arguments, Arguments]
"""A segment of a job with its inputs and outputs.

A job is made of these and a number of ports; one that does not fit is refused with an
`InvalidArgumentError`.
"""


class IControl(Protocol):
    """Stops and pauses one run of a job."""

    @property
    def position(self) -> int:
        """The number of the segment that it is at."""

    def stop(self) -> None:
        """Have the run end, and never go on."""

    def pause(self) -> None:
        """Have the run that is under way end; another call of `IJob.run` goes on."""

    def longest(self) -> tuple[int, int, int, int]:
        """Return when the part under way began, in nanoseconds, and its segment.

        Then the nanoseconds of the longest one, and its segment. A segment of -1 is
        none yet. All of runs with a deadline only.
        """
        ...


class IJob(Protocol):
    """Segments that run one after the other; it has the turns of all meanwhile."""

    def run(
        self,
        arrays: Sequence[Array | None],
        control: IControl,
        deadline_ns: int | None = None,
        pause: Any = None,
        review_ns: int | None = None,
        /,
    ) -> int:
        """Run from where the control is; return how it ends.

        The first segment is run even if a pause was requested before. That is asked
        here only; from then on it has to call `IControl.pause`. At the first boundary
        after ``review_ns`` it pauses by itself. After a stop, or a deadline that has
        passed, no output is written that was not before. The last three are given
        together or not at all.

        :raises InvalidArgumentError: if an array does not fit.
        :raises RuntimeError: if it is interrupted again and again.
        :raises AsyncnnError: if an engine fails.
        """
        ...

    def offer(
        self,
        lane: "ILane",
        token: object,
        arrays: Sequence[Array | None],
        control: IControl,
        deadline_ns: int | None,
        pause: Any,
        review_ns: int | None,
        /,
    ) -> None:
        """Have a lane `run` as of here; ``token`` comes back by its port.

        :raises InvalidArgumentError: if an array does not fit.
        :raises ValueError: if the lane has no room, or was closed.
        :raises AsyncnnError: if a graph is in use elsewhere, or closed.
        """
        ...


class PythonRunFields(End):
    """What each run has; a default of the class would cost two look-ups.

    The one in C goes on a lane by itself, and ends without `_finish` where there is
    nothing to it but its outputs. So nothing of that is here: where it was not built,
    there is no such lane.
    """

    __slots__ = (
        *("_abort_status", "_arrays", "_control", "_cpu_ns", "_ended_ns", "_error"),
        *("_executable", "_execution", "_lessons", "_options", "_plan", "_report"),
        *("_request", "_shapes", "_started_ns", "_threads", "_workspace", "account"),
        *("accounting", "added_ns", "charged_ns", "client", "computed_ns", "cost"),
        *("deadline_ns", "ends_anywhere", "goes_native", "has_plan", "pause"),
        *("preemptions", "priority", "resumed_ns", "should_inline", "state", "use"),
    )

    if TYPE_CHECKING:

        def offer(self, idle: list[Any], /) -> bool:
            """Have the last of these lanes go on with it; see `Work.offer`.

            Nothing is made for it: there is a workspace, and a job. What is wrong with
            the arrays is for `advance` to raise.
            """
            ...

    def finish(self) -> ErrorStatus:
        """Report the outcome; shapes and timing as the HAL wants them for it."""
        return self._finish()

    @abstractmethod
    def _finish(self) -> ErrorStatus:
        """Do what `finish` does, whatever there is to it."""


def python_made(kind: Any, *given: object) -> Any:
    """Make a run of this class, of what its `anew` takes.

    In C it is copied from a blank, if its model has one and no options are given.
    """
    return kind.anew(*given)


_built: Any = compiled_module("asyncnn.engine._job", "ASYNCNN_PURE_JOB")

MUST_END: int | None = None if _built is None else _built.MUST_END
"""Address of the function of C that says by its flag if a run is to end."""

if TYPE_CHECKING:
    from asyncnn.qos.native_lanes import ILane, ILanePort

    JobSegment = PythonSegment
    RunFields = PythonRunFields
    made = python_made
    Control: Callable[[], IControl]
    Job: Callable[[tuple[Placed, ...], int], IJob] | None
    LanePort: Callable[[int], ILanePort] | None
else:
    JobSegment = PythonSegment if _built is None else _built.Segment
    RunFields = PythonRunFields if _built is None else _built.RunFields
    made = python_made if _built is None else _built.made
    Control = None if _built is None else _built.Control
    Job = None if _built is None else _built.Job
    LanePort = None if _built is None else _built.Port


class KernelSegment(JobSegment):
    """A `NativeKernel` as a part of a job."""

    _is_closing = False

    def __init__(self, kernel: NativeKernel) -> None:
        self._kernel = kernel
        # Jobs ask for it. Each workspace has its segments, and one execution at a time.
        turn = threading.Lock()
        self._acquire, self._release = turn.acquire, turn.release
        flag = ctypes.create_string_buffer(FLAG_BYTES)  # a kernel never looks
        super().__init__(kernel.function, flag, kernel.inputs, kernel.outputs)

    def _bind(self, addresses: tuple[int, ...]) -> Bound:
        places = (ctypes.c_void_p * len(addresses))(*addresses)
        return (self._kernel.state, ctypes.addressof(places)), places

    def _check(self, *sides: Sequence[Array]) -> None:
        tensors_of = self._kernel.inputs, self._kernel.outputs
        for arrays, tensors in zip(sides, tensors_of, strict=True):
            for array, tensor in zip(arrays, tensors, strict=True):
                if (array.dtype, array.nbytes) != tensor:
                    raise InvalidArgumentError(
                        f"an array of {array.nbytes} bytes of {array.dtype}; "
                        f"the kernel has {tensor.nbytes} of {tensor.dtype}"
                    )

    def _refuse(self) -> bool:
        raise BusyError("the kernel runs in another thread")

    def _ended(self, status: int) -> None:
        raise OSError(status, os.strerror(status))
