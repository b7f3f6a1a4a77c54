"""One execution's use of buffers: what it may do, what it claims, what it leaves."""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
)
from asyncnn.hal.operands import combine_dimensions, is_scalar
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Dimensions,
    ErrorStatus,
    Memory,
    Model,
    Operand,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.hal.validate.buffers import BufferPlan, Slot
from asyncnn.memory.managed import ManagedBuffer
from asyncnn.memory.mapping import Mapper
from asyncnn.offload import SerialOffload

_ANY_LENGTH = 0xFFFF_FFFF
"""Length of outputs in buffers: they take up what they need."""


class Known(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A buffer of the device, and what it is for."""

    managed: ManagedBuffer
    plan: BufferPlan


class BufferUse:
    """What a request does with the buffers that it names.

    ``known`` are they, by the position of their pool; ``identity`` is that of the
    prepared model in their roles. Belongs to the event loop.

    :raises InvalidArgumentError: if one has no such role, or is used as an output
        beside something else.
    """

    def __init__(
        self,
        identity: Hashable,
        model: Model,
        request: Request,
        known: Mapping[int, Known],
    ) -> None:
        self._main = model.main
        self._request = request
        self._inputs = _uses(request.inputs, known)
        self._outputs = _uses(request.outputs, known)
        self._claimed: Request | None = None
        self._is_settled = False
        _check_roles(identity, False, self._inputs)
        _check_roles(identity, True, self._outputs)
        written = [used.managed for used in self._outputs.values()]
        read = {used.managed for used in self._inputs.values()}
        if len(set(written)) < len(written) or not read.isdisjoint(written):
            raise InvalidArgumentError("an output shares its buffer with an argument")

    def claim(self) -> Request:
        """Claim the buffers; return the request with what is behind the tokens.

        A second call returns the same.

        :raises GeneralFailureError: if an input is uninitialised, or somebody else uses
            a buffer in a way that does not go together.
        :raises InvalidArgumentError: if dimensions of the request contradict a buffer.
        """
        if self._claimed is None:
            reading: set[ManagedBuffer] = set()
            try:
                self._claimed = self._claim(reading)
            except AsyncnnError:
                for managed in reading:
                    managed.end_reading()
                raise
        return self._claimed

    def settle(self, status: ErrorStatus, shapes: Sequence[OutputShape]) -> None:
        """Give up the claims: the execution has ended with ``status``.

        Its outputs are uninitialised unless it went well, whether it had begun or not.
        """
        if self._is_settled:
            return
        self._is_settled = True
        has_begun, self._claimed = self._claimed is not None, None
        if has_begun:
            for managed in {used.managed for used in self._inputs.values()}:
                managed.end_reading()
        for position, used in self._outputs.items():
            if not has_begun:
                used.managed.discard()
            elif status is ErrorStatus.NONE:
                used.managed.end_writing(shapes[position].dimensions)
            else:
                used.managed.end_writing(None)

    def _claim(self, reading: set[ManagedBuffer]) -> Request:
        request, main = self._request, self._main
        inputs, outputs = list(request.inputs), list(request.outputs)
        pools: list[Memory | BufferToken] = list(request.pools)
        for position, used in self._inputs.items():
            managed, argument = used.managed, inputs[position]
            operand = main.operands[main.input_indexes[position]]
            pools[argument.location.pool_index] = (
                managed.claimed if managed in reading else managed.begin_reading()
            )
            reading.add(managed)
            inputs[position] = _input(argument, operand, managed)
        for position, used in self._outputs.items():
            used.managed.check_unused()
            outputs[position] = _output(outputs[position], used.plan)
        for position, used in self._outputs.items():
            index = outputs[position].location.pool_index
            pools[index] = used.managed.begin_writing()
        return Request(tuple(inputs), tuple(outputs), tuple(pools))


def _uses(
    arguments: Sequence[RequestArgument], known: Mapping[int, Known]
) -> dict[int, Known]:
    """Return the buffers that arguments lie in, by position of the argument."""
    return {
        position: known[argument.location.pool_index]
        for position, argument in enumerate(arguments)
        if not argument.has_no_value and argument.location.pool_index in known
    }


def _check_roles(
    identity: Hashable, is_output: bool, uses: Mapping[int, Known]
) -> None:
    for position, used in uses.items():
        if Slot(identity, is_output, position) not in used.plan.slots:
            kind = "output" if is_output else "input"
            raise InvalidArgumentError(
                f"buffer {used.managed.token} was not allocated for {kind} {position} "
                "of this model"
            )


def _input(
    argument: RequestArgument, operand: Operand, managed: ManagedBuffer
) -> RequestArgument:
    current = managed.current
    assert current is not None
    combine_dimensions(current, argument.dimensions)
    size = managed.size_bytes(current)
    is_declared = is_scalar(operand.type) or operand.dimensions == current
    return replace(
        argument,
        location=DataLocation(argument.location.pool_index, 0, size),
        dimensions=() if is_declared else current,
    )


def _output(argument: RequestArgument, plan: BufferPlan) -> RequestArgument:
    """Return an output that any shape suffices which the buffer was allocated for."""
    dimensions: Dimensions = ()
    if not is_scalar(plan.operand.type):
        dimensions = combine_dimensions(plan.operand.dimensions, argument.dimensions)
    return replace(
        argument,
        location=DataLocation(argument.location.pool_index, 0, _ANY_LENGTH),
        dimensions=dimensions,
    )


SHORT_BYTES = 256 * 1024
"""Copying no more takes the loop about as long as handing it to a thread would."""


class Copier:
    """Copies for one device. `close` is final but for copies under way.

    ``cause_of_death`` says why the device takes no work any more, if so.
    """

    def __init__(
        self, cause_of_death: Callable[[], DeviceUnavailableError | None]
    ) -> None:
        self.cause_of_death = cause_of_death
        self._mapper = Mapper()
        self._offload = SerialOffload()
        self._copies: set[asyncio.Task[None]] = set()

    async def fill(
        self,
        target: Callable[[int], NDArray[np.uint8]],
        memory: Memory,
        ended: Callable[[bool], None],
    ) -> None:
        """Copy a pool into as many bytes of ``target``; see `_run` for ``ended``.

        :raises AsyncnnError: if the pool cannot be mapped or memory reserved.
        """
        await self._run(partial(_fill, self._mapper, target, memory), memory, ended)

    async def empty(
        self,
        source: Callable[[int], NDArray[np.uint8]],
        memory: Memory,
        ended: Callable[[bool], None],
    ) -> None:
        """Copy as many bytes of ``source`` into a pool; see `_run` for ``ended``.

        :raises AsyncnnError: if the pool cannot be mapped, or written to.
        """
        await self._run(partial(_empty, self._mapper, source, memory), memory, ended)

    def check_open(self) -> None:
        """Check that the device takes work.

        :raises DeviceUnavailableError: if it does not.
        """
        cause = self.cause_of_death()
        if cause is not None:
            raise cause

    def rest(self) -> None:
        """Give back what is not needed until the next copy."""
        self._mapper.trim()

    def close(self) -> None:
        """Give everything back."""
        self.rest()
        self._mapper.close()

    async def wait_ended(self) -> None:
        """Wait for the copies under way."""
        if self._copies:
            await asyncio.wait(self._copies)

    async def _run(
        self, copy: Callable[[], None], memory: Memory, ended: Callable[[bool], None]
    ) -> None:
        """Run ``copy``, and tell ``ended``, once, whether it has gone well.

        That is when it is over, even if the caller was cancelled before.
        """
        if memory.buffer is not None and memory.size <= SHORT_BYTES:
            has_succeeded = False
            try:
                copy()
                has_succeeded = True
            finally:
                ended(has_succeeded)
            return
        copied = asyncio.get_running_loop().create_task(self._offload(copy))
        self._copies.add(copied)
        copied.add_done_callback(self._copies.discard)
        copied.add_done_callback(
            lambda done: ended(not done.cancelled() and done.exception() is None)
        )
        await asyncio.shield(copied)


def _fill(
    mapper: Mapper, target: Callable[[int], NDArray[np.uint8]], memory: Memory
) -> None:
    data = _bytes(mapper.map(memory))
    np.copyto(target(memory.size), data)


def _empty(
    mapper: Mapper, source: Callable[[int], NDArray[np.uint8]], memory: Memory
) -> None:
    mapped = mapper.map(memory)
    data = _bytes(mapped)
    if not data.flags.writeable:
        raise InvalidArgumentError("the pool to copy to is read-only")
    np.copyto(data, source(memory.size))
    mapper.flush(mapped)


def _bytes(mapped: Memory) -> NDArray[np.uint8]:
    assert mapped.buffer is not None
    if not mapped.size:
        return np.empty(0, np.uint8)
    return np.frombuffer(mapped.buffer, np.uint8, mapped.size)
