"""The calls that a session's steps consist of, each built once."""

from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from asyncnn.burst import BurstController
from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExecutionOptions, Memory, Request
from asyncnn.offload import offload
from asyncnn.runtime.buffers import SHORT_ELEMENTS, MakeArray, Slot
from asyncnn.runtime.burst import open_carry
from asyncnn.runtime.execution_options import Outputs, Path
from asyncnn.runtime.requests import Tensor, has_fixed_shape
from asyncnn.runtime.reusable import Carry, ReusableExecution, Target
from asyncnn.runtime.states import StatefulRequests, StatePlaces

Launch: TypeAlias = Callable[
    [Path, Request, ExecutionOptions], Awaitable[ExecutionResult]
]
"""Executes a request by the HAL call of a path."""

State: TypeAlias = Mapping[str, ArrayLike]
"""Arrays by the names of the states, of their dtypes and shapes."""


class SessionModel(NamedTuple):
    """What all sessions of a prepared model share. ``device`` allocates buffers."""

    target: Target
    requests: StatefulRequests
    slots: Sequence[tuple[Slot, Slot]]
    device: IDevice | None
    make_array: MakeArray

    async def allocate(self, kept: Sequence[Tensor] | None) -> StatePlaces:
        """Return places for the state; see `StatePlaces.allocate`.

        :raises AsyncnnError: if the driver is gone, or has too many buffers.
        """
        return await StatePlaces.allocate(
            self.device, self.slots, self.make_array, kept
        )

    def burst(
        self, *, spins: bool = True
    ) -> AbstractAsyncContextManager[tuple[BurstController, Carry]]:
        """Open what executes steps by burst, for an ``async with`` block.

        :raises AsyncnnError: if the driver refuses it.
        """
        keeps = bool(self.requests.infos)
        return open_carry(self.target, spins=spins, names_buffers=keeps)


class Steps:
    """The calls of a session, over arrays of its own, one for each direction.

    What a step that was given up may still be using is never used again: the session
    makes other steps then. If they are known to be short, it may `place_now` inputs and
    take `copies_now` of outputs.
    """

    __slots__ = (
        "_calls",
        "_carry",
        "_first",
        "_held",
        "_inputs",
        "_model",
        "_out",
        "_pools",
        "is_short",
    )

    def __init__(self, model: SessionModel, carry: Carry) -> None:
        make = model.make_array
        target = model.target
        self._model = model
        self._carry = carry
        self._inputs = [
            make(info.dimensions, info.dtype) if has_fixed_shape(info) else None
            for info in target.check.infos
        ]
        self._out = target.space.allocate(make) if target.space.is_fixed else None
        sizes = [a.size for a in (*self._inputs, *(self._out or ())) if a is not None]
        self.is_short = (
            self._out is not None
            and all(array is not None for array in self._inputs)
            and sum(sizes) <= SHORT_ELEMENTS
        )
        self._calls: list[ReusableExecution | None] = [None, None]
        self._first: ReusableExecution | None = None
        self._held: Sequence[Tensor] = ()
        self._pools: list[Memory] = []

    def hold(self, state: Sequence[Array]) -> None:
        """Have the next step begin with arrays of the application."""
        self._first = None
        self._held = tuple(map(self._model.requests.placed, state))

    def first(self, places: StatePlaces) -> ReusableExecution:
        """Return the call from what is held to the first places."""
        if self._first is None:
            self._first = self._call(self._held, places.pair[0])
        return self._first

    def forget_first(self) -> None:
        """Let go of what was held: the state lies in the places."""
        self._first = None
        self._held = ()

    def call(self, places: StatePlaces, now: int) -> ReusableExecution:
        """Return the call from places ``now`` of the pair to the others."""
        call = self._calls[now]
        if call is None:
            call = self._call(places.pair[now], places.pair[1 - now])
            self._calls[now] = call
        return call

    def _call(
        self, before: Sequence[Tensor], after: Sequence[Tensor]
    ) -> ReusableExecution:
        # Not a method of this: a cycle would keep buffers until garbage is collected.
        build = partial(_build, self._model.requests, self._pools, before, after)
        target = self._model.target._replace(build_request=build)
        return ReusableExecution(target, tuple(self._inputs), self._out, self._carry)

    async def place(self, arrays: Sequence[Array | None]) -> None:
        """Copy inputs to where the calls read them; many elements on a thread."""
        if sum(0 if array is None else array.size for array in arrays) > SHORT_ELEMENTS:
            await offload(self.place_now, arrays)
        else:
            self.place_now(arrays)

    def place_now(self, arrays: Sequence[Array | None]) -> None:
        """Copy inputs, however many their elements."""
        places, has_moved = self._inputs, False
        for position, array in enumerate(arrays):
            place = places[position]
            if array is None:
                has_moved = has_moved or place is not None
                places[position] = None
                continue
            if place is None or place.shape != array.shape:
                place = self._model.make_array(array.shape, array.dtype)
                places[position], has_moved = place, True
            np.copyto(place, array)
        if has_moved:
            self._pools.clear()
            for call in (*self._calls, self._first):
                if call is not None:
                    call.rebind(tuple(places))


def _build(
    requests: StatefulRequests,
    known: list[Memory],
    before: Sequence[Tensor],
    after: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
) -> Request:
    """Return a request that has pools of the others where the arrays are theirs."""
    request = requests.between(before, after, inputs, outputs)
    mine = {id(array) for array in (*inputs, *outputs)}
    pools = tuple(
        _same(pool, known, mine) if type(pool) is Memory else pool
        for pool in request.pools
    )
    return Request(request.inputs, request.outputs, pools)


def _same(pool: Memory, known: list[Memory], mine: Container[int]) -> Memory:
    array = None if pool.buffer is None else pool.buffer.obj
    if id(array) not in mine:
        return pool
    for each in known:
        if each.buffer is not None and each.buffer.obj is array:
            return each
    known.append(pool)
    return pool


async def copies_of(views: Outputs) -> Outputs:
    """Return copies of outputs; those of many elements are made on a thread."""
    if sum(view.size for view in views.values()) > SHORT_ELEMENTS:
        return await offload(copies_now, views)
    return copies_now(views)


def copies_now(views: Outputs) -> Outputs:
    """Return copies of outputs, however many their elements."""
    outputs = Outputs()
    for name, view in views.items():
        outputs[name] = view.copy()
    outputs.timing, outputs.route = views.timing, views.route
    return outputs
