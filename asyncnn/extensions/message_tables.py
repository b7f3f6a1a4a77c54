"""Messages of protocol buffers as tables, and the classes made of these.

A line has the name of a message and its fields, each a type, a name and a number;
``A of B`` is a message within B. In front of a type is whether there are several, by
name (``map``), or one of those so marked. Classes are in pools of their own, so that a
process may have others of the same names.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

_INTEGERS = ("int32", "int64", "uint32", "uint64")
_TYPES: dict[str, Any] = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "float", "double", "string", "bytes", *_INTEGERS)
}


def described(package: str, table: str, *, syntax: str) -> FileDescriptorProto:
    """Return a table as protobuf describes a file.

    ``syntax`` is proto2, which knows what is there but empty, or proto3.
    """
    file = FileDescriptorProto(
        name=f"asyncnn/{package}.proto", package=package, syntax=syntax
    )
    found: dict[str, DescriptorProto] = {}
    for line in table.replace("\n    ", " ").strip().splitlines():
        head, _, fields = line.partition(":")
        name, _, outer = head.partition(" of ")
        inside = found[outer].nested_type if outer else file.message_type
        message = found[name] = inside.add(name=name)
        path = f".{package}.{outer}.{name}" if outer else f".{package}.{name}"
        for field in filter(None, map(str.strip, fields.split(", "))):
            _add(message, path, *field.split())
    return file


def _add(
    message: DescriptorProto, path: str, kind: str, name: str, number: str
) -> None:
    """Add a field; a map is, as in protobuf, a repeated message of keys and values."""
    how, _, type_ = kind.rpartition(":")
    package = path.split(".", 2)[1]
    type_name = "" if type_ in _TYPES else f".{package}.{type_}"
    if how == "map":
        entry = message.nested_type.add(name=f"{name.title()}Entry")
        entry.options.map_entry = True
        _add(entry, path, "string", "key", "1")
        _add(entry, path, type_, "value", "2")
        how, type_name = "repeated", f"{path}.{entry.name}"
    field = message.field.add(
        name=name,
        number=int(number),
        label=FieldDescriptorProto.LABEL_REPEATED
        if how == "repeated"
        else FieldDescriptorProto.LABEL_OPTIONAL,
        type=FieldDescriptorProto.TYPE_MESSAGE if type_name else _TYPES[type_],
    )
    if type_name:
        field.type_name = type_name
    if how == "one":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0


def pool_of(files: Iterable[bytes]) -> DescriptorPool:
    """Return a pool with files as they are serialised."""
    pool = DescriptorPool()
    for serialized in files:
        pool.AddSerializedFile(serialized)
    return pool


def message_class_of(pool: DescriptorPool, name: str) -> Any:
    """Return the class of a message, which is named with its package."""
    return GetMessageClass(pool.FindMessageTypeByName(name))
