"""A queue carries packets whole, in order, round its end, with no room to spare."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.fmq import MessageQueue, QueueClosedError
from asyncnn.hal.errors import InvalidArgumentError
from tests.conftest import one_in
from tests.fmq.conftest import CAPACITY, COUNT, QUANTUM, Ends, elements


def write_in_place(queue: MessageQueue, data: bytes) -> bool:
    spans = queue.writing(len(data) // QUANTUM)
    if spans is None:
        return False
    split = len(spans.first)
    spans.first[:], spans.second[:] = data[:split], data[split:]
    spans.commit()
    return True


def read_in_place(queue: MessageQueue, count: int | None = None) -> bytes | None:
    spans = queue.reading(count)
    if spans is None:
        return None
    data = bytes(spans.first) + bytes(spans.second)
    spans.commit()
    return data


Write = Callable[[MessageQueue, bytes], bool]
Read = Callable[..., bytes | None]
write = pytest.mark.parametrize("write", [MessageQueue.write_nowait, write_in_place])
read = pytest.mark.parametrize("read", [MessageQueue.read_nowait, read_in_place])


@write
@read
class TestPackets:
    @pytest.mark.parametrize("start", one_in(5, range(COUNT)))
    @pytest.mark.parametrize("count", [1, 2, COUNT - 1, COUNT])
    def test_they_arrive_wherever_they_begin(
        self, ends: Ends, write: Write, read: Read, start: int, count: int
    ) -> None:
        if start:
            assert write(ends.writer, elements(start))
            assert read(ends.reader) == elements(start)
        assert write(ends.writer, elements(count, 100))
        assert read(ends.reader) == elements(count, 100)
        assert read(ends.reader) is None

    def test_one_that_does_not_fit_is_not_written_at_all(
        self, ends: Ends, write: Write, read: Read
    ) -> None:
        assert write(ends.writer, elements(COUNT - 2))
        assert not write(ends.writer, elements(3, 50))
        assert ends.reader.available_to_read() == COUNT - 2
        assert write(ends.writer, elements(2, 70))
        assert read(ends.reader) == elements(COUNT - 2) + elements(2, 70)

    def test_too_many_are_not_read_at_all(
        self, ends: Ends, write: Write, read: Read
    ) -> None:
        assert write(ends.writer, elements(5))
        assert read(ends.reader, 6) is None
        assert read(ends.reader, 2) == elements(2)
        assert read(ends.reader, 3) == elements(3, 2)

    def test_room_is_counted_in_elements(
        self, ends: Ends, write: Write, read: Read
    ) -> None:
        writer, reader = ends
        assert (writer.available_to_write(), reader.available_to_read()) == (COUNT, 0)
        assert not reader.is_readable()
        assert write(writer, elements(5))
        assert writer.available_to_write() == COUNT - 5
        assert reader.available_to_read() == 5
        assert reader.is_readable()
        read(reader, 4)
        assert writer.available_to_write() == COUNT - 1

    @pytest.mark.parametrize("count", [0, -1, COUNT + 1, 1 << 70])
    def test_what_can_never_be_read_is_an_error(
        self, ends: Ends, write: Write, read: Read, count: int
    ) -> None:
        assert write(ends.writer, elements(1))
        with pytest.raises(InvalidArgumentError, match=str(COUNT)):
            read(ends.reader, count)

    def test_what_can_never_be_written_is_an_error(
        self, ends: Ends, write: Write, read: Read
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=str(COUNT)):
            write(ends.writer, elements(COUNT + 1))
        assert read(ends.reader) is None

    @given(st.lists(st.integers(1, COUNT), max_size=40), st.data())
    def test_what_goes_in_comes_out(
        self, write: Write, read: Read, sizes: list[int], data: st.DataObject
    ) -> None:
        with (
            MessageQueue.create(QUANTUM, COUNT) as writer,
            MessageQueue.open(writer.descriptor) as reader,
        ):
            expected, got, position = b"", b"", 0
            for size in sizes:
                while not write(writer, elements(size, position)):
                    unread = reader.available_to_read()
                    got += read(reader, data.draw(st.integers(1, unread))) or b""
                expected += elements(size, position)
                position += size
            assert got + (read(reader) or b"") == expected


@pytest.mark.parametrize("size", [1, QUANTUM + 1, CAPACITY + 1])
def test_parts_of_elements_are_an_error(ends: Ends, size: int) -> None:
    with pytest.raises(InvalidArgumentError):
        ends.writer.write_nowait(bytes(size))
    assert not ends.reader.is_readable()


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_any_bytes_can_be_written(ends: Ends, kind: Callable[[bytes], bytes]) -> None:
    assert ends.writer.write_nowait(kind(elements(3)))
    assert ends.reader.read_nowait() == elements(3)


class TestSpans:
    def test_nothing_happens_without_commit(self, ends: Ends) -> None:
        ends.writer.write_nowait(elements(2))
        assert ends.writer.writing(3) is not None
        assert ends.reader.available_to_read() == 2
        assert ends.reader.reading() is not None
        assert ends.reader.available_to_read() == 2

    def test_they_end_with_commit(self, ends: Ends) -> None:
        spans = ends.writer.writing(1)
        assert spans is not None
        spans.commit()
        with pytest.raises(ValueError, match="released"):
            spans.first[0] = 1

    def test_they_are_committed_once(self, ends: Ends) -> None:
        spans = ends.writer.writing(1)
        assert spans is not None
        spans.commit()
        with pytest.raises(InvalidArgumentError, match="since"):
            spans.commit()
        assert ends.reader.available_to_read() == 1

    @pytest.mark.parametrize("overtaken", ["writing", "reading"])
    def test_those_that_were_overtaken_cannot_be_committed(
        self, ends: Ends, overtaken: str
    ) -> None:
        ends.writer.write_nowait(elements(1))
        end = ends.writer if overtaken == "writing" else ends.reader
        spans = getattr(end, overtaken)(1)
        ends.writer.write_nowait(elements(1))
        ends.reader.read_nowait()
        with pytest.raises(InvalidArgumentError, match="since"):
            spans.commit()
        assert ends.writer.available_to_write() == COUNT

    def test_they_outlive_the_queue_but_go_nowhere(self, ends: Ends) -> None:
        spans = ends.writer.writing(1)
        assert spans is not None
        ends.writer.close()
        spans.first[:] = elements(1)
        with pytest.raises(QueueClosedError):
            spans.commit()


class TestClosing:
    @pytest.mark.parametrize(
        "use",
        [
            MessageQueue.read_nowait,
            MessageQueue.is_readable,
            MessageQueue.available_to_read,
            MessageQueue.available_to_write,
            MessageQueue.reading,
            lambda queue: queue.write_nowait(elements(1)),
            lambda queue: queue.writing(1),
        ],
    )
    def test_a_closed_end_cannot_be_used(
        self, ends: Ends, use: Callable[[MessageQueue], object]
    ) -> None:
        ends.reader.close()
        for _ in range(2):
            with pytest.raises(QueueClosedError, match="is closed"):
                use(ends.reader)

    def test_it_happens_once(self, ends: Ends) -> None:
        for _ in range(2):
            ends.writer.close()
        assert ends.writer.is_closed
        assert repr(ends.writer) == "<MessageQueue of 16 x 8 bytes, closed>"

    def test_the_other_end_reads_what_is_there(self, ends: Ends) -> None:
        ends.writer.write_nowait(elements(1))
        ends.writer.close()
        assert ends.reader.read_nowait() == elements(1)
        assert repr(ends.reader) == "<MessageQueue of 16 x 8 bytes, open>"

    def test_one_that_is_forgotten_is_warned_about_and_leaves_nothing(self) -> None:
        with pytest.warns(ResourceWarning, match="was not closed"):
            MessageQueue.create(QUANTUM, COUNT)


def test_the_ring_itself_can_be_written(ends: Ends) -> None:
    spans = ends.writer.writing(2)
    assert spans is not None
    spans.first[:] = elements(2)
    assert ends.writer.write_nowait(spans.first)
    assert ends.reader.read_nowait() == elements(2)


class TestRefusals:
    """Which of two errors one gets is the same for both rings."""

    @pytest.mark.parametrize("data", [b"", b"1", elements(1), elements(COUNT + 1)])
    def test_a_closed_end_writes_nothing_of_any_size(
        self, ends: Ends, data: bytes
    ) -> None:
        ends.writer.close()
        with pytest.raises(QueueClosedError):
            ends.writer.write_nowait(data)

    @pytest.mark.parametrize("way", ["writing", "reading"])
    def test_spans_that_were_overtaken_are_refused_as_such(
        self, ends: Ends, way: str
    ) -> None:
        ends.writer.write_nowait(elements(1))
        end = ends.writer if way == "writing" else ends.reader
        spans = getattr(end, way)(1)
        ends.writer.write_nowait(elements(1))
        ends.reader.read_nowait()
        end.close()
        with pytest.raises(InvalidArgumentError, match="since"):
            spans.commit()


def test_no_looks_see_nothing(ends: Ends) -> None:
    ends.writer.write_nowait(elements(1))
    assert not ends.reader.is_readable(0)
    assert ends.reader.is_readable(1)
    assert ends.reader.read_nowait(None, 0) == elements(1)
