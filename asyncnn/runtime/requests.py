"""Arrays of the awaitable face as HAL requests over in-process pools."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    Dimensions,
    Memory,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.runtime.model import NamedModel, TensorInfo

FIRST_GUESS_BYTES = 4096
"""Space for an output whose size nothing is known of."""

_OMITTED = RequestArgument(has_no_value=True)


class InputCheck:
    """Checks what a caller passes against the model, and puts it in order."""

    def __init__(self, model: NamedModel) -> None:
        self.infos = model.inputs
        self._names = tuple(info.name for info in model.inputs)
        self._known = frozenset(self._names)
        self._dtypes = tuple(info.dtype for info in model.inputs)

    def __call__(self, inputs: Any) -> list[Array | None]:
        """Return one C-contiguous array for each input; None where it is omitted.

        :raises InvalidArgumentError: if an input is missing, unknown, or of the wrong
            dtype or shape.
        """
        values = self._in_order(inputs)
        return [
            value
            if type(value) is np.ndarray
            and value.dtype == dtype
            and value.shape == info.dimensions
            and value.flags.c_contiguous
            else _checked(info, value)
            for info, dtype, value in zip(self.infos, self._dtypes, values, strict=True)
        ]

    def _in_order(self, inputs: Any) -> Sequence[Any]:
        if isinstance(inputs, Mapping):
            if inputs.keys() != self._known:
                raise InvalidArgumentError(self._name_error(inputs))
            return [inputs[name] for name in self._names]
        if isinstance(inputs, np.ndarray) and len(self._names) == 1:
            return (inputs,)
        if not isinstance(inputs, Sequence) or isinstance(inputs, str | bytes):
            raise InvalidArgumentError(
                f"inputs cannot be a {type(inputs).__name__}",
                hint=f"pass arrays by name: {', '.join(self._names)}",
            )
        if len(inputs) != len(self._names):
            raise InvalidArgumentError(
                f"{len(inputs)} inputs given, the model has {len(self._names)}: "
                f"{', '.join(self._names)}"
            )
        return inputs

    def _name_error(self, inputs: Mapping[str, Any]) -> str:
        missing = [name for name in self._names if name not in inputs]
        unknown = [str(name) for name in inputs if name not in self._known]
        parts = []
        if missing:
            parts.append(f"missing inputs: {', '.join(missing)}")
        if unknown:
            parts.append(f"unknown inputs: {', '.join(unknown)}")
        return "; ".join(parts)


def _checked(info: TensorInfo, value: Any) -> Array | None:
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype != info.dtype:
        if isinstance(value, np.ndarray):
            raise InvalidArgumentError(
                f"input {info.name} has dtype {array.dtype}, the model takes "
                f"{info.dtype}",
                hint=f"convert it with astype({str(info.dtype)!r}) if that is meant",
            )
        array = _converted(info, value)
    if array.shape != info.dimensions and not _fits(info, array.shape):
        raise InvalidArgumentError(
            f"input {info.name} has shape {list(array.shape)}, the model takes "
            f"{_readable(info.dimensions)}"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _converted(info: TensorInfo, value: Any) -> Array:
    """Take numbers that are no array; they have no dtype of their own yet."""
    try:
        return np.array(value, info.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidArgumentError(
            f"input {info.name} is not {info.dtype} data: {error}"
        ) from None


def _fits(info: TensorInfo, shape: Dimensions) -> bool:
    if info.type in SCALAR_TYPES:
        return shape == ()
    if not info.dimensions:
        return bool(shape)
    return len(shape) == len(info.dimensions) and all(
        axis in (0, length) for axis, length in zip(info.dimensions, shape, strict=True)
    )


def _readable(dimensions: Dimensions) -> str:
    return f"[{', '.join(str(axis) if axis else 'any' for axis in dimensions)}]"


class OutputSpace:
    """Allocates output arrays; learns the size of those that the model leaves open."""

    def __init__(self, infos: Sequence[TensorInfo]) -> None:
        self._infos = infos
        self._names = tuple(info.name for info in infos)
        self._is_fixed = all(_is_fixed(info) for info in infos)
        self._elements = [_guess(info) for info in infos]

    def allocate(self) -> list[Array]:
        """Return one array for each output: of its shape, or flat if that is open."""
        if self._is_fixed:
            return [np.empty(info.dimensions, info.dtype) for info in self._infos]
        return [
            np.empty(elements, info.dtype)
            for info, elements in zip(self._infos, self._elements, strict=True)
        ]

    def learn(self, shapes: Sequence[OutputShape]) -> None:
        """Take more space next time, as far as the driver said how much."""
        for index, shape in enumerate(shapes):
            if not shape.is_sufficient:
                needed = math.prod(shape.dimensions)
                self._elements[index] = max(2 * self._elements[index], needed)

    def shaped(
        self, spaces: Sequence[Array], shapes: Sequence[OutputShape]
    ) -> Iterable[tuple[str, Array]]:
        """Pair names with outputs, cut to the shapes that the driver reported."""
        if self._is_fixed:
            return zip(self._names, spaces, strict=True)
        return [
            (name, space[: math.prod(shape.dimensions)].reshape(shape.dimensions))
            for name, space, shape in zip(self._names, spaces, shapes, strict=True)
        ]


def _guess(info: TensorInfo) -> int:
    if info.type in SCALAR_TYPES:
        return 1
    known = math.prod(axis or 1 for axis in info.dimensions)
    return max(known, FIRST_GUESS_BYTES // info.dtype.itemsize)


class RequestBuilder:
    """Makes requests in which every array is a pool of its own, not copied.

    All plain requests of one model have the same arguments: built once.
    """

    def __init__(
        self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
    ) -> None:
        self._infos = inputs
        self._plain: Request | None = None
        if all(_is_fixed(info) for info in (*inputs, *outputs)):
            arrays = [np.empty(i.dimensions, i.dtype) for i in (*inputs, *outputs)]
            split = len(inputs)
            self._plain = self._build(arrays[:split], arrays[split:])

    def __call__(
        self, inputs: Sequence[Array | None], outputs: Sequence[Array]
    ) -> Request:
        """Return the request for checked arrays; an input of None is omitted."""
        present = [array for array in inputs if array is not None]
        if self._plain is None or len(present) < len(inputs):
            return self._build(inputs, outputs)
        pools = tuple([_pool(array) for array in (*present, *outputs)])
        return Request(self._plain.inputs, self._plain.outputs, pools)

    def _build(
        self, inputs: Sequence[Array | None], outputs: Sequence[Array]
    ) -> Request:
        pools: list[Memory] = []
        arguments: list[RequestArgument] = []
        for info, array in zip(self._infos, inputs, strict=True):
            if array is None:
                arguments.append(_OMITTED)
                continue
            is_open = array.shape != info.dimensions
            arguments.append(_argument(pools, array, array.shape if is_open else ()))
        results = tuple(_argument(pools, array, ()) for array in outputs)
        return Request(tuple(arguments), results, tuple(pools))


def _argument(
    pools: list[Memory], array: Array, dimensions: Dimensions
) -> RequestArgument:
    location = DataLocation(len(pools), 0, array.nbytes)
    pools.append(_pool(array))
    return RequestArgument(False, location, dimensions)


def _pool(array: Array) -> Memory:
    return Memory("ashmem", array.nbytes, buffer=array.data)


def _is_fixed(info: TensorInfo) -> bool:
    """Tell whether the model fixes the shape."""
    if info.type in SCALAR_TYPES:
        return True
    return bool(info.dimensions) and 0 not in info.dimensions
