"""Shared memory for arguments that lie in memory of the client alone.

A request may use pools that cannot travel: plain arrays of the application. Their bytes
are copied into a slab of shared memory before the request is sent, and out of it when
it is done. A request whose pools all travel is left as it is.

An application sends the same arguments with other pools again and again. Where they go
in a slab is worked out once, and what was made for one request, views of the slab and
the arguments that point into it, serves the next.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    failure_of,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    ErrorStatus,
    Memory,
    Model,
    Request,
    RequestArgument,
)
from asyncnn.memory.shared import allocate, shareable
from asyncnn.memory.slabs import Part, allocate_in_slab, retire
from asyncnn.offload import offload
from asyncnn.service import wire
from asyncnn.service.client.pools import OfferedPools
from asyncnn.service.client.unanswered import Line
from asyncnn.service.decoding import MessageFile, encode_given
from asyncnn.service.limits import is_large

logger = logging.getLogger(__name__)

ALIGNMENT_BYTES = 64
MIN_SLAB_BYTES = 64
MAX_IDLE_SLABS = 8
"""Slabs that wait for the next request of one layout, or with none; more are freed."""

LARGE_BYTES = 256 * 1024
"""To copy more keeps the loop for longer than a thread takes to start."""

MAX_LAYOUTS = 8
"""Layouts that are remembered; the one made first is forgotten first."""

_UNSETTLED = frozenset({ErrorStatus.DEVICE_UNAVAILABLE, ErrorStatus.GENERAL_FAILURE})
"""How an execution ends that the driver may not have stopped: it was lost, or stuck."""


class _Move(msgspec.Struct, frozen=True):
    """An argument's bytes: of a pool that does not travel, and their place in slabs."""

    pool_index: int
    offset: int
    length: int
    slab_offset: int


