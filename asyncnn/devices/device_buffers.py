"""Device-managed buffers: allocation, tokens, and copies from and to pools.

`Buffers` are of one device, `ReferenceBuffer` is one as its client has it. Short
copies run on the event loop, others on a thread. What executions do with buffers is in
`buffer_use`.

Source: HAL 1.3/IDevice.hal (allocate), 1.3/IBuffer.hal.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn import hal
from asyncnn.devices.buffer_use import BufferUse, KnownBuffer
from asyncnn.hal.operands import dtype_of, element_size_bytes
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.validate.buffers import BufferPlan, checked_contents, plan_buffer
from asyncnn.hal.validate.rules import checked_size_bytes, malformed_as_invalid
from asyncnn.logs import SparseLogger
from asyncnn.memory.managed import Account, ManagedBuffer
from asyncnn.memory.mapping import Mapper
from asyncnn.offload import SerialOffload
from asyncnn.qos import Client, calling_client

logger = logging.getLogger(__name__)
_log = SparseLogger(logger)  # clients may ask as often as they like


FREQUENCY = {
    "BufferRole.frequency": "not used: a buffer has one layout, and all memory is alike"
}
RELAXED = "Model.relax_computation_float32_to_float16"
HAL_HINTS: Mapping[str, str] = {**FREQUENCY, RELAXED: "not used: kernels have float32"}
"""What is made of hints of the HAL, in words."""

_TOKENS_FROM = 1 << 31
"""Tokens are large, so that nobody takes one for a small number."""

MAX_PLANS = 256
"""Plans of buffers that are kept for others of one model that are alike."""

_SHORT_COPY_BYTES = 2**20
"""Copying no more takes the loop about as long as handing it to a thread would."""


class Buffers:
    """The buffers of one device that are alive, and copies. Belongs to the event loop.

    Buffers of one client hold at most ``max_bytes``. ``cause_of_death`` says why the
    device takes no work any more, if so. `close` is final but for copies under way.
    """

    def __init__(
        self,
        max_bytes: int,
        cause_of_death: Callable[[], hal.DeviceUnavailableError | None],
    ) -> None:
        self._max_bytes = max_bytes
        self._known: WeakValueDictionary[int, KnownBuffer] = WeakValueDictionary()
        self._accounts: WeakKeyDictionary[Client, Account] = WeakKeyDictionary()
        self.cause_of_death = cause_of_death
        self._mapper = Mapper()
        self._offload = SerialOffload()
        self._copies: set[asyncio.Task[None]] = set()

    def of(self, model: hal.Model) -> "ModelBuffers":
        """Return what stands for a prepared model in the roles of buffers."""
        return ModelBuffers(self, model)

    def allocate(
        self,
        desc: hal.BufferDesc,
        models: Sequence["ModelBuffers | None"],
        input_roles: Sequence[hal.BufferRole],
        output_roles: Sequence[hal.BufferRole],
    ) -> tuple["ReferenceBuffer", int]:
        """Allocate a buffer; return it and its token. None stands for a foreign model.

        :raises DeviceUnavailableError: if the device takes no work.
        :raises InvalidArgumentError: if a rule is broken.
        :raises GeneralFailureError: if buffers of that type are not supported, or there
            is no memory left.
        """
        self.check_open()
        plan = plan_buffer(
            desc,
            [(m, m.model) if m and m.buffers is self else None for m in models],
            input_roles,
            output_roles,
        )
        if len(models) == 1 and models[0] is not None:
            plan = models[0].same_plan(plan)
        operand = plan.operand
        if not element_size_bytes(operand.type):
            raise hal.GeneralFailureError(f"no buffers of type {operand.type}")
        token = self._new_token()
        managed = ManagedBuffer(token, dtype_of(operand.type), self._account())
        if plan.is_fixed:
            checked_size_bytes(operand.type, operand.dimensions, "A4")
            try:
                managed.reserve(operand.dimensions)
            except hal.AsyncnnError as error:
                _log.log(logging.WARNING, "no buffer allocated: %s", error)
                raise hal.GeneralFailureError(str(error)) from error
        known = self._known[token] = KnownBuffer(managed, plan)
        return ReferenceBuffer(known, self), token

    def find(self, pool: hal.BufferToken) -> KnownBuffer:
        """Return the buffer of a token.

        :raises InvalidArgumentError: if there is none.
        """
        known = self._known.get(pool.token)
        if known is None:
            raise hal.InvalidArgumentError(f"there is no buffer {pool.token}")
        return known

    async def run(
        self,
        copy: Callable[[Mapper], None],
        memory: hal.Memory,
        ended: Callable[[bool], None],
    ) -> None:
        """Run ``copy`` from or to ``memory``; call ``ended``, once, if it went well.

        That is when it is over, even if the caller was cancelled before.

        :raises AsyncnnError: if the pool cannot be mapped or written to, or memory
            reserved.
        """
        if memory.buffer is not None and memory.size <= _SHORT_COPY_BYTES:
            has_succeeded = False
            try:
                copy(self._mapper)
                has_succeeded = True
            finally:
                ended(has_succeeded)
            return
        # A task of its own: the thread uses the memory even if the caller is cancelled.
        copied = asyncio.get_running_loop().create_task(
            self._offload(copy, self._mapper)
        )
        self._copies.add(copied)
        copied.add_done_callback(self._copies.discard)
        copied.add_done_callback(
            lambda done: ended(not done.cancelled() and done.exception() is None)
        )
        await asyncio.shield(copied)

    def check_open(self) -> None:
        """Raise a `DeviceUnavailableError` if the device takes no work."""
        cause = self.cause_of_death()
        if cause is not None:
            raise cause

    def trim(self) -> None:
        """Unmap what is not needed until the next copy."""
        self._mapper.trim()

    def close(self) -> None:
        """Unmap everything; buffers go with their last user."""
        self._mapper.close()

    async def wait_ended(self) -> None:
        """Wait for the copies under way."""
        if self._copies:
            await asyncio.wait(self._copies)

    def used_bytes(self, client: Client) -> int:
        """Return the bytes that the buffers of ``client`` hold."""
        account = self._accounts.get(client)
        return 0 if account is None else account.used_bytes

    def _new_token(self) -> int:
        """Return a token that nobody can guess."""
        while True:
            token = _TOKENS_FROM | int.from_bytes(os.urandom(4)) >> 1
            if token not in self._known:
                return token

    def _account(self) -> Account:
        client = calling_client.get()
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = Account(self._max_bytes)
        return account


class ModelBuffers(msgspec.Struct, frozen=True, eq=False):
    """A prepared model's way to the buffers of its device, and its identity there."""

    buffers: Buffers
    model: hal.Model
    _plans: dict[BufferPlan, BufferPlan] = msgspec.field(default_factory=dict)

    def use(self, request: hal.Request, found: Mapping[int, KnownBuffer]) -> BufferUse:
        """Return what a validated request does with the buffers that it names.

        :raises InvalidArgumentError: if one has no such role, or is used as an output
            beside something else.
        """
        return BufferUse(self, self.model, request, found)

    def found(self, request: hal.Request) -> dict[int, KnownBuffer]:
        """Return the buffers that a validated request names, by position of the pool.

        :raises InvalidArgumentError: if one is unknown.
        """
        if hal.BufferToken not in map(type, request.pools):
            return {}
        return {
            index: self.buffers.find(pool)
            for index, pool in enumerate(request.pools)
            if isinstance(pool, hal.BufferToken)
        }

    def same_plan(self, plan: BufferPlan) -> BufferPlan:
        """Return a plan that is equal, and the same for all buffers that are alike."""
        if len(self._plans) == MAX_PLANS:
            self._plans.clear()
        return self._plans.setdefault(plan, plan)


