"""The memory between partitions, and the request of each partition.

A `Space` belongs to one execution at a time. Tensors of known size lie in one shared
pool, so that devices of other processes work on them where they are. A tensor of a size
that only its maker knows gets a pool of its own: what was enough last time, or more if
the maker says so.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from asyncnn import hal
from asyncnn.execution import reusable
from asyncnn.hal.operands import element_size_bytes, size_of_data_bytes
from asyncnn.memory.slabs import Part, allocate_in_slab, retire
from asyncnn.runtime.framework.partition import is_open
from asyncnn.runtime.framework.submodels import ArgumentSource, Kind, SubModels
from asyncnn.runtime.requests import FIRST_GUESS_BYTES

MOST_IDLE = 2
"""Spaces of one model that are kept for its next executions."""

_AnyPool = hal.Memory | hal.BufferToken


class NeedsWholeError(hal.GeneralFailureError):
    """A tensor between partitions cannot be handed on: the model must run as one."""


class Reservation(msgspec.Struct, frozen=True, eq=False):
    """Buffers for the intermediate tensors of one execution at a time, by number.

    The buffers go with this.
    """

    tokens: dict[int, hal.BufferToken]
    _buffers: tuple[hal.IBuffer, ...]


_Place = tuple[Kind, int]
"""Which tensor: an intermediate one, or an output that the client omits."""


class Space:
    """Memory for one execution; `Spaces` makes it. Some may be ``reserved``."""

    def __init__(
        self,
        plan: SubModels,
        learned: dict[_Place, int],
        most: int,
        reserved: Reservation | None = None,
    ) -> None:
        self.reserved = reserved
        self._plan = plan
        self._tokens = {} if reserved is None else reserved.tokens
        self._learned = learned
        self._most = most
        self._memory = None
        if plan.total_bytes:
            _check(plan.total_bytes, most)
            self._memory = allocate_in_slab(plan.total_bytes)
        self._own: dict[_Place, hal.Memory] = {}
        self._shapes: dict[tuple[Kind, int], hal.Dimensions] = {}
        self._last: Callable[[], hal.Request | None] = lambda: None
        self._known: dict[int, hal.Request] = {}

    def request_of(
        self, index: int, request: hal.Request, prepared: hal.IPreparedModel
    ) -> hal.Request:
        """Return the request of partition ``index`` in an execution of ``request``.

        They are the same again where that comes again, as ``prepared``, which
        is the partition's most often, has bound them.

        :raises NeedsWholeError: if a tensor that is read further on is of no size.
        :raises AsyncnnError: if there is no memory.
        """
        if self._last() is not request:
            known = self._known
            known.clear()
            # They go with it: they have its pools, and this space may long be idle.
            self._last = weakref.ref(request, lambda _: known.clear())
        found = self._known.get(index)
        if found is None:
            found = self._build(index, request)
            if self._plan.is_static:
                with suppress(
                    hal.AsyncnnError
                ):  # what is wrong shows when it is executed
                    found = reusable(prepared, found)
                self._known[index] = found
        return found

    def learn(self, index: int, shapes: Sequence[hal.OutputShape]) -> None:
        """Note the shapes of what partition ``index`` has written.

        :raises NeedsWholeError: if one cannot be handed on: it is empty.
        """
        if self._plan.is_static:
            return
        for source, shape in zip(self._plan.steps[index].outputs, shapes, strict=False):
            if is_open(source.operand) and source.kind is not Kind.INPUT:
                self._shapes[source.kind, source.position] = shape.dimensions

    def grow(self, index: int, shapes: Sequence[hal.OutputShape]) -> bool:
        """Make room for what had too little; False if an output of the client's has.

        :raises AsyncnnError: if there is no memory.
        """
        grown = False
        for source, shape in zip(self._plan.steps[index].outputs, shapes, strict=False):
            if shape.is_sufficient:
                continue
            place = source.kind, source.position
            is_ours = source.kind is Kind.INTERMEDIATE or place in self._own
            if not is_ours or not is_open(source.operand):
                return False
            element = element_size_bytes(source.operand.type)
            before = self._learned.get(place, 0)
            needed = math.prod(axis or 1 for axis in shape.dimensions) * element
            self._learned[place] = max(needed, 2 * before)
            self._own.pop(place, None)
            grown = True
        return grown

    def move_outputs(self, index: int) -> None:
        """Give what partition ``index`` writes another place.

        :raises AsyncnnError: if there is no memory.
        """
        self._known.clear()
        for source in self._plan.steps[index].outputs:
            place = source.kind, source.position
            self._own.pop(place, None)
            if source.kind is Kind.INTERMEDIATE:
                size = self._plan.intermediates[source.position].size
                if size:
                    self._own[place] = allocate_in_slab(size)

    def retire(self) -> None:
        """Have the memory not be used again: a device may still be writing there."""
        retire([self._memory, *self._own.values()])

    def clear(self) -> None:
        """Forget what holds for one execution only."""
        if not self._plan.is_static:  # else requests that come again name it
            self._own.clear()
        self._shapes.clear()

    def _build(self, index: int, request: hal.Request) -> hal.Request:
        step = self._plan.steps[index]
        pools = _RequestPools()
        inputs = tuple(self._input(each, request, pools) for each in step.inputs)
        outputs = tuple(self._output(each, request, pools) for each in step.outputs)
        return hal.Request(inputs, outputs, tuple(pools.pools))

    def _input(
        self, source: ArgumentSource, request: hal.Request, pools: "_RequestPools"
    ) -> hal.RequestArgument:
        if source.kind is Kind.INPUT:
            return pools.moved(request.inputs[source.position], request)
        dimensions: hal.Dimensions = ()
        full = source.operand.dimensions
        if is_open(source.operand):
            full = dimensions = self._shapes[source.kind, source.position]
            if not full or 0 in full:
                raise NeedsWholeError("a tensor between partitions is empty")
        size = size_of_data_bytes(source.operand.type, full)
        memory: _AnyPool
        if source.kind is Kind.INTERMEDIATE and source.position in self._tokens:
            return self._buffer(source, pools)
        if self._is_ours(source, request):
            memory, offset = self._place(source)
        else:
            given = request.outputs[source.position]
            memory = request.pools[given.location.pool_index]
            offset = given.location.offset
        at = hal.DataLocation(pools.number(memory), offset, size)
        return hal.RequestArgument(location=at, dimensions=dimensions)

    def _output(
        self, source: ArgumentSource, request: hal.Request, pools: "_RequestPools"
    ) -> hal.RequestArgument:
        if not self._is_ours(source, request):
            return pools.moved(request.outputs[source.position], request)
        if source.kind is Kind.INTERMEDIATE and source.position in self._tokens:
            return self._buffer(source, pools)
        has_place = (
            source.kind is Kind.INTERMEDIATE
            or (source.kind, source.position) in self._own
        )
        if has_place and not is_open(source.operand):
            memory, offset = self._place(source)
            size = size_of_data_bytes(source.operand.type, source.operand.dimensions)
        else:
            memory, offset, size = self._room(source)
        return hal.RequestArgument(
            location=hal.DataLocation(pools.number(memory), offset, size)
        )

    def _buffer(
        self, source: ArgumentSource, pools: "_RequestPools"
    ) -> hal.RequestArgument:
        number = pools.number(self._tokens[source.position])
        return hal.RequestArgument(location=hal.DataLocation(number, 0, 0))

    def _is_ours(self, source: ArgumentSource, request: hal.Request) -> bool:
        """Return whether a tensor lies here: an output that is read, but not wanted."""
        if source.kind is Kind.INTERMEDIATE:
            return True
        return (
            source.position in self._plan.outputs_read
            and request.outputs[source.position].has_no_value
        )

    def _place(self, source: ArgumentSource) -> tuple[hal.Memory, int]:
        own = self._own.get((source.kind, source.position))
        if own is not None:
            return own, 0
        assert self._memory is not None
        return self._memory, self._plan.intermediates[source.position].offset

    def _room(self, source: ArgumentSource) -> tuple[hal.Memory, int, int]:
        place, operand = (source.kind, source.position), source.operand
        if is_open(operand):
            element = element_size_bytes(operand.type)
            least = math.prod(axis or 1 for axis in operand.dimensions) * element
            size = self._learned.get(place, max(least, FIRST_GUESS_BYTES))
            self._learned[place] = size
        else:
            size = size_of_data_bytes(operand.type, operand.dimensions)
        _check(size, self._most)
        memory = self._own[place] = allocate_in_slab(size)
        return memory, 0, size


class Spaces:
    """The spaces of one prepared model: a few are kept for what comes next."""

    def __init__(
        self, plan: SubModels, max_bytes: int, reserved: Reservation | None = None
    ) -> None:
        self._plan = plan
        self._max_bytes = max_bytes
        self.is_static = plan.is_static
        self._learned: dict[_Place, int] = {}
        self._idle: list[Space] = []
        self._with_buffers: Space | None = None
        if reserved is not None:
            self._with_buffers = Space(plan, self._learned, max_bytes, reserved)

    def are_shared(self, request: hal.Request) -> bool:
        """Return whether other processes see all that partitions hand on in place."""
        for position in self._plan.outputs_read:
            argument = request.outputs[position]
            if argument.has_no_value:
                continue  # then it lies in a slab
            pool = request.pools[argument.location.pool_index]
            if not isinstance(pool, Part) and not (
                isinstance(pool, hal.Memory) and pool.handle.fds
            ):
                return False
        return True

    def take(self, *, in_order: bool = True) -> Space:
        """Return a space that nothing uses.

        One execution at a time has buffers of devices, unless its partitions are not
        launched ``in_order``, each after the one before has ended.

        :raises AsyncnnError: if there is no memory.
        """
        if self._with_buffers is not None and in_order:
            space, self._with_buffers = self._with_buffers, None
            return space
        if self._idle:
            return self._idle.pop()
        return Space(self._plan, self._learned, self._max_bytes)

    def give_back(self, space: Space, *, is_clean: bool) -> None:
        """Take a space back; one that is not clean may still be written to."""
        if not is_clean:
            space.retire()  # with its buffers, if it has some
        elif space.reserved is not None:
            space.clear()
            self._with_buffers = space
        elif len(self._idle) < MOST_IDLE:
            space.clear()
            self._idle.append(space)

    def trim(self) -> None:
        """Let go of the spaces that nothing uses."""
        self._idle.clear()


class _RequestPools:
    """Collects the pools of one request."""

    def __init__(self) -> None:
        self.pools: list[_AnyPool] = []
        self._numbers: dict[int, int] = {}

    def number(self, pool: _AnyPool) -> int:
        number = self._numbers.get(id(pool))
        if number is None:
            number = self._numbers[id(pool)] = len(self.pools)
            self.pools.append(pool)
        return number

    def moved(
        self, argument: hal.RequestArgument, request: hal.Request
    ) -> hal.RequestArgument:
        if argument.has_no_value:
            return argument
        at = argument.location
        number = self.number(request.pools[at.pool_index])
        if number == at.pool_index:
            return argument
        return hal.RequestArgument(
            location=hal.DataLocation(number, at.offset, at.length),
            dimensions=argument.dimensions,
        )


def _check(size: int, most: int) -> None:
    if size > most:
        raise hal.ResourceExhaustedPersistentError(
            f"{size} bytes between partitions: "
            f"FrameworkSettings.max_intermediate_bytes is {most}"
        )
