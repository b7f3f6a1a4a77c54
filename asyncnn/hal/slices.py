"""Models as bytes, cut into slices.

The interpreter does nothing else while something is encoded or decoded, which takes
some hundred milliseconds for a model of 20,000 operations. So its operands and
operations become slices of some hundred, each encoded by itself, and other threads run
between two of them. A peer that cuts larger ones breaks the protocol.
"""

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    ExtensionNameAndPrefix,
    Model,
    Operand,
    Operation,
    Subgraph,
)
from asyncnn.pacing import make_way

ITEMS = 256
"""Operands or operations of a slice at most."""

MAX_SLICE_BYTES = 64 * 1024
"""Of a slice with more than one item: less than a millisecond's worth."""

MAX_ITEM_BYTES = 1024 * 1024
"""Of an operand or operation that has a slice for itself."""

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode
_ONE_ITEM = 0x91


class SlicedSubgraph(msgspec.Struct, frozen=True, array_like=True):
    """The lengths of the slices of a `Subgraph`, each of which is an encoded array."""

    operands: tuple[int, ...]
    operations: tuple[int, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]


class SlicedModel(msgspec.Struct, frozen=True, array_like=True):
    """A `Model` but for its pools; the slices follow in the order of these fields."""

    main: SlicedSubgraph
    referenced: tuple[SlicedSubgraph, ...]
    operand_values: int
    relax_computation_float32_to_float16: bool
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...]


class SliceKind(Generic[T]):
    """A kind of list that is cut, up to ``per_slice`` of its items at a time."""

    def __init__(self, items: type[tuple[T, ...]], per_slice: int = ITEMS) -> None:
        self._decode = msgspec.msgpack.Decoder(items).decode
        self._per_slice = per_slice

    def cut(self, items: Sequence[T], slices: list[bytes]) -> tuple[int, ...]:
        """Add slices of ``items``; return their lengths."""
        first = len(slices)
        for start in range(0, len(items), self._per_slice):
            part = items[start : start + self._per_slice]
            data = _encode(part)
            if len(data) <= MAX_SLICE_BYTES:
                slices.append(data)
            else:
                slices += [_encode((item,)) for item in part]
        return tuple([len(data) for data in slices[first:]])

    def join(self, lengths: Sequence[int], slices: "Slices") -> tuple[T, ...]:
        """Return the items of the next slices, which have these lengths."""
        items: list[T] = []
        for part in self.parts(lengths, slices):
            items += part
            make_way()
        return tuple(items)

    def parts(
        self, lengths: Sequence[int], slices: "Slices"
    ) -> Iterator[tuple[T, ...]]:
        """Yield the items of each of the next slices, which have these lengths.

        :raises InvalidArgumentError: if one is missing, too large, or has too many.
        """
        for length in lengths:
            items = self._decode(slices.next(length))
            if len(items) > self._per_slice:
                raise InvalidArgumentError(f"a slice of {len(items)} items")
            yield items


_OPERANDS = SliceKind(tuple[Operand, ...])
_OPERATIONS = SliceKind(tuple[Operation, ...])
_INDEXES = SliceKind(tuple[int, ...], 16 * ITEMS)


class ByteSource(Protocol):
    """Bytes that may lie elsewhere: pieces of them are fetched when they are needed."""

    def __len__(self) -> int: ...

    def __getitem__(self, span: slice, /) -> bytes | memoryview: ...


class Slices:
    """Hands out one slice after the other, of the bytes of ``data`` from ``start`` on.

    One with a single item may have ``max_item_bytes``, others `MAX_SLICE_BYTES`.
    """

    def __init__(
        self, data: ByteSource, *, start: int = 0, max_item_bytes: int = MAX_ITEM_BYTES
    ) -> None:
        self._data = data
        self._at = start
        self._max_item_bytes = max_item_bytes

    def next(self, length: int) -> bytes | memoryview:
        """Return the next slice, which is small or has one item.

        :raises InvalidArgumentError: if there is none, or it is neither.
        """
        if length <= self._max_item_bytes:
            data = self.take(length)
            if length <= MAX_SLICE_BYTES or data[0] == _ONE_ITEM:
                return data
        raise InvalidArgumentError(f"a slice of {length} bytes is too large")

    def take(self, length: int) -> bytes | memoryview:
        """Return the next bytes.

        :raises InvalidArgumentError: if there are not as many.
        """
        end = self._at + length
        if not self._at <= end <= len(self._data):
            raise InvalidArgumentError("a slice is missing")
        data = self._data[self._at : end]
        self._at = end
        return data

    def check_end(self) -> None:
        """Check that all were handed out.

        :raises InvalidArgumentError: if they were not.
        """
        if self._at < len(self._data):
            raise InvalidArgumentError("there are more slices than a model has")


def sliced(model: Model) -> tuple[SlicedModel, list[bytes]]:
    """Return ``model`` but for its pools, and the slices that are to follow.

    :raises msgspec.MsgspecError, OverflowError, TypeError: if it cannot be encoded.
    """
    slices: list[bytes] = []
    head = SlicedModel(
        _cut(model.main, slices),
        tuple([_cut(subgraph, slices) for subgraph in model.referenced]),
        len(model.operand_values),
        model.relax_computation_float32_to_float16,
        model.extension_name_to_prefix,
    )
    return head, [*slices, model.operand_values]


def joined(
    model: SlicedModel,
    data: ByteSource,
    *,
    start: int = 0,
    max_item_bytes: int = MAX_ITEM_BYTES,
) -> Model:
    """Return the model whose slices are ``data`` from ``start`` on; see `Slices`.

    :raises InvalidArgumentError: if they are not, or one is too large.
    :raises msgspec.DecodeError, UnicodeDecodeError, RecursionError: if one is none.
    """
    slices = Slices(data, start=start, max_item_bytes=max_item_bytes)
    whole = Model(
        main=_join(model.main, slices),
        referenced=tuple([_join(subgraph, slices) for subgraph in model.referenced]),
        operand_values=_values(model.operand_values, slices),
        relax_computation_float32_to_float16=model.relax_computation_float32_to_float16,
        extension_name_to_prefix=model.extension_name_to_prefix,
    )
    slices.check_end()
    return whole


def _values(length: int, slices: Slices) -> bytes:
    values = bytes(slices.take(length))
    make_way()  # to fetch them takes long, but not the interpreter
    return values


def _cut(subgraph: Subgraph, slices: list[bytes]) -> SlicedSubgraph:
    return SlicedSubgraph(
        _OPERANDS.cut(subgraph.operands, slices),
        _OPERATIONS.cut(subgraph.operations, slices),
        _INDEXES.cut(subgraph.input_indexes, slices),
        _INDEXES.cut(subgraph.output_indexes, slices),
    )


def _join(subgraph: SlicedSubgraph, slices: Slices) -> Subgraph:
    return Subgraph(
        _OPERANDS.join(subgraph.operands, slices),
        _OPERATIONS.join(subgraph.operations, slices),
        _INDEXES.join(subgraph.input_indexes, slices),
        _INDEXES.join(subgraph.output_indexes, slices),
    )
