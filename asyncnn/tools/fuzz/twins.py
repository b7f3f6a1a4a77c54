"""Compares modules in C with what they stand for in Python, on the same bytes."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec.structs import replace

from asyncnn.engine.costs import USUAL, estimated_of_graph_ns
from asyncnn.fmq import (
    RING_OFFSET,
    Geometry,
    OpenRing,
    Pages,
    PythonRing,
    QueueBrokenError,
)
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import HalVersion, Model
from asyncnn.hal.validate import model as model_rules
from asyncnn.hal.validate import validate_model
from asyncnn.hal.validate.model import is_known
from asyncnn.pacing import completed
from asyncnn.tflite import runnable, scan
from asyncnn.tflite.contents import reading_contents
from asyncnn.tflite.tables import Contents


class TwinsDifferError(Exception):
    """A module in C says other than Python does."""


def same(what: str, one: object, other: object) -> None:
    """Check that both say the same.

    :raises TwinsDifferError: if they do not.
    """
    if one != other:
        raise TwinsDifferError(f"{what}: C says {one!r:.200}, Python {other!r:.200}")


def by_python(data: bytes) -> Contents:
    """Return what is in a file that may be handed to LiteRT.

    :raises InvalidArgumentError: if it may not; decoder errors pass through.
    """
    found = completed(reading_contents(memoryview(data)))
    refusal = runnable.refusal(found)
    if refusal:
        raise InvalidArgumentError(refusal)
    runnable.check(found)
    return found


def by_scan(data: bytes) -> Contents | None:
    """Return what the scan says of a file, None of one that it leaves to Python."""
    found = completed(scan.reading_checked(memoryview(data), is_final=True))
    return found if found.graphs[0].survey is not None else None


def same_file(data: bytes) -> bool:
    """Check what is said of a file that the scan takes; return whether it does.

    Decoder errors pass through.

    :raises InvalidArgumentError: if it is damaged, and Python says so.
    :raises TwinsDifferError: if Python says otherwise than the scan.
    """
    quick = by_scan(data)
    if quick is None:
        return False
    found = by_python(data)
    (one,), (other,) = quick.graphs, found.graphs
    for what, a, b in (
        ("borders", one.inputs + one.outputs, other.inputs + other.outputs),
        ("name", one.name, other.name),
        ("surprise", runnable.may_surprise(quick), runnable.may_surprise(found)),
        ("time", estimated_of_graph_ns(one), estimated_of_graph_ns(other, USUAL)),
        ("signatures", quick.signatures, found.signatures),
        ("buffers", [*quick.buffers], [*found.buffers]),
        ("codes", quick.codes, found.codes),
        ("metadata", quick.metadata, found.metadata),
    ):
        same(what, a, b)
    assert one.survey is not None
    constant = {each.index for each in other.tensors if each.stored is not None}
    for short, operator in zip(one.survey.operators, other.operators, strict=True):
        varying = tuple(i for i in operator.inputs if i >= 0 and i not in constant)
        if not varying:
            constant.update(operator.outputs)
        quickly = (short.table, short.reads, short.inputs, short.outputs)
        read = (operator.table, operator.inputs, varying, operator.outputs)
        same(f"operator {short.number}", quickly, read)
    same_graphs(quick, found)
    return True


def same_graphs(quick: Contents, found: Contents) -> None:
    """Check that tensors and operators of both are alike.

    :raises TwinsDifferError: if they are not.
    """
    (one,), (other,) = quick.graphs, found.graphs
    same("tensors", len(one.tensors), len(other.tensors))
    same("operators", len(one.operators), len(other.operators))
    for a, b in zip(one.tensors, other.tensors, strict=True):
        same(a.label, _tensor(a), _tensor(b))
    for c, d in zip(one.operators, other.operators, strict=True):
        same(f"operator {c.index}", _operator(c), _operator(d))


def _tensor(tensor: Any) -> tuple[Any, ...]:
    stored = None if tensor.stored is None else tensor.stored.tobytes()
    scales = str([*tensor.scales])  # a NaN is like another
    return (
        *(tensor.name, tensor.type, tensor.shape, tensor.zero_points, scales),
        *(tensor.quantized_dimension, stored, tensor.signature, tensor.is_plain),
    )


def _operator(operator: Any) -> tuple[Any, ...]:
    kinds = operator.kind_of_options()
    return operator.name, operator.inputs, operator.outputs, kinds


def same_verdict(
    model: Model,
    version: HalVersion = HalVersion.AIDL_V4,
    *,
    runtime_only_features: bool = False,
) -> tuple[str, bool]:
    """Return what is said against a model, and whether it is remembered as valid.

    :raises TwinsDifferError: if that differs with the prescan and without.
    """
    quick = _verdict(model, version, runtime_only_features)
    prescans, model_rules._prescans = model_rules._prescans, None
    try:
        same("verdict", quick, _verdict(model, version, runtime_only_features))
    finally:
        model_rules._prescans = prescans
    return quick


def _verdict(model: Model, version: HalVersion, is_runtime: bool) -> tuple[str, bool]:
    model, said = replace(model), ""
    try:
        validate_model(model, version, runtime_only_features=is_runtime)
    except InvalidArgumentError as error:
        said = re.sub("0x[0-9a-f]+", "its place", str(error))
    return said, is_known(model, version)


_QUANTUM, _COUNT = 8, 16
_WORDS = (0, 16, 32, 48)


def same_ring(data: bytes) -> None:
    """Have both rings do the same, between changes of their words by a peer.

    Of each four bytes, the first is what to do, and the others are numbers.

    :raises TwinsDifferError: if one of them does not.
    """
    rings = [_ring(base) for base in (OpenRing.__base__, PythonRing)]
    for at in range(0, len(data) - 3, 4):
        results = [_done(ring, words, data[at : at + 4]) for ring, words in rings]
        same(f"step {at // 4}", *results)
        same("words", *[[words[each] for each in _WORDS] for _, words in rings])


@cache
def _breaking(base: Any) -> Any:
    """Return a ring that is closed by what is impossible, as queues are."""

    class Breaking(base):  # type: ignore[misc]
        def _break(self, unread: int, /) -> None:
            self._end(lambda: QueueBrokenError("it was closed"))
            raise QueueBrokenError(f"{unread} bytes are unread")

    return Breaking


def _ring(base: Any) -> tuple[Any, memoryview]:
    geometry = Geometry(_QUANTUM, _COUNT)
    memory = bytearray(RING_OFFSET + geometry.capacity)
    words = memoryview(memory)[:RING_OFFSET].cast("Q")
    pages = Pages(words, memoryview(memory)[RING_OFFSET:], 0, 0)
    return _breaking(base)(geometry, pages, lambda: None), words


def _done(ring: Any, words: memoryview, step: bytes) -> object:
    """Return what a step gives, or the error that it raises."""
    kind, low, high, more = step
    number = (low, high - 128, low * _QUANTUM, (1 << 64) - 1 - low)[more % 4]
    counted = abs(number)  # by this end itself
    size = low if more & 128 else low % 20 * _QUANTUM
    calls: tuple[Callable[[], object], ...] = (
        lambda: ring.write_nowait(bytes([high]) * size),
        lambda: ring.read_nowait(),
        lambda: ring.read_nowait(number),
        lambda: ring.read_nowait(None, low),
        ring.available_to_read,
        ring.available_to_write,
        lambda: ring.is_readable(low or 1),
        lambda: ring._announce(_WORDS[2 + high % 2], _WORDS[high % 2], counted),
        lambda: ring._withdraw(_WORDS[2 + high % 2]),
        lambda: words.__setitem__(_WORDS[high % 4], number % (1 << 64)),
        lambda: words.__setitem__(
            _WORDS[high % 4], (words[_WORDS[high % 4]] + low - 128) % (1 << 64)
        ),
        lambda: ring._publish(counted, size),
        lambda: ring._consume(counted, size),
    )
    try:
        return calls[kind % len(calls)]()
    except AsyncnnError as error:
        return type(error)
