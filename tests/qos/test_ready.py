import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos.ready import ReadyQueue
from asyncnn.qos.work import Work


class Piece(Work):
    def __init__(
        self, label: int, priority: Priority, deadline_ns: int | None = None
    ) -> None:
        super().__init__(priority, deadline_ns)
        self.label = label

    def run(self) -> None:
        raise NotImplementedError

    def abort(self, status: ErrorStatus) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError


def drain(queue: ReadyQueue) -> list[Piece]:
    pieces: list[Piece] = []
    while (piece := queue.pop()) is not None:
        assert isinstance(piece, Piece)
        pieces.append(piece)
    return pieces


def expected_order(pieces: list[Piece]) -> list[Piece]:
    return sorted(
        pieces,
        key=lambda p: (
            -p.priority,
            float("inf") if p.deadline_ns is None else p.deadline_ns,
            p.label,
        ),
    )


arrivals = st.lists(
    st.tuples(st.sampled_from(Priority), st.none() | st.integers(0, 5)), max_size=40
)


@given(arrivals)
def test_priority_then_deadline_then_arrival(
    arriving: list[tuple[Priority, int | None]],
) -> None:
    pieces = [Piece(number, *spec) for number, spec in enumerate(arriving)]
    queue = ReadyQueue()
    for piece in pieces:
        queue.push(piece)
    assert len(queue) == len(pieces)
    assert drain(queue) == expected_order(pieces)
    assert len(queue) == 0


@given(arrivals, st.data())
def test_discarded_work_is_not_popped(
    arriving: list[tuple[Priority, int | None]], data: st.DataObject
) -> None:
    pieces = [Piece(number, *spec) for number, spec in enumerate(arriving)]
    queue = ReadyQueue()
    for piece in pieces:
        queue.push(piece)
    dropped = [piece for piece in pieces if data.draw(st.booleans())]
    for piece in dropped:
        assert queue.discard(piece)
        assert not queue.discard(piece)
    kept = [piece for piece in pieces if piece not in dropped]
    assert len(queue) == len(kept)
    assert drain(queue) == expected_order(kept)


def test_discarding_does_not_let_memory_grow() -> None:
    queue = ReadyQueue()
    for number in range(10_000):
        piece = Piece(number, Priority.LOW)
        queue.push(piece)
        queue.discard(piece)
    assert len(queue) == 0
    assert len(queue._heap) < 100


@pytest.mark.parametrize("earlier", [Priority.LOW, Priority.MEDIUM])
def test_high_overtakes_whatever_waits(earlier: Priority) -> None:
    queue = ReadyQueue()
    queue.push(Piece(0, earlier, deadline_ns=0))
    queue.push(Piece(1, Priority.HIGH))
    assert [piece.label for piece in drain(queue)] == [1, 0]
