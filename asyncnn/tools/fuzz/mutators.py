"""Damages bytes, reproducibly: a seed and bytes give the same damage again.

Bytes are damaged blindly, and also where the structure is known, so that the checks
that come first still pass: offsets and vtables of flatbuffers, values and lengths in
the header of a container, whose checksum is right again, fields of messages of ONNX,
values of MessagePack.
"""

import math
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import Any

import msgspec

from asyncnn.runtime.file_kinds import MAGIC, FileKind, kind_of

SHORT_RUN = 64
MOST_DAMAGES = 4
_CONTAINER = struct.Struct("<8sIII")

EDGES = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 63, 64, 127, 128, 255, 256),
    *(2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**24, 2**28, 2**30, 2**31 - 1, 2**31),
    *(2**31 + 4, 2**32 - 1, 2**32 - 4, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
"""Numbers at which arithmetic on lengths, offsets and indices goes wrong."""


def damaged_file(data: bytes, random: Random) -> bytes:
    """Return a model file with one to a few kinds of damage."""
    if random.random() < 0.5:
        with suppress(Exception):  # it was damaged before, and has none
            return _STRUCTURED[kind_of(memoryview(data))](data, random)
    return damaged(data, random)


def damaged_values(data: bytes, random: Random) -> bytes:
    """Return MessagePack with one to a few other values, or other bytes."""
    if random.random() < 0.7:
        with suppress(Exception):  # it was damaged before, and has none
            value = msgspec.msgpack.decode(data)
            for _ in range(random.randint(1, MOST_DAMAGES)):
                value = _altered(value, random)
            return msgspec.msgpack.encode(value)
    return damaged(data, random)


def damaged(data: bytes, random: Random) -> bytes:
    """Return bytes with one to a few kinds of damage anywhere."""
    mutant = bytearray(data)
    for _ in range(random.randint(1, MOST_DAMAGES)):
        _damage(mutant, random)
    return bytes(mutant)


def _place(mutant: bytearray, random: Random, width: int = 1) -> int:
    """Return the position of an aligned number of ``width`` bytes.

    One in two is near an end of the file, where formats have what they are about.
    """
    last = max(0, len(mutant) - width)
    if random.random() < 0.5:
        near = min(last, 2048)
        position = random.choice(
            (random.randint(0, near), last - random.randint(0, near))
        )
    else:
        position = random.randint(0, last)
    return position - position % width


def _damage(mutant: bytearray, random: Random) -> None:
    """Damage bytes in one of several ways."""
    start, length = _place(mutant, random), random.randint(1, SHORT_RUN)
    run = mutant[start : start + length]
    match random.randrange(8):
        case 0 if mutant:
            mutant[start] ^= 1 << random.randrange(8)
        case 1 if mutant:
            mutant[start] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        case 2:
            del mutant[start:]
        case 3:
            mutant[start:start] = run * random.randint(1, 8)
        case 4:  # is moved
            del mutant[start : start + length]
            target = _place(mutant, random)
            mutant[target:target] = run
        case 5:  # overwrites others
            source, target = _place(mutant, random, 4), _place(mutant, random, 4)
            size = random.choice((4, 8, 16, 32))
            size = min(size, len(mutant) - max(source, target))
            mutant[target : target + size] = mutant[source : source + size]
        case _:
            width = random.choice((2, 4, 8))
            if len(mutant) >= width:
                value = _edge(mutant, random) % (1 << 8 * width)
                place = _place(mutant, random, width)
                mutant[place : place + width] = value.to_bytes(width, "little")


def _edge(mutant: bytearray, random: Random) -> int:
    """Return a number near one of `EDGES`, or near the file's length."""
    near = random.choice((*EDGES, len(mutant), len(mutant) // 2, len(mutant) // 4))
    return max(0, near + random.choice((0, 0, 0, -1, 1, -4, 4)))


class _Flatbuffer(msgspec.Struct, frozen=True):
    """Where the structure of a flatbuffer lies, as far as a look at its words shows.

    ``fields`` are the tables', as (position of the vtable's entry, of the field).
    """

    tables: tuple[int, ...]
    vtables: tuple[int, ...]
    fields: tuple[tuple[int, int], ...]


@lru_cache(maxsize=64)
def _structure(data: bytes) -> _Flatbuffer:
    tables: list[int] = []
    vtables: set[int] = set()
    fields: list[tuple[int, int]] = []
    size = len(data)
    for table in range(4, size - 3, 4):
        (offset,) = struct.unpack_from("<i", data, table)
        vtable = table - offset
        if not 0 <= vtable <= size - 4 or vtable == table:
            continue
        length, extent = struct.unpack_from("<HH", data, vtable)
        if length % 2 or not 4 < length <= 64 or not 4 <= extent <= 128:
            continue
        entries = range(vtable + 4, min(vtable + length, size - 1), 2)
        offsets = [struct.unpack_from("<H", data, entry)[0] for entry in entries]
        if not any(offsets) or any(each >= extent for each in offsets):
            continue
        tables.append(table)
        vtables.add(vtable)
        fields += [
            (entry, table + each)
            for entry, each in zip(entries, offsets, strict=True)
            if each
        ]
    return _Flatbuffer(tuple(tables), tuple(vtables), tuple(fields))


_OFFSETS = (0, 2, 4, 6, 8, 12, 16, 0x7FFF, 0xFFFF)
_LENGTHS = (-1, -2, 0, 1, 2, 1 << 20, 1 << 31)


def _in_flatbuffer(data: bytes, random: Random) -> bytes:
    """Alter what vtables, fields and vectors say, and what refers to what."""
    mutant, found = bytearray(data), _structure(data)
    for _ in range(random.randint(1, MOST_DAMAGES)):
        entry, field = random.choice(found.fields)
        _, other = random.choice(found.fields)
        table = random.choice(found.tables)
        target = other + int.from_bytes(mutant[other : other + 4], "little")
        element, edge = random.choice((1, 2, 3, 4, 8)), _edge(mutant, random)
        few = random.choice((*_LENGTHS, random.randrange(99)))
        width, place, value = random.choice(
            (
                # A field is elsewhere, or not there, or another number.
                (2, entry, random.choice((*_OFFSETS, random.randrange(64)))),
                (random.choice((1, 2, 4, 8)), field, edge),
                # A table of another class.
                (4, table, table - random.choice(found.vtables)),
                # It refers to another table, to another's vector, to itself.
                (4, field, random.choice((table, field, target)) - field),
                # A vector of another length, or another element of it.
                (4, target, edge),
                (4, target + 4 * element, few),
            )
        )
        if place <= len(mutant) - width:
            number = value % (1 << 8 * width)
            mutant[place : place + width] = number.to_bytes(width, "little")
    return bytes(mutant)


def _in_container(data: bytes, random: Random) -> bytes:
    """Alter values of the header, whose checksum and length are right again."""
    _, version, length, _ = _CONTAINER.unpack_from(data)
    header = msgspec.msgpack.decode(data[_CONTAINER.size : _CONTAINER.size + length])
    for _ in range(random.randint(1, MOST_DAMAGES)):
        header = _altered(header, random)
    body = msgspec.msgpack.encode(header)
    prefix = _CONTAINER.pack(MAGIC, version, len(body), zlib.crc32(body))
    return prefix + body + data[_CONTAINER.size + len(body) :]


def _altered(value: Any, random: Random) -> Any:
    """Return plain data with one value altered, somewhere inside."""
    if isinstance(value, dict) and value:
        key = random.choice(list(value))
        if random.random() < 0.05:
            return {name: each for name, each in value.items() if name != key}
        return value | {key: _altered(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.9:
        place = random.randrange(len(value))
        kind = random.random()
        if kind < 0.05:
            return value[:place]
        if kind < 0.1:
            return [*value[:place], value[place], *value[place:]]
        return [*value[:place], _altered(value[place], random), *value[place + 1 :]]
    return _replaced(value, random)


def _replaced(value: Any, random: Random) -> Any:
    if isinstance(value, bool) or random.random() < 0.05:
        return random.choice((None, True, False, [], {}, "", b"", "é" * 9, 0.5, [0]))
    if isinstance(value, int):
        edges = (*EDGES, *(-each for each in EDGES if each <= 2**63))
        return random.choice((value + random.choice((-1, 1)), random.choice(edges)))
    if isinstance(value, float):
        return random.choice((0.0, -1.0, math.inf, math.nan, 1e-45, 3e38, 1e300))
    if isinstance(value, str):
        return random.choice(("", value * 2, "\0", "x" * 70_000, value[:1]))
    if isinstance(value, bytes):
        return value[: random.randrange(len(value) + 1)]
    return random.choice((0, 1, [], None))


def _in_onnx(data: bytes, random: Random) -> bytes:
    """Alter fields of the messages: names, types, numbers, shapes, whole nodes."""
    import onnx

    model = onnx.ModelProto.FromString(data)
    for _ in range(random.randint(1, MOST_DAMAGES)):
        message = model
        while random.random() < 0.9:
            inner = [
                each
                for field, value in message.ListFields()
                if field.message_type is not None
                for each in (value if _is_repeated(value) else [value])
            ]
            if not inner:
                break
            message = random.choice(inner)
        _alter_message(message, random)
    altered: bytes = model.SerializeToString()
    return altered


def _is_repeated(value: Any) -> bool:
    return hasattr(value, "extend")


def _alter_message(message: Any, random: Random) -> None:
    field = random.choice(message.DESCRIPTOR.fields)
    if random.random() < 0.7 and message.ListFields():
        field = random.choice(message.ListFields())[0]
    value = getattr(message, field.name)
    if not _is_repeated(value):
        if field.message_type is not None or random.random() < 0.1:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _scalar(field, random))
    elif not value or random.random() < 0.2:
        if field.message_type is not None:
            value.add()
        else:
            value.append(_scalar(field, random))
    elif random.random() < 0.2:
        del value[random.randrange(len(value))]
    elif random.random() < 0.3:
        value.extend(list(value)[: random.randint(1, 3)])
    elif field.message_type is not None:
        place, other = random.randrange(len(value)), random.randrange(len(value))
        copy = type(value[place])()
        copy.CopyFrom(value[place])
        value[place].CopyFrom(value[other])
        value[other].CopyFrom(copy)
    else:
        value[random.randrange(len(value))] = _scalar(field, random)


_NAMES = ("", "x", "y", "w", "b", "m", "q", "c", "Conv", "If", "Loop", "Relu", "é\n")


def _scalar(field: Any, random: Random) -> Any:
    """Return a value that a field may have, by its type and nothing else."""
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        name = random.choice((*_NAMES, "x" * 70_000))
        return name.encode() if field.type == field.TYPE_BYTES else name
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return random.choice((0.0, -1.0, math.inf, math.nan, 1e-45, 3e38))
    if kind == field.CPPTYPE_ENUM:
        return random.choice([each.number for each in field.enum_type.values])
    bits = 64 if kind in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 32
    number = random.choice((*EDGES, *(-each for each in EDGES)))
    if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return number % (1 << bits)
    half = 1 << (bits - 1)
    return (number + half) % (1 << bits) - half


_STRUCTURED: dict[FileKind, Callable[[bytes, Random], bytes]] = {
    FileKind.TFLITE: _in_flatbuffer,
    FileKind.CONTAINER: _in_container,
    FileKind.ONNX: _in_onnx,
}
