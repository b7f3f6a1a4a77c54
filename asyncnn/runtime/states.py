"""What a model keeps from step to step: what that is, its requests, and its places.

`pairs_by_name` finds inputs and outputs of a file that are state. Callers of runs name
inputs and outputs alone: `StatefulRequests` adds the state, which the HAL knows as
further ones. To a session it is inputs and outputs like others, which `Kept` describes;
`StatePlaces` are where it lies.
"""

import asyncio
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from asyncnn.hal.errors import (
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.hal.interfaces import IDevice, IMortal, IPreparedModel
from asyncnn.hal.operands import has_lengths
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions, Request
from asyncnn.memory.slabs import place_of
from asyncnn.runtime.buffers import DeviceBuffer, MakeArray, Slot, allocate_buffer
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.requests import RequestBuilder, Tensor

logger = logging.getLogger(__name__)


_MEMORY_WORDS = """
buf buffer c cache cached caches cell cells context ctx cx gru h hidden history hx lstm
mem memory rnn state states
"""
_MEMORY = frozenset(_MEMORY_WORDS.split())
"""Words for what is kept."""

_EARLIER = frozenset(["last", "old", "past", "prev", "previous"])
_LATER = frozenset(["new", "next", "present", "updated"])
"""Words for before a step and after it, whatever is kept."""

_GOING_IN = frozenset(["0", "i", "in", "init", "initial", "input"])
_COMING_OUT = frozenset(["final", "n", "o", "out", "output"])
"""Words for which end it is, of what is known to be kept."""

_RESULT = re.compile(r":\d+$")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def pairs_by_name(model: NamedModel) -> dict[str, str]:
    """Return inputs that are state beyond doubt, each with its next value.

    Both are of one type, quantisation and shape. Their names differ by one word at the
    beginning or end that says which is which, and no other input or output has a part
    in that. The model has others, too.
    """
    if min(len(model.inputs), len(model.outputs)) < 2:
        return {}
    inputs = {info.name: info for info in model.inputs}
    earlier = states_before(inputs, (info.name for info in model.outputs))
    matches = [
        (name, after.name)
        for after in model.outputs
        for name in earlier.get(after.name, ())
        if inputs[name].is_like(after)
        and has_known_shape(inputs[name])
        and inputs[name].axes == after.axes
    ]
    counts = Counter(chain.from_iterable(enumerate(each) for each in matches))
    pairs = {
        before: after
        for before, after in matches
        if counts[0, before] == counts[1, after] == 1
    }
    if len(pairs) in (len(model.inputs), len(model.outputs)):
        return {}
    return {name: pairs[name] for name in inputs if name in pairs}


def states_before(befores: Iterable[str], afters: Iterable[str]) -> dict[str, set[str]]:
    """Return names of states before a step, by the names of those after it.

    They differ by one word at the beginning or end that says which is which.
    """
    marked = defaultdict[tuple[str, ...], list[tuple[str, str]]](list)
    for name in befores:
        for mark, rest in _parted(_words(name)):
            marked[rest].append((mark, name))
    found = defaultdict[str, set[str]](set)
    for after in afters:
        for other, rest in _parted(_words(after)):
            for mark, name in marked.get(rest, ()) if rest else ():
                if _is_step(mark, other, rest):
                    found[after].add(name)
    return found


def has_known_shape(info: TensorInfo) -> bool:
    """Return whether each axis has a length or a name."""
    return bool(info.dimensions) and "?" not in info.lengths


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name, such as ``h`` and ``n`` of ``hn``.

    What TensorFlow adds, the number of an operation's result, is none of them.
    """
    words = [word.lower() for word in _WORD.findall(_RESULT.sub("", name))]
    if words and words[-1].endswith("n") and words[-1][:-1] in _MEMORY:
        words[-1:] = words[-1][:-1], "n"
    return tuple(words)


def _is_step(mark: str, other: str, rest: tuple[str, ...]) -> bool:
    """Return whether words mark what ``rest`` names before and after a step."""
    is_later = other in _LATER and (not mark or mark in _EARLIER | _GOING_IN)
    is_out = other in _COMING_OUT and mark in _GOING_IN | {""}
    is_earlier = mark in _EARLIER and other in _COMING_OUT | {""}
    return is_later or ((is_out or is_earlier) and not _MEMORY.isdisjoint(rest))


def _parted(words: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield no word and all, the first and the rest, the last and those before."""
    yield "", words
    yield words[0] if words else "", words[1:]
    yield words[-1] if words else "", words[:-1]


def no_state(model: NamedModel) -> InvalidArgumentError:
    """Return the error for a session of a model that keeps nothing."""
    alike = [
        (before.name, after.name)
        for before in model.inputs
        for after in model.outputs
        if before.is_like(after)
    ]
    import shlex

    one, two = alike[0] if alike else ("INPUT", "OUTPUT")
    return InvalidArgumentError(
        "the model keeps no state, so it has no sessions",
        hint="if an input is to be an output of the step before, say so when it is "
        f"loaded: asyncnn.load(path, states={{{one!r}: {two!r}}}), or "
        f"{shlex.join(('--state', f'{one}={two}'))}",
    )


class StatefulRequests:
    """Makes requests of a model with state from the inputs and outputs of its callers.

    A call is a `RequestBuilder`'s: a run of its own, which begins with the first
    values, and whose state is thrown away. ``make_array`` is the device's.
    """

    def __init__(self, model: NamedModel, make_array: MakeArray) -> None:
        infos = tuple(state.info for state in model.states)
        self._made = [(info.dimensions, info.dtype) for info in infos]
        self._build = RequestBuilder((*model.inputs, *infos), (*model.outputs, *infos))
        self._first = tuple(state.first_value() for state in model.states)
        self._make_array = make_array
        self._first_shared: tuple[Array, ...] | None = None

    def __call__(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> Request:
        """Return the request of a run that has no step before or after it."""
        first = self._first
        make: MakeArray = np.empty
        # Beside arrays that the driver sees, as bursts' are, it sees the state.
        if self._make_array is not np.empty and _are_shared((*inputs, *outputs)):
            if self._first_shared is None:
                self._first_shared = tuple(_placed(a, self._make_array) for a in first)
            first, make = self._first_shared, self._make_array
        # Of each run its own: kernels may compute in the memory of outputs.
        unused = [make(*each) for each in self._made]
        return self._build((*inputs, *first), (*outputs, *unused))

    def completed(self, tensors: Sequence[Tensor], split: int) -> tuple[Tensor, ...]:
        """Return tensors with the state in its places, behind ``split`` inputs."""
        unused = [np.empty(*each) for each in self._made]
        return *tensors[:split], *self._first, *tensors[split:], *unused


def _placed(array: Array, make_array: MakeArray) -> Array:
    place = make_array(array.shape, array.dtype)
    place[...] = array
    return place


class Kept:
    """What sessions of a model keep, and where that is among inputs and outputs.

    Those are ``inputs`` and ``outputs`` that steps take and return, and the states,
    ``infos``, each an input and an output of the `NamedModel.with_open_states`.
    ``first`` are their first values, of length 1 on axes that the model leaves open.
    ``request`` makes the request of a step, with the states in their places.
    """

    def __init__(self, model: NamedModel, make_array: MakeArray) -> None:
        opened = model.with_open_states()
        given = [info.name for info in opened.inputs]
        results = [info.name for info in opened.outputs]
        places = [(given.index(one), results.index(two)) for one, two in opened.pairs]
        self.read = tuple(position for position, _ in places)
        self.written = tuple(position for _, position in places)
        self.inputs = _without(opened.inputs, self.read)
        self.outputs = _without(opened.outputs, self.written)
        self.infos = tuple(state.info for state in model.kept)
        self.first = tuple(state.first_value() for state in model.kept)
        self.request = RequestBuilder(opened.inputs, opened.outputs)
        self._make_array = make_array

    def placed(self, array: Array) -> Array:
        """Return a copy of an array that the device works on where it is."""
        return _placed(array, self._make_array)

    def check_lengths(
        self, inputs: Sequence[Array | None], lengths: Mapping[str, int]
    ) -> None:
        """Check that axes of a step's inputs are as long as the state's.

        :raises InvalidArgumentError: if they are not.
        """
        for axis, length in lengths_by_name(self.inputs, inputs).items():
            if lengths.get(axis, length) != length:
                raise InvalidArgumentError(
                    f"{axis} is {length} in a step, but {lengths[axis]} in the state",
                    hint=f"open the session with state=... for {axis} {length}",
                )

    def checked(self, state: Mapping[str, Any]) -> tuple[Array, ...]:
        """Return copies of arrays by name, in the order of the states.

        :raises InvalidArgumentError: if one is missing, unknown, or of the wrong dtype
            or shape.
        """
        names = [info.name for info in self.infos]
        if set(state) != set(names):
            raise InvalidArgumentError(
                f"the state consists of {names}, not {sorted(state)}"
            )
        arrays: list[Array] = []
        for info in self.infos:
            array = np.asarray(state[info.name])
            fits = has_lengths(array.shape, info.dimensions)
            if array.dtype != info.dtype or not fits or 0 in array.shape:
                shape = ", ".join(info.lengths)
                raise InvalidArgumentError(
                    f"state {info.name} is {info.dtype} [{shape}], not "
                    f"{array.dtype} {list(array.shape)}"
                )
            arrays.append(array.copy())
        return tuple(arrays)


T = TypeVar("T")


def _without(values: Sequence[T], positions: Sequence[int]) -> tuple[T, ...]:
    return tuple(each for k, each in enumerate(values) if k not in positions)


def placed_among(
    values: Sequence[T], others: Sequence[T], positions: Sequence[int]
) -> tuple[T, ...]:
    """Return ``values`` in order, with each of ``others`` at its position."""
    found = dict(zip(positions, others, strict=True))
    rest = iter(values)
    count = len(values) + len(others)
    return tuple(found[k] if k in found else next(rest) for k in range(count))


def lengths_by_name(
    infos: Sequence[TensorInfo], arrays: Sequence[Array | None]
) -> dict[str, int]:
    """Return the lengths that named axes have in arrays."""
    return {
        axis: length
        for info, array in zip(infos, arrays, strict=True)
        if array is not None and info.axes
        for axis, length in zip(info.axes, array.shape, strict=True)
        if axis not in ("", "?")
    }


def _are_shared(tensors: Sequence[Tensor | None]) -> bool:
    return all(
        place_of(tensor) is not None
        for tensor in tensors
        if isinstance(tensor, np.ndarray)
    )


class StatePlaces:
    """Two places for each state, which steps use in turn: read one, write the other.

    They are device-managed buffers, or arrays where the device has none of those.
    ``are_managed`` says which, ``cause_of_death`` why what lies in them is lost.
    """

    def __init__(
        self,
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        shapes: Sequence[Dimensions],
    ) -> None:
        self.pair = tuple(first), tuple(second)
        self.shapes = list(shapes)
        mortals = [place.hal for place in first if isinstance(place, DeviceBuffer)]
        self.are_managed = bool(mortals)
        self.cause_of_death: Callable[[], DeviceUnavailableError | None] = lambda: None
        # All are of one driver.
        if mortals and isinstance(mortals[0], IMortal):
            self.cause_of_death = mortals[0].cause_of_death

    async def read(self, index: int) -> tuple[Array, ...]:
        """Return copies of what lies in one place of each pair.

        :raises AsyncnnError: if the driver is gone.
        """
        return tuple(await asyncio.gather(*map(_copied, self.pair[index])))


async def _copied(place: Tensor) -> Array:
    # A copy in memory of this process alone: states are kept for long.
    return (await place.read() if isinstance(place, DeviceBuffer) else place).copy()


async def allocated(
    device: IDevice | None,
    slots: Sequence[tuple[Slot, Slot]],
    make_array: MakeArray,
    shapes: Sequence[Dimensions],
) -> list[Tensor]:
    """Return new places of these shapes for states, which are ``slots`` of a model.

    :raises AsyncnnError: if the driver is gone, or has too many buffers.
    """
    places: list[Tensor] = []
    for pair, shape in zip(slots, shapes, strict=True):
        try:
            if device is None:
                raise GeneralFailureError("nothing is known of the device")
            places.append(await allocate_buffer(device, pair, shape, make_array))
        except GeneralFailureError as error:
            logger.info("state %s stays in an array: %s", pair[0].info.name, error)
            places.append(make_array(shape, pair[0].info.dtype))
    return places


def slots_of(hal: IPreparedModel, kept: Kept) -> list[tuple[Slot, Slot]]:
    """Return what stands for each state before a step, and after it."""
    places = zip(kept.infos, kept.read, kept.written, strict=True)
    return [
        (Slot(hal, info, read, False), Slot(hal, info, written, True))
        for info, read, written in places
    ]
