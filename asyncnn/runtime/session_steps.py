"""The calls that a session's steps consist of, each built once."""

from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple, TypeAlias

from numpy.typing import ArrayLike

from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions, Memory, Request
from asyncnn.runtime.buffers import SHORT_BYTES, MakeArray, Places, Slot
from asyncnn.runtime.burst import open_carry
from asyncnn.runtime.model import TensorInfo, has_fixed_shape
from asyncnn.runtime.requests import InputCheck, Tensor
from asyncnn.runtime.reusable import Carry, ReusableExecution, Target
from asyncnn.runtime.states import Kept, StatePlaces, allocated, placed_among

State: TypeAlias = Mapping[str, ArrayLike]
"""Arrays by the names of the states, of their dtypes and shapes."""


class SessionModel(NamedTuple):
    """What all sessions of a prepared model share.

    To the ``target``, states are inputs and outputs; ``check`` is for a step's own
    inputs. ``device`` allocates buffers.
    """

    target: Target
    kept: Kept
    check: InputCheck
    slots: Sequence[tuple[Slot, Slot]]
    device: IDevice | None
    make_array: MakeArray

    async def allocate(
        self, shapes: Sequence[Dimensions], kept: Sequence[Tensor] | None
    ) -> StatePlaces:
        """Return places of these shapes for the state; those ``kept`` come first.

        :raises AsyncnnError: if the driver is gone, or has too many buffers.
        """
        how = self.device, self.slots, self.make_array, shapes
        first = await allocated(*how) if kept is None else kept
        return StatePlaces(first, await allocated(*how), shapes)

    def burst(
        self, *, spins: bool = True
    ) -> AbstractAsyncContextManager[tuple[object, Carry]]:
        """Open what executes steps by burst, for an ``async with`` block.

        :raises AsyncnnError: if the driver refuses it.
        """
        return open_carry(self.target, spins=spins, names_buffers=True)


HELD = 2
"""The state lies in neither of the driver's two places, but in arrays here."""

BESIDE = (1, 0, 0)
"""The place that a step writes which reads place 0, place 1, or what is held."""


class StepCalls:
    """The calls of a session, over arrays of its own, one for each direction.

    What a step that was given up may still be using is never used again: the session
    makes other steps then. ``inputs`` are what a step's own are copied to; whoever
    moves some has to `rebind`. If all arrays are known to be few, steps are short.
    """

    def __init__(self, model: SessionModel, carry: Carry) -> None:
        make, kept = model.make_array, model.kept
        self._model = model
        self._carry = carry
        self.inputs = Places([_array_for(info, make) for info in kept.inputs], make)
        self._out = [_array_for(info, make) for info in kept.outputs]
        arrays = *self.inputs.arrays, *self._out
        sizes = [array.nbytes for array in arrays if array is not None]
        self.is_short = len(sizes) == len(arrays) and sum(sizes) <= SHORT_BYTES
        # From place 0, from place 1, and from what is held.
        self._calls: list[ReusableExecution | None] = [None] * 3
        self._before: list[Sequence[Tensor]] = [()] * 3
        self._pools: list[Memory] = []

    def hold(self, state: Sequence[Array]) -> None:
        """Have the next step begin with arrays of the application."""
        self._calls[HELD] = None
        self._before[HELD] = tuple(map(self._model.kept.placed, state))

    def forget_held(self) -> None:
        """Let go of what was held: the state lies in the places."""
        self._calls[HELD] = None
        self._before[HELD] = ()

    def call(self, places: StatePlaces, now: int) -> ReusableExecution:
        """Return the call from where the state is ``now`` to the place beside it."""
        if now != HELD:
            self._before[now] = places.pair[now]
        call = self._calls[now]
        if call is None:
            # Not a method of this: a cycle would keep buffers until garbage is
            # collected.
            kept = self._model.kept
            build = partial(_build, kept, self._pools)
            target = self._model.target._replace(build_request=build)
            out = placed_among(self._out, places.pair[BESIDE[now]], kept.written)
            call = ReusableExecution(target, self._given(now), out, self._carry)
            self._calls[now] = call
        return call

    def _given(self, which: int) -> Sequence[Tensor | None]:
        return placed_among(
            self.inputs.arrays, self._before[which], self._model.kept.read
        )

    def rebind(self) -> None:
        """Have the calls read inputs where they lie now."""
        self._pools.clear()
        for which, call in enumerate(self._calls):
            if call is not None:
                call.rebind(self._given(which))


def _array_for(info: TensorInfo, make: MakeArray) -> Array | None:
    return make(info.dimensions, info.dtype) if has_fixed_shape(info) else None


def _build(
    kept: Kept,
    known: list[Memory],
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
) -> Request:
    """Return a request that has pools of the others where the arrays are theirs."""
    request = kept.request(inputs, outputs)
    sides = (inputs, kept.read), (outputs, kept.written)
    mine = {
        id(tensor)
        for tensors, states in sides
        for position, tensor in enumerate(tensors)
        if position not in states
    }
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
