"""Requests of the HAL from arrays of the application, over in-process pools.

`InputCheck` checks and converts inputs, `OutputSpace` makes or checks arrays for
outputs, and `RequestBuilder` makes the request of both.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike

from asyncnn import hal
from asyncnn.execution import Outputs
from asyncnn.extensions.regions import BFLOAT16
from asyncnn.hal.errors import WrongTypeError, counted
from asyncnn.hal.operands import has_lengths, is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.validate import plain_arguments
from asyncnn.lazy import compiled_module
from asyncnn.memory.slabs import place_of
from asyncnn.offload import offload
from asyncnn.runtime.axes import dimensions_of, hint_of_shape
from asyncnn.runtime.buffers import SHORT_BYTES, DeviceBuffer, MakeArray
from asyncnn.runtime.model import TensorInfo, bytes_of, has_fixed_shape

MAX_SPACE_ATTEMPTS = 4
"""Executions tried until outputs of unknown size have found enough space."""

FIRST_GUESS_BYTES = 4096
"""Space for an output whose size nothing is known of."""

Tensor: TypeAlias = Array | DeviceBuffer
"""What an argument of a request lies in."""

_Item_co = TypeVar("_Item_co", covariant=True)


class _Listed(Protocol[_Item_co]):
    """A sequence to type checkers, but no text or bytes, whose ``in`` is pickier."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_Item_co]: ...
    def __getitem__(self, index: int, /) -> _Item_co: ...
    def __contains__(self, value: object, /) -> bool: ...
    def count(self, value: Any, /) -> int: ...


Inputs: TypeAlias = (
    Mapping[str, ArrayLike | DeviceBuffer | None]
    | _Listed[ArrayLike | DeviceBuffer]
    | Array
)
"""Arrays by input name, in the model's order, or the only input itself."""

Results: TypeAlias = Mapping[str, Tensor | None] | Sequence[Tensor | None] | Array
"""Arrays to write to by output name, in the model's order, or for the only output."""

_Arguments: TypeAlias = tuple[hal.RequestArgument, ...]
_Both: TypeAlias = tuple[_Arguments, _Arguments]

MAX_ARGUMENTS = 256
"""Arguments that requests share; models with open shapes may have any number."""

_Taken: TypeAlias = tuple[tuple[Any, ...], Outputs]
_INTEGERS = {np.dtype(np.int32), np.dtype(np.int64)}
_OMITTED = hal.RequestArgument(has_no_value=True)
_NO_HANDLE = hal.Handle()
_built: Any = compiled_module("asyncnn.runtime._arrays", "ASYNCNN_PURE_JOB")


