"""The ring of records in which a driver notes its last calls, in C and in Python."""

import numpy as np
import pytest

from asyncnn.hal.types import ErrorStatus
from asyncnn.service.driver.call_ring import (
    CallNote,
    CallRing,
    PythonCallNote,
    PythonCallRing,
    flag,
)
from asyncnn.service.recorded_memory import RECORD_BYTES, TEMPLATE

RINGS = list(dict.fromkeys([CallRing, PythonCallRing]))
NOTES = {CallRing: CallNote, PythonCallRing: PythonCallNote}


def template(kind: int = 4, number: int = 0) -> bytes:
    return TEMPLATE.pack(kind, 0, 77, 1, number, 0, 0, -1, -1, -1)


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: ring.__module__)
class TestRing:
    def test_the_last_calls_are_there(self, ring: type[PythonCallRing]) -> None:
        records = memoryview(bytearray(5 * RECORD_BYTES))
        noting = ring(records)
        calls = [noting.begin(template(number=n)) for n in range(12)]
        assert calls == list(range(1, 13))
        kept = {int.from_bytes(records[at : at + 8], "little") for at in places(5)}
        assert kept == {8, 9, 10, 11, 12}

    def test_an_end_is_noted_unless_the_record_is_another_call_s(
        self, ring: type[PythonCallRing]
    ) -> None:
        records = memoryview(bytearray(2 * RECORD_BYTES))
        noting = ring(records)
        first, *_, last = [noting.begin(template()) for _ in range(3)]
        before = bytes(records)
        noting.end(first, 7)
        noting.end(0, 7)
        assert bytes(records) == before
        noting.end(last, ErrorStatus.GENERAL_FAILURE)
        flag(records, last, 1)
        at = last % 2 * RECORD_BYTES
        began, ended = np.frombuffer(records[at + 8 : at + 24], np.int64)
        assert 0 < began <= ended
        assert np.frombuffer(records[at + 24 : at + 32], np.int32).tolist() == [2, 1]

    def test_a_note_is_of_calls_that_come_again(
        self, ring: type[PythonCallRing]
    ) -> None:
        records = memoryview(bytearray(3 * RECORD_BYTES))
        noting = ring(records)
        note = NOTES[ring](noting, template(number=5))
        assert note.call == 0
        note.end(0)
        assert not any(records)
        for number in (1, 2):
            note.begin(1000 * number)
            assert note.call == number
            note.end(ErrorStatus.INVALID_ARGUMENT)
        assert noting.begin(template()) == 3
        note.begin(4000)
        for call, began in ((2, 2000), (4, 4000)):
            at = call % 3 * RECORD_BYTES
            assert np.frombuffer(records[at : at + 16], np.int64).tolist() == [
                call,
                began,
            ]
        with pytest.raises(ValueError, match="another size"):
            NOTES[ring](noting, b"")

    @pytest.mark.parametrize("wrong", [b"", bytes(TEMPLATE.size + 1)], ids=len)
    def test_other_templates_are_refused(
        self, ring: type[PythonCallRing], wrong: bytes
    ) -> None:
        with pytest.raises(ValueError, match="another size"):
            ring(memoryview(bytearray(RECORD_BYTES))).begin(wrong)

    def test_there_is_room_for_a_record(self, ring: type[PythonCallRing]) -> None:
        with pytest.raises(ValueError, match="no room"):
            ring(memoryview(bytearray(RECORD_BYTES - 1)))


def places(count: int) -> range:
    return range(0, count * RECORD_BYTES, RECORD_BYTES)