class _Layout:
    """How requests with these very arguments, and such pools, lie in slabs."""

    def __init__(self, request: Request, travelling: tuple[bool, ...]) -> None:
        # They are held so that nothing else gets their identity.
        self.arguments = (request.inputs, request.outputs)
        self.kept = [index for index, it_does in enumerate(travelling) if it_does]
        self.slab_bytes = 0
        self.inputs, self.moves_in = self._place(request.inputs, travelling)
        self.outputs, self.moves_out = self._place(request.outputs, travelling)
        self.has_large_inputs = _size(self.moves_in) > LARGE_BYTES
        self.has_large_outputs = _size(self.moves_out) > LARGE_BYTES

    def _place(
        self, arguments: Sequence[RequestArgument], travelling: tuple[bool, ...]
    ) -> tuple[tuple[RequestArgument, ...], list[_Move]]:
        placed: list[RequestArgument] = []
        moves: list[_Move] = []
        for argument in arguments:
            if not argument.has_no_value:
                at = argument.location
                if travelling[at.pool_index]:
                    location = replace(at, pool_index=self.kept.index(at.pool_index))
                else:
                    start = self.slab_bytes
                    location = DataLocation(len(self.kept), start, at.length)
                    units = -(-at.length // ALIGNMENT_BYTES)
                    self.slab_bytes += units * ALIGNMENT_BYTES
                    if at.length:
                        moves.append(_Move(at.pool_index, at.offset, at.length, start))
                argument = replace(argument, location=location)
            placed.append(argument)
        return tuple(placed), moves


class Staged:
    """A request whose pools all travel, and what to copy back when it is done.

    ``inputs`` and ``outputs`` are the client's bytes that are copied, while it stands
    for any. ``number`` is what the driver knows the request by if it is bound; that
    holds as long as ``bound_since`` is the `Bindings.epoch`.
    """

    def __init__(self, layout: _Layout, slab: Memory) -> None:
        assert slab.buffer is not None
        self.layout = layout
        self.slab = slab
        self.request = Request(layout.inputs, layout.outputs, (slab,))
        self.number = 0
        self.bound_since: object = None
        self._targets = [_part(slab.buffer, move) for move in layout.moves_in]
        self._sources = [_part(slab.buffer, move) for move in layout.moves_out]
        self.inputs: list[memoryview] = []
        self.outputs: list[memoryview] = []

    def stand_for(self, pools: tuple[Memory | BufferToken, ...]) -> None:
        """Move arguments between these pools and the slab from now on.

        :raises InvalidArgumentError: if an output cannot be copied back, or a pool is
            not contiguous, or was released by the application.
        """
        layout = self.layout
        try:
            for move in layout.moves_in:
                memory = pools[move.pool_index]
                assert isinstance(memory, Memory)
                assert memory.buffer is not None
                data = memory.buffer.cast("B")
                if data.nbytes != move.length:
                    data = data[move.offset : move.offset + move.length]
                self.inputs.append(data)
            for move in layout.moves_out:
                memory = pools[move.pool_index]
                assert isinstance(memory, Memory)
                assert memory.buffer is not None
                if memory.buffer.readonly:
                    raise InvalidArgumentError(
                        "an output lies in a pool that is read-only"
                    )
                self.outputs.append(memory.buffer)
        except AsyncnnError:  # some are a ValueError as well
            raise
        except (TypeError, ValueError) as error:  # it may be released since its check
            raise InvalidArgumentError(f"a pool cannot be copied: {error}") from error
        if layout.kept:
            kept: tuple[Memory | BufferToken, ...] = ()
            for index in layout.kept:
                kept += (pools[index],)
            self.request = Request(layout.inputs, layout.outputs, (*kept, self.slab))

    def fill(self) -> None:
        """Copy the inputs into the slab."""
        for source, target in zip(self.inputs, self._targets, strict=True):
            if source.nbytes <= LARGE_BYTES:
                target[:] = source
            else:
                _copy_large(source, target)

    def copy_back(self) -> None:
        """Copy the outputs out of the slab.

        :raises ValueError: if the application has released the bytes meanwhile.
        """
        moves = self.layout.moves_out
        for move, buffer, source in zip(
            moves, self.outputs, self._sources, strict=True
        ):
            target = buffer.cast("B")
            if target.nbytes != move.length:
                target = target[move.offset : move.offset + move.length]
            if source.nbytes <= LARGE_BYTES:
                target[:] = source
            else:
                _copy_large(source, target)

    def release(self) -> None:
        """Let go of the pools."""
        self.inputs.clear()
        self.outputs.clear()
        if self.layout.kept:
            self.request = replace(self.request, pools=(self.slab,))


class SentMemory(msgspec.Struct, eq=False):
    """The memory that an execution uses in a driver, and here, until it has ended.

    The driver works on these pools until then, and on the slab of what is ``staged``.
    """

    _staging: "Staging"
    _pools: Sequence[object]
    staged: Staged | None
    _failure: AsyncnnError | None = None

    def take_outputs(
        self,
        status: ErrorStatus,
        finish: Callable[[Callable[[], None], Callable[[], None]], None],
        then: Callable[[AsyncnnError | None], None],
    ) -> None:
        """Copy the outputs of an execution that has ended back, and let go of all.

        Then calls ``then`` with why they could not be taken, if so. What takes long is
        copied by ``finish``, on a thread.
        """
        staged = self.staged
        if staged is not None and staged.outputs and status is ErrorStatus.NONE:
            if staged.layout.has_large_outputs:
                finish(self._copy_back, partial(self._end, status, then))
                return
            self._copy_back()
        self._end(status, then)

    def _copy_back(self) -> None:
        try:
            # Let go of meanwhile, the slab may have the outputs of another execution.
            if self.staged is not None:
                self.staged.copy_back()
        except Exception as error:
            logger.exception("the outputs of an execution could not be taken")
            self._failure = failure_of(error)

    def _end(
        self, status: ErrorStatus, then: Callable[[AsyncnnError | None], None]
    ) -> None:
        self.let_go(status)
        then(self._failure)

    def let_go(self, status: ErrorStatus) -> None:
        """Give the slab back for other requests, unless it may still be written to."""
        pools, self._pools = self._pools, ()
        staged, self.staged = self.staged, None
        if status in _UNSETTLED:
            retire(pools)
        # A driver that is stuck may write to the slab later: then it is dropped.
        if staged is not None and status is not ErrorStatus.GENERAL_FAILURE:
            self._staging.give_back(staged)

    def release(self) -> None:
        """Let go of the client's pools; the driver has the slab until it answers."""
        if self.staged is not None:
            self.staged.release()


def _size(moves: Sequence[_Move]) -> int:
    return sum([move.length for move in moves])


def _part(slab: memoryview, move: _Move) -> memoryview:
    return slab[move.slab_offset : move.slab_offset + move.length]


def _copy_large(source: memoryview, target: memoryview) -> None:
    """Copy bytes so that other threads run meanwhile."""
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


class Staging:
    """Stages the requests of one prepared model; keeps slabs that are free.

    If there is no shared memory left, ``free_idle`` is called to give some back.
    Without ``may_see_slabs``, nothing is sent that lies in one file with other arrays.
    """

    def __init__(
        self,
        free_idle: Callable[[], None] = lambda: None,
        *,
        may_see_slabs: bool = True,
    ) -> None:
        self._free_idle = free_idle
        self._may_see_slabs = may_see_slabs
        self._layouts: dict[tuple[int, int, tuple[bool, ...]], _Layout] = {}
        self._ready: dict[_Layout, list[Staged]] = {}
        self._idle: defaultdict[int, list[Memory]] = defaultdict(list)

    def stage(self, request: Request) -> Staged | None:
        """Return the request to send instead; None if this one, validated, travels.

        Its inputs are to be filled in before it is sent.

        :raises InvalidArgumentError: if an output lies in memory that is read-only.
        :raises ResourceExhaustedTransientError: if there is no shared memory left.
        """
        may_see_slabs = self._may_see_slabs
        travelling: tuple[bool, ...] = ()
        for pool in request.pools:
            if type(pool) is Memory:
                travels = pool.handle.fds != ()
            else:
                travels = may_see_slabs or type(pool) is not Part
            travelling += (travels,)
        if False not in travelling:
            return None
        staged = self._staged(request, travelling)
        try:
            staged.stand_for(request.pools)
        except BaseException:
            self.give_back(staged)
            raise
        return staged

    def stage_arrays(
        self, plain: Request, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Staged:
        """Return what to send instead of arrays, which are the arguments ``plain``.

        These are all in pools of their own, and the same tuples each time.

        :raises ResourceExhaustedTransientError: if there is no shared memory left.
        """
        staged = self._staged(plain, (False,) * (len(inputs) + len(outputs)))
        for array in inputs:
            staged.inputs.append(array.data.cast("B"))
        for array in outputs:
            staged.outputs.append(array.data)
        return staged

    def _staged(self, request: Request, travelling: tuple[bool, ...]) -> Staged:
        """Return one that stands for nothing yet."""
        key = (id(request.inputs), id(request.outputs), travelling)
        layout = self._layouts.get(key) or self._new_layout(request, travelling)
        ready = self._ready[layout]
        return ready.pop() if ready else Staged(layout, self._take(layout.slab_bytes))

    def give_back(self, staged: Staged) -> None:
        """Keep the slab of a request that is done for the next one."""
        staged.inputs.clear()
        staged.outputs.clear()
        if staged.layout.kept:
            staged.release()
        ready = self._ready.get(staged.layout)
        if ready is None:
            self._keep(staged.slab)
        elif len(ready) < MAX_IDLE_SLABS:
            ready.append(staged)

    def trim(self) -> None:
        """Free the slabs that wait for the next request."""
        self._idle.clear()
        for ready in self._ready.values():
            ready.clear()

    def _new_layout(self, request: Request, travelling: tuple[bool, ...]) -> _Layout:
        if len(self._layouts) == MAX_LAYOUTS:
            first = self._layouts.pop(next(iter(self._layouts)))
            for staged in self._ready.pop(first):
                self._keep(staged.slab)
        # A list may have other arguments the next time: its copy is never asked for.
        request = Request(tuple(request.inputs), tuple(request.outputs), ())
        key = (id(request.inputs), id(request.outputs), travelling)
        layout = self._layouts[key] = _Layout(request, travelling)
        self._ready[layout] = []
        return layout

    def _keep(self, slab: Memory) -> None:
        idle = self._idle[slab.size]
        if len(idle) < MAX_IDLE_SLABS:
            idle.append(slab)

    def _take(self, size: int) -> Memory:
        rounded = max(MIN_SLAB_BYTES, 1 << (size - 1).bit_length())
        idle = self._idle[rounded]
        if idle:
            return idle.pop()
        make = allocate_in_slab if self._may_see_slabs else allocate
        try:
            return make(rounded)
        except ResourceExhaustedTransientError:
            self._free_idle()
            return make(rounded)


MakeMessage: TypeAlias = Callable[[Model, tuple[int, ...]], wire.WithModel]
"""Makes the message with a model that has no pools, but their numbers."""


class ModelSender(msgspec.Struct, frozen=True, eq=False):
    """Sends messages with models. Belongs to the event loop."""

    _line: Line
    _pools: OfferedPools

    def takes_long(self, model: Model) -> bool:
        """Tell whether to send ``model`` at once would keep the loop for long."""
        copied = sum([pool.size for pool in model.pools if not pool.handle.fds])
        return is_large(model) or copied + len(model.operand_values) > LARGE_BYTES

    def send_now(
        self, model: Model, make: MakeMessage, fds: Sequence[int] = ()
    ) -> None:
        """Send a message with ``model``."""
        pools = _all_shareable(model.pools)
        message = make(replace(model, pools=()), self._pools.numbers_of(pools))
        self._line.send(message, fds)

    async def send(
        self,
        model: Model,
        make: MakeMessage,
        fds: Sequence[int] = (),
        *,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send a message with ``model`` unless it has ceased to be wanted by then."""
        pools = await offload(_all_shareable, model.pools)
        if not is_wanted():
            return
        message = make(replace(model, pools=()), self._pools.numbers_of(pools))
        file = await offload(_encoded, message)
        if is_wanted():
            self._line.send(file, fds)


def _all_shareable(pools: Sequence[Memory]) -> list[Memory]:
    return [shareable(memory) for memory in pools]


def _encoded(message: wire.ToDriver) -> MessageFile:
    try:
        return MessageFile(encode_given(message))
    except OSError as error:
        raise ResourceExhaustedTransientError(
            f"a message cannot be sent: {error.strerror}"
        ) from error