class InputCheck:
    """Checks what a caller passes against ``infos``, and puts it in their order.

    ``kind`` is what errors call it.
    """

    def __init__(self, infos: Sequence[TensorInfo], kind: str = "input") -> None:
        self.infos = infos
        self.names = tuple(info.name for info in infos)
        self._kind = kind
        self._known = frozenset(self.names)
        self._by_name = [(info.name, info.dtype, info.dimensions) for info in infos]
        self._by_place = [(i, *kind) for i, (_, *kind) in enumerate(self._by_name)]

    def __call__(self, inputs: Any) -> Sequence[Array | None]:
        """Return one C-contiguous array for each input; None where it is omitted.

        :raises InvalidArgumentError: if an input is missing, unknown, or of the wrong
            dtype or shape.
        """
        return self.usual(inputs) or [
            _checked(info, value)
            for info, value in zip(self.infos, self.in_order(inputs), strict=True)
        ]

    def usual(self, values: Any) -> Sequence[Array] | None:
        """Return what most callers pass, which needs no second look; None for others.

        C-contiguous, aligned arrays of the model's dtypes, and of shapes that it takes.

        :raises InvalidArgumentError: if there are more or less than the model has.
        """
        known: Sequence[Any] = self._by_place
        if type(values) is dict and len(values) == len(known):
            known = self._by_name
        elif type(values) is not list or len(values) != len(known):
            values = self.in_order(values)
        usual = []
        try:
            for (key, dtype, dimensions), info in zip(known, self.infos, strict=True):
                value = values[key]
                if (
                    type(value) is not np.ndarray
                    or (value.dtype is not dtype and value.dtype != dtype)
                    or (value.shape != dimensions and not _fits(info, value.shape))
                ):
                    return None
                flags = value.flags
                if not (flags.c_contiguous and flags.aligned):
                    return None
                usual.append(value)
        except KeyError:  # whoever looks again says what is missing
            return None
        return usual

    def in_order(self, values: Any) -> Sequence[Any]:
        """Return what a caller passes by name, in order, or alone as a sequence.

        :raises InvalidArgumentError: if one is missing or unknown.
        """
        kind, names, known = self._kind, self.names, self._known
        if type(values) is list and len(values) == len(names):
            return values
        if isinstance(values, np.ndarray) and len(names) == 1:
            return (values,)
        if type(values) is dict or isinstance(values, Mapping):
            if values.keys() != known:
                raise hal.InvalidArgumentError(_name_error(kind, names, known, values))
            return [values[name] for name in names]
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise WrongTypeError(
                f"{kind}s cannot be of type {type(values).__name__}, and the model has "
                f"{counted(len(names), kind)}: {', '.join(names)}",
                hint="pass arrays by name, {name: array}, or all in order in a list",
            )
        if len(values) != len(names):
            raise hal.InvalidArgumentError(
                f"a list of {len(values)} given for {counted(len(names), kind)}: "
                f"{', '.join(names)}",
                hint=f"it has one array for each {kind}; numbers go into "
                "numpy.array([...])",
            )
        return values

    async def converted(self, inputs: Any) -> Sequence[Array | None]:
        """Do what a call does, on a thread where that may take long."""
        return await offload(self, inputs) if self.is_long(inputs) else self(inputs)

    def is_long(self, inputs: Any) -> bool:
        """Return whether it may take long to make arrays of inputs that are unusual."""
        return sum(map(_bytes, self.in_order(inputs))) > SHORT_BYTES

    def with_buffers(self, inputs: Any) -> Sequence[Tensor | None]:
        """Let inputs be in device-managed buffers; otherwise like a call.

        :raises InvalidArgumentError: if an input is missing, unknown, or of the wrong
            dtype or shape.
        :raises ResourceExhaustedError: if there is no memory for one to be converted.
        """
        try:
            return [
                value if isinstance(value, DeviceBuffer) else _checked(info, value)
                for info, value in zip(self.infos, self.in_order(inputs), strict=True)
            ]
        except MemoryError as error:
            raise hal.failure_of(error, "converting the inputs") from error


def _name_error(
    kind: str, names: Sequence[str], known: Set[str], values: Mapping[str, Any]
) -> str:
    missing = [name for name in names if name not in values]
    unknown = [str(name) for name in values if name not in known]
    parts = []
    for what, which in {"missing": missing, "unknown": unknown}.items():
        if which:
            plural = "" if len(which) == 1 else "s"
            parts.append(f"{what} {kind}{plural}: {', '.join(which)}")
    if not missing:
        parts.append(f"the model has {', '.join(names)}")
    return "; ".join(parts)


_NUMBER_BYTES = 64
"""Bytes of an array that are copied while one number of a list is converted."""


def _bytes(value: Any) -> int:
    """Return about how many bytes ``value`` has that may have to be converted."""
    count = 1
    while isinstance(value, Sequence) and not isinstance(value, str | bytes) and value:
        count *= len(value)
        value = value[0]
    return count * int(getattr(value, "nbytes", _NUMBER_BYTES))


def _checked(info: TensorInfo, value: Any) -> Array | None:
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype != info.dtype:
        if isinstance(value, np.ndarray):
            array = _of_other_width(info, array)
        else:
            array = _converted(info, value)
    if array.shape != info.dimensions and not _fits(info, array.shape):
        shape = dimensions_of(array.shape)
        if shape == array.shape or not _fits(info, shape):
            raise hal.InvalidArgumentError(
                f"input {info.name} has shape {list(array.shape)}, the model takes "
                f"{_readable(info.dimensions)}",
                hint=hint_of_shape(info.dimensions, array.shape),
            )
        array = array.reshape(shape)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _of_other_width(info: TensorInfo, array: Array) -> Array:
    """Take integers of 32 bits for ones of 64, and the other way round.

    A file's int64 is int32 in the HAL, and itself to an engine of the file's format.
    NumPy itself has no bfloat16, but the package ml_dtypes adds one.

    :raises InvalidArgumentError: if that would lose a value, or it is another dtype.
    """
    if {array.dtype, info.dtype} == _INTEGERS:
        taken = array.astype(info.dtype)
        if array.dtype == np.int32 or np.array_equal(taken, array):
            return taken
        raise hal.InvalidArgumentError(
            f"input {info.name} has values beyond the 32 bits that the model takes",
            hint="a device with an engine for the file takes 64 where the file does",
        )
    if array.dtype.name == "bfloat16" and info.dtype == BFLOAT16:
        return array.view(BFLOAT16)
    raise hal.InvalidArgumentError(
        f"input {info.name} has dtype {array.dtype}, the model takes {info.dtype}",
        hint=f"convert it with astype({str(info.dtype)!r}) if that is meant",
    )


