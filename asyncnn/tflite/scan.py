"""Reads files of the usual form by one scan in C, which says that they are sound.

`_scan.c` looks at all that `contents` reads and `runnable` checks, by numbers of
`runnable`. What it does not take, these two read and check, as they do without it;
``ASYNCNN_PURE_SCAN=1`` asks for that. Of a file that it takes, records are made when
they are asked for.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from asyncnn.lazy import compiled_module
from asyncnn.pacing import Steps
from asyncnn.tflite import operator_rules, runnable
from asyncnn.tflite.contents import TableReader, reading_contents
from asyncnn.tflite.tables import (
    BUILTIN_OPTIONS,
    DTYPES,
    OPERATOR_NAMES,
    OPTION_VECTORS,
    TYPE_NAMES,
    Contents,
    Graph,
    ShortOperator,
    ShortTensor,
    SignatureTable,
    StoredBytes,
    Survey,
    Tensor,
)

T = TypeVar("T")

_built: Any = compiled_module("asyncnn.tflite._scan", "ASYNCNN_PURE_SCAN")

_WORK = {
    "CONV_2D": 1,
    "FULLY_CONNECTED": 1,
    "DEPTHWISE_CONV_2D": 2,
    "TRANSPOSE_CONV": 3,
    "BATCH_MATMUL": 4,
}
"""What they take; see `asyncnn.engine.costs`."""

_FLOAT, _BYTE, _INTEGER, _SCALED = 1, 2, 4, 8
_KNOWN, _ALIKE, _KEPT, _COMPARING, _MEASURED = 1, 2, 4, 8, 16
_SHAPED, _SURPRISING = 1, 2
_NONE = 255
"""Of an input that may be left out, or of counts that are open."""

_UNKNOWN = frozenset(
    {*runnable.CALLED, *operator_rules.COUNTED, "ATAN2", "CONV_3D", "DENSIFY"}
)
"""Operators that are left to Python, besides those that have no known counts."""

_FLAGS = {
    "FLOAT32": _FLOAT,
    "INT8": _BYTE | _SCALED,
    "UINT8": _BYTE | _SCALED,
    "INT16": _SCALED,
    "INT32": _INTEGER,
    "INT64": _INTEGER,
}


def reading_checked(data: memoryview, *, is_final: bool) -> Steps[Contents]:
    """Read a file in steps, with a survey if it is surely sound, and never changes.

    Decoder errors pass through.

    :raises InvalidArgumentError: as `contents.reading_contents`.
    """
    found = scanned(data) if is_final else None
    return _contents(data, found) if found else (yield from reading_contents(data))


def scanned(data: bytes | memoryview) -> Any:
    """Return what `_scan.c` reports of a file; None if it is not surely sound."""
    if _built is None:
        return None
    records = Tensor, ShortTensor, ShortOperator, SignatureTable
    return _built.scan(data, _RULES, *records, TYPE_NAMES)


class Records(Sequence[T]):
    """Tables of one kind, each read when it is asked for the first time."""

    def __init__(
        self, count: int, read: Callable[[int], T], known: dict[int, T]
    ) -> None:
        self._count, self._read, self._known = count, read, known

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        """Return a record, or several."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        found = self._known.get(index)
        if found is None:
            found = self._known[index] = self._read(index)
        return found


def _contents(data: memoryview, found: Any) -> Contents:
    known, codes, name, inputs, outputs, ends, signatures, metadata = found
    survey = Survey(*known)
    buffers, tensors, operators = survey.buffers, survey.tensors, survey.operators
    readers = Records(1, lambda _: TableReader(data), {})
    names = Records(
        len(codes), lambda index: readers[0].operator_code(codes[index]), {}
    )
    stored = Records(
        len(buffers), lambda index: StoredBytes(*buffers[index][:3], True), {}
    )
    graph = Graph(
        0,
        name,
        Records(
            len(tensors),
            lambda index: readers[0].tensor(index, tensors[index].table, stored),
            ends,
        ),
        Records(
            len(operators),
            lambda index: readers[0].operator(
                index, operators[index].table, names, len(tensors)
            ),
            {},
        ),
        inputs,
        outputs,
        survey,
    )
    start, size = metadata or (0, None)
    described = None if size is None else data[start : start + size]
    return Contents((graph,), tuple(signatures), described, data, codes, stored)


def _packed_type(name: str) -> bytes:
    dtype = DTYPES.get(name)
    least, greatest = runnable.BYTES.get(name, (-(2**63), 2**63 - 1))
    size = 0 if dtype is None else dtype.itemsize
    return struct.pack("<qqBB6x", least, greatest, size, _FLAGS.get(name, 0))


def _packed_operator(name: str) -> bytes:
    counts = operator_rules.COUNTS.get(name)
    if counts is None or name in runnable.NO_OPERATORS or name in _UNKNOWN:
        return bytes(12)
    fewest, most, made = counts
    flags = _KNOWN
    for flag, names in (
        (_ALIKE, operator_rules.ALIKE),
        (_KEPT, operator_rules.KEPT),
        (_COMPARING, operator_rules.COMPARING),
        (_MEASURED, operator_rules.MEASURED),
    ):
        flags |= flag * (name in names)
    shaping = _SHAPED if name in operator_rules.SHAPED_BY else _SURPRISING
    return struct.pack(
        "<9B3b",
        *(flags, fewest, _NONE if most is None else most, made),
        runnable.LEFT_OUT.get(name, _NONE),
        _mask(operator_rules.WHOLE.get(name, ())),
        0 if name in operator_rules.PLAIN else shaping,
        _mask(operator_rules.SHAPED_BY.get(name, ())),
        _WORK.get(name, 0),
        *(*operator_rules.RANKS.get(name, ()), 0, 0, 0)[:3],
    )


def _packed_options(kind: str) -> bytes:
    positive = runnable.POSITIVE.get(kind, {})
    dilations = [slot for slot, name in positive.items() if name.startswith("Dilation")]
    width = OPTION_VECTORS.get(kind, 0)
    is_known = bool(kind) and kind not in runnable.REFERRING
    unset = _mask(runnable.OFFSETS.get(kind, ()))
    return struct.pack("<5B", is_known, width, _mask(positive), _mask(dilations), unset)


def _mask(bits: Iterable[int]) -> int:
    return sum(1 << bit for bit in bits)


_RULES = struct.pack(
    "<4d",
    *(runnable.MOST_BYTES, operator_rules.MOST_SCALE),
    *(operator_rules.MOST_RATIO, runnable.MOST_POSITIVE),
) + b"".join(
    packed(names.get(number, ""))
    for packed, names in (
        (_packed_type, TYPE_NAMES),
        (_packed_operator, OPERATOR_NAMES),
        (_packed_options, BUILTIN_OPTIONS),
    )
    for number in range(256)
)
