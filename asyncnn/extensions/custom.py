"""Custom operators of model files, by name: which operation of an extension each is.

An extension says so with `Extension.custom_operator`. Its operators are found when a
file that has some is loaded: in the extensions given to `asyncnn.load`, in those that
asyncnn brings, and in those that packages install by entry points.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from asyncnn.extensions.extension import (
    CUSTOM_OPERATORS,
    CustomOperator,
    Extension,
    entry_points_in,
    load_extension,
    load_extensions,
)
from asyncnn.hal.errors import InvalidArgumentError

_BROUGHT = dict.fromkeys(
    (
        "Landmarks2TransformMatrix",
        "MaxPoolingWithArgmax2D",
        "MaxUnpooling2D",
        "TransformLandmarks",
        "TransformTensor",
        "TransformTensorBilinear",
    ),
    "asyncnn.mediapipe",
)
"""Custom operators of the extensions that asyncnn itself has."""

_MOST_ELEMENTS = 1 << 12

T = TypeVar("T")


class CustomOperators:
    """Finds custom operators in the extensions given, and then in those installed."""

    def __init__(self, extensions: Iterable[Extension | str] = ()) -> None:
        self._given = load_extensions(extensions)
        self._points: dict[str, list[str]] | None = None

    def find(self, name: str, version: int) -> CustomOperator | None:
        """Return the custom operator of a name, None if no extension has it.

        :raises InvalidArgumentError: if only other versions are known, or an installed
            extension cannot be imported.
        """
        versions: set[int] = set()
        for extension in (*self._given, *self._installed(name)):
            found = extension.custom_operators.get((name, version))
            if found is not None:
                return found
            versions |= {
                each for known, each in extension.custom_operators if known == name
            }
        if versions:
            known = ", ".join(map(str, sorted(versions)))
            raise InvalidArgumentError(
                f"version {version} of {name} is not known, but {known}"
            )
        return None

    def _installed(self, name: str) -> Iterator[Extension]:
        if name in _BROUGHT:
            yield load_extension(_BROUGHT[name])
        if self._points is None:
            # Once: it looks into every package, and a file may have 10,000 operators.
            self._points = {}
            for point in entry_points_in(CUSTOM_OPERATORS):
                self._points.setdefault(point.name, []).append(point.value)
        for place in self._points.get(name, ()):
            yield load_extension(place)


class FlexOptions:
    """Options of a custom operator that are a FlexBuffers map of plain values.

    A key that is missing has its default; one without a default is required.

    :raises InvalidArgumentError: if the bytes are none, as all methods do for a value.
    """

    def __init__(self, data: bytes) -> None:
        from flatbuffers import flexbuffers  # type: ignore[import-untyped]

        self._map = _read("map", lambda: flexbuffers.GetRoot(bytearray(data)).AsMap)

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an int of 32 bits."""
        value = self._value(key, default, lambda each: int(each.AsInt))
        if not -(2**31) <= value < 2**31:
            raise InvalidArgumentError(f"option {key!r} is {value}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a float."""
        return self._value(key, default, lambda each: float(each.AsFloat))

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """Return a bool, which may be stored as an int."""
        return self._value(
            key, default, lambda each: bool(each.AsBool if each.IsBool else each.AsInt)
        )

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string."""
        return self._value(key, default, lambda each: str(each.AsString))

    def integers(self, key: str) -> list[int]:
        """Return a vector of int, of not too many elements."""

        def read(each: Any) -> list[int]:
            vector = each.AsTypedVector
            if len(vector) > _MOST_ELEMENTS:
                raise ValueError(f"{len(vector)} elements")
            return [int(value) for value in vector.Value]

        return self._value(key, None, read)

    def _value(self, key: str, default: T | None, read: Callable[[Any], T]) -> T:
        found = _read(key, lambda: self._find(key))
        if found is not None:
            return _read(key, lambda: read(found))
        if default is None:
            raise InvalidArgumentError(f"option {key!r} is missing")
        return default

    def _find(self, key: str) -> Any:
        try:
            return self._map[key]
        except KeyError:
            return None


def _read(what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise InvalidArgumentError(f"option {what!r} is damaged: {error}") from error


def packed_integers(data: bytes, count: int) -> tuple[int, ...]:
    """Return the first int32 values of options that are a C structure.

    :raises InvalidArgumentError: if there are not so many.
    """
    if len(data) < 4 * count:
        raise InvalidArgumentError(f"options of {len(data)} bytes, not {4 * count}")
    return struct.unpack_from(f"<{count}i", data)