def _converted(info: TensorInfo, value: Any) -> Array:
    try:
        return np.array(value, info.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise hal.InvalidArgumentError(
            f"input {info.name} is not {info.dtype} data: {error}"
        ) from None


def _fits(info: TensorInfo, shape: hal.Dimensions) -> bool:
    if info.dimensions:
        return has_lengths(shape, info.dimensions)
    return bool(shape) != is_scalar(info.type)


def _readable(dimensions: hal.Dimensions) -> str:
    return f"[{', '.join(str(axis) if axis else 'any' for axis in dimensions)}]"


class OutputSpace:
    """Allocates output arrays; learns the size of those that the model leaves open.

    ``is_fixed`` says that there are none of those.
    """

    def __init__(self, infos: Sequence[TensorInfo]) -> None:
        self.infos = infos
        self._check = InputCheck(infos, "output")
        self.names = self._check.names
        self.is_fixed = all(has_fixed_shape(info) for info in infos)
        is_flat = not self.is_fixed
        shapes = [(_guess(i),) if is_flat else i.dimensions for i in infos]
        self._made = [(i.name, s, i.dtype) for i, s in zip(infos, shapes, strict=True)]

    def allocate(self, make: MakeArray = np.empty) -> Outputs:
        """Return an array for each output: of its shape, or all flat if one is open.

        :raises ResourceExhaustedError: if memory or descriptors have run out.
        """
        outputs = Outputs()
        try:
            for name, shape, dtype in self._made:
                outputs[name] = make(shape, dtype)
        except MemoryError as error:
            raise hal.failure_of(error, "arrays for the outputs") from error
        return outputs

    def taker(self, check: InputCheck) -> "Callable[[Any], _Taken | None] | None":
        """Return what does what most runs need of both, None if there is no such thing.

        It returns all tensors and the outputs, or None if an input is not `usual`.
        """
        if _built is None or not self.is_fixed:
            return None
        tensors = tuple(check._by_name), tuple((n, d, s) for n, s, d in self._made)
        arrays: Any = _built.UsualArrays(*tensors, np.ndarray, np.empty, Outputs)
        return cast("Callable[[Any], _Taken | None]", arrays.take)

    def check_fixed(self) -> None:
        """Check that a fenced execution can have the outputs.

        :raises InvalidArgumentError: if the model leaves a shape open.
        """
        if self.is_fixed:
            return
        for info in self.infos:
            if not has_fixed_shape(info):
                raise hal.InvalidArgumentError(
                    f"output {info.name} has no fixed shape, or is empty, which a "
                    f"fenced execution cannot have",
                    hint="await prepared.run instead",
                )

    def given(self, out: Any) -> list[Tensor | None]:
        """Return the caller's arrays and buffers; None for outputs left to us.

        :raises InvalidArgumentError: if one is missing or unknown, is not what the
            model computes, or cannot be written to.
        """
        usual = self._check.usual(out) if self.is_fixed else None
        if usual is not None and all(space.flags.carray for space in usual):
            return list(usual)
        spaces = self._check.in_order(out)
        for info, space in zip(self.infos, spaces, strict=True):
            if space is not None and not isinstance(space, DeviceBuffer):
                _check_space(info, space)
        return list(spaces)

    def completed(
        self, given: Sequence[Tensor | None], allocate: Callable[[], Outputs]
    ) -> list[Tensor]:
        """Return ``given`` with one of the arrays that are allocated for each None."""
        found = [space for space in given if space is not None]
        if len(found) == len(given):
            return found
        made = allocate()
        return [
            new if space is None else space
            for space, new in zip(given, made.values(), strict=True)
        ]

    def learn(self, shapes: Sequence[hal.OutputShape], tried: Sequence[Tensor]) -> None:
        """Take more space next time, as far as the driver said how much.

        It is twice what was ``tried``, and not what is known by now: any number of
        runs may find out at once.
        """
        for index, (shape, space) in enumerate(zip(shapes, tried, strict=False)):
            if self.is_fixed or shape.is_sufficient or isinstance(space, DeviceBuffer):
                continue
            needed = max(2 * space.size, math.prod(shape.dimensions))
            name, (known,), dtype = self._made[index]
            self._made[index] = name, (max(known, needed),), dtype

    def named(self, spaces: Sequence[Tensor]) -> Outputs:
        """Return outputs of fixed shapes, but for those in buffers."""
        outputs = Outputs()
        for name, space in zip(self.names, spaces, strict=True):
            if not isinstance(space, DeviceBuffer):
                outputs[name] = space
        return outputs

    def shaped(
        self, spaces: Sequence[Tensor], shapes: Sequence[hal.OutputShape]
    ) -> Outputs:
        """Return outputs, cut to the shapes that the driver reported."""
        outputs = self.named(spaces)
        if not self.is_fixed:
            # State that the model keeps comes after the outputs.
            known = shapes[: len(self.names)]
            for name, shape in zip(self.names, known, strict=True):
                array = outputs.get(name)
                if array is not None and array.shape != shape.dimensions:
                    flat = array.ravel()[: math.prod(shape.dimensions)]
                    outputs[name] = flat.reshape(shape.dimensions)
        return outputs


def _check_space(info: TensorInfo, array: Any) -> None:
    """Check that an output fits an array exactly."""
    if not has_fixed_shape(info):
        raise hal.InvalidArgumentError(
            f"output {info.name} has no fixed shape, so it cannot be given an array"
        )
    if (
        not isinstance(array, np.ndarray)
        or array.dtype != info.dtype
        or array.shape != info.dimensions
    ):
        raise hal.InvalidArgumentError(
            f"output {info.name} must be given a {info.dtype} array of shape "
            f"{_readable(info.dimensions)}"
        )
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise hal.InvalidArgumentError(
            f"output {info.name} must be given an array that is contiguous and writable"
        )


def _guess(info: TensorInfo) -> int:
    if is_scalar(info.type):
        return 1
    known = math.prod(axis or 1 for axis in info.dimensions)
    return max(known, FIRST_GUESS_BYTES // info.dtype.itemsize)


class RequestBuilder:
    """Makes requests in which every array is a pool of its own, not copied.

    An array that lies in a shared pool brings that pool. All plain requests of one
    model have the same arguments: built once. Others share them as well, which is how
    a driver's client knows what comes again.
    """

    def __init__(
        self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
    ) -> None:
        self._infos = inputs
        self._shared: dict[_Both, _Both] = {}
        self._plain: _Both | None = None
        self._sizes: tuple[int, ...] = ()
        infos = (*inputs, *outputs)
        if all(has_fixed_shape(info) for info in infos):
            self._sizes = tuple(map(bytes_of, infos))
            self._plain = plain_arguments(self._sizes, len(inputs))

    def __call__(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> hal.Request:
        """Return the request for what was checked; an input of None is omitted."""
        plain = self._plain
        if plain is None:
            return self._build(inputs, outputs)
        pools: list[hal.Memory] = []
        for array, size in zip((*inputs, *outputs), self._sizes, strict=True):
            if array is None or isinstance(array, DeviceBuffer):
                return self._build(inputs, outputs)
            base = array.base
            # Most arrays are not shared: memory of their own, or a view of one that is.
            is_plain = base is None or (type(base) is np.ndarray and base.base is None)
            place = None if is_plain else place_of(array)
            if place is None:
                pools.append(hal.Memory("ashmem", size, _NO_HANDLE, array.data))
            elif place[1] == 0:
                pools.append(place[0])
            else:
                return self._build(inputs, outputs)
        return hal.Request(*plain, tuple(pools))

    def _build(
        self, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> hal.Request:
        pools: list[hal.Memory | hal.BufferToken] = []
        arguments: list[hal.RequestArgument] = []
        for info, array in zip(self._infos, inputs, strict=True):
            if array is None:
                arguments.append(_OMITTED)
                continue
            shape = () if isinstance(array, DeviceBuffer) else array.shape
            is_open = shape != info.dimensions or 0 in shape
            arguments.append(_argument(pools, array, shape if is_open else ()))
        results = tuple([_argument(pools, array, ()) for array in outputs])
        both: _Both = tuple(arguments), results
        if len(self._shared) >= MAX_ARGUMENTS:
            self._shared.clear()
        return hal.Request(*self._shared.setdefault(both, both), tuple(pools))


def _argument(
    pools: list[hal.Memory | hal.BufferToken], array: Tensor, dimensions: hal.Dimensions
) -> hal.RequestArgument:
    if isinstance(array, DeviceBuffer):
        pools.append(array.pool)
        return hal.RequestArgument(False, hal.DataLocation(len(pools) - 1), dimensions)
    memory, offset = place_of(array) or (
        hal.Memory("ashmem", array.nbytes, buffer=array.data),
        0,
    )
    location = hal.DataLocation(len(pools), offset, array.nbytes)
    pools.append(memory)
    return hal.RequestArgument(False, location, dimensions)