class ReferenceBuffer:
    """An `IBuffer`; the buffer goes with it, once no execution uses it."""

    __slots__ = ("__weakref__", "_buffers", "_known")

    def __init__(self, known: KnownBuffer, buffers: Buffers) -> None:
        self._known = known
        self._buffers = buffers

    @property
    def is_fixed(self) -> bool:
        """Whether the shape of its contents is known beforehand."""
        return self._known.plan.is_fixed

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return why its device takes no work any more; see `IMortal`."""
        return self._buffers.cause_of_death()

    async def copy_to(self, destination: hal.Memory) -> hal.ErrorStatus:
        """Copy the contents; see `IBuffer.copy_to`."""
        try:
            self._buffers.check_open()
            await self._copy_to(destination)
        except hal.AsyncnnError as error:
            logger.info("copy from a buffer failed: %s", error)
            return error.status
        return hal.ErrorStatus.NONE

    async def copy_from(
        self, source: hal.Memory, dimensions: hal.Dimensions
    ) -> hal.ErrorStatus:
        """Set the contents; see `IBuffer.copy_from`."""
        try:
            self._buffers.check_open()
            await self._copy_from(source, dimensions)
        except hal.AsyncnnError as error:
            logger.info("copy to a buffer failed: %s", error)
            return error.status
        return hal.ErrorStatus.NONE

    async def _copy_to(self, destination: hal.Memory) -> None:
        managed, plan = self._known.managed, self._known.plan
        _check_pool(destination)
        dimensions = managed.current
        if dimensions is None and plan.is_fixed:
            dimensions = plan.operand.dimensions
        if dimensions is not None:
            _check_size(destination, managed.size_bytes(dimensions))
        claimed = managed.begin_reading()
        copy = partial(_copy_out, claimed.storage.reserve, destination)
        await self._buffers.run(copy, destination, lambda _: managed.end_reading())

    async def _copy_from(self, source: hal.Memory, dimensions: hal.Dimensions) -> None:
        managed = self._known.managed
        try:
            _check_pool(source)
            complete = checked_contents(self._known.plan, dimensions)
            _check_size(source, managed.size_bytes(complete))
        except hal.InvalidArgumentError:
            managed.discard()  # as after any copy that fails
            raise
        claimed = managed.begin_writing()
        copy = partial(_copy_in, claimed.storage.reserve, source)
        await self._buffers.run(copy, source, partial(self._filled, complete))

    def _filled(self, dimensions: hal.Dimensions, has_succeeded: bool) -> None:
        self._known.managed.end_writing(dimensions if has_succeeded else None)


def _check_pool(memory: hal.Memory) -> None:
    with malformed_as_invalid("pool"):
        validate_memory(memory, rule="B2")


def _check_size(memory: hal.Memory, expected: int) -> None:
    if memory.size != expected:
        raise hal.InvalidArgumentError(
            f"the pool has {memory.size} bytes, the contents {expected} [B2]"
        )


def _copy_in(
    target: Callable[[int], NDArray[np.uint8]], memory: hal.Memory, mapper: Mapper
) -> None:
    data = _bytes(mapper.map(memory))
    np.copyto(target(memory.size), data)


def _copy_out(
    source: Callable[[int], NDArray[np.uint8]], memory: hal.Memory, mapper: Mapper
) -> None:
    mapped = mapper.map(memory)
    data = _bytes(mapped)
    if not data.flags.writeable:
        raise hal.InvalidArgumentError("the pool to copy to is read-only")
    np.copyto(data, source(memory.size))
    mapper.flush(mapped)


def _bytes(mapped: hal.Memory) -> NDArray[np.uint8]:
    assert mapped.buffer is not None
    if not mapped.size:
        return np.empty(0, np.uint8)
    return np.frombuffer(mapped.buffer, np.uint8, mapped.size)
