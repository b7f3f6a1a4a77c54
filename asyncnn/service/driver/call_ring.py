"""The ring of records in which a driver notes its last calls.

`CallRing` is the class in ``_calls.c`` where that was built, else `PythonCallRing`.
``ASYNCNN_PURE_RING=1`` asks for Python.
"""

import struct
import time

from asyncnn.lazy import compiled_module
from asyncnn.service.recorded_memory import PENDING, RECORD_BYTES, TEMPLATE

_ENDED, _STATUS, _FLAGS, _RESULT = 16, 24, 28, 32
_NUMBER, _ENDING = struct.Struct("<Q"), struct.Struct("<qi")
_REST = struct.Struct(f"<qqiIQ{TEMPLATE.size}s")


class PythonCallRing:
    """The last calls, as many as ``records`` have room for.

    Another process may read this memory at any time.

    :raises ValueError: if there is no room for one.
    """

    def __init__(self, records: memoryview) -> None:
        self._records = records
        self._count = len(records) // RECORD_BYTES
        self._last = 0
        if not self._count:
            raise ValueError("there is no room for a record")

    def begin(self, template: bytes, began_ns: int | None = None, /) -> int:
        """Note a call that begins, of a `TEMPLATE`; return its number, from 1 on.

        :raises ValueError: if the template has another size.
        """
        if len(template) != TEMPLATE.size:
            raise ValueError("a template of another size")
        self._last = call = self._last + 1
        at = call % self._count * RECORD_BYTES
        _NUMBER.pack_into(self._records, at, 0)
        if began_ns is None:
            began_ns = time.monotonic_ns()
        _REST.pack_into(self._records, at + 8, began_ns, 0, PENDING, 0, 0, template)
        _NUMBER.pack_into(self._records, at, call)
        return call

    def end(self, call: int, status: int, /) -> None:
        """Note that a call has ended now, unless its record was overwritten."""
        at = place_of(self._records, call)
        if at is not None:
            ending = time.monotonic_ns(), status
            _ENDING.pack_into(self._records, at + _ENDED, *ending)


class PythonCallNote:
    """Notes a call that comes again in ``ring``, and how each has ended.

    ``call`` is the number of the last one, 0 before there is one.

    :raises ValueError: if the template has another size.
    """

    def __init__(self, ring: PythonCallRing, template: bytes) -> None:
        if len(template) != TEMPLATE.size:
            raise ValueError("a template of another size")
        self._ring = ring
        self._template = template
        self.call = 0

    def begin(self, began_ns: int, /) -> None:
        """Note that it began at a time of the steady clock."""
        self.call = self._ring.begin(self._template, began_ns)

    def end(self, status: int, /) -> None:
        """Note that it has ended."""
        self._ring.end(self.call, status)


def place_of(records: memoryview, call: int) -> int | None:
    """Return where a call is noted; None if it is no more."""
    at = call % (len(records) // RECORD_BYTES) * RECORD_BYTES
    return at if call and _NUMBER.unpack_from(records, at)[0] == call else None


def flag(records: memoryview, call: int, more: int) -> None:
    """Note something that has happened to a call."""
    at = place_of(records, call)
    if at is not None:
        records[at + _FLAGS] |= more


def note_result(records: memoryview, call: int, result: int) -> None:
    """Note the number of the blob that a call has given."""
    at = place_of(records, call)
    if at is not None:
        _NUMBER.pack_into(records, at + _RESULT, result)


_built = compiled_module("asyncnn.service.driver._calls", "ASYNCNN_PURE_RING")
CallRing: type[PythonCallRing] = PythonCallRing if _built is None else _built.CallRing
"""Notes calls; see `PythonCallRing`."""
CallNote: type[PythonCallNote] = PythonCallNote if _built is None else _built.CallNote
"""Notes a call that comes again; see `PythonCallNote`."""
