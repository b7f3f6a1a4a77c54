"""Two processes at full speed lose, duplicate and tear nothing, however they wait."""

import random
from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from asyncnn.fmq import MessageQueue
from tests.fmq.peer import (
    QUANTUM,
    READERS,
    WRITERS,
    Peer,
    Stream,
    elements,
    receive,
    send,
)

streams = st.builds(
    Stream,
    start=st.integers(0, 1 << 40),
    sizes=st.just(()),
    writer=st.sampled_from(WRITERS),
    reader=st.sampled_from(READERS),
    spins=st.booleans(),
    writer_pauses=st.sampled_from([0, 1, 7]),
    reader_pauses=st.sampled_from([0, 1, 7]),
)


class TwoProcesses(RuleBasedStateMachine):
    """Queues keep their state from one stream to the next; so do their ends."""

    packets: ClassVar[int] = 0
    of_a_stream: ClassVar[int] = 4_000

    @initialize(count=st.sampled_from([2, 16, 100]))
    def start(self, count: int) -> None:
        self.count = count
        self.to = MessageQueue.create(QUANTUM, count)
        self.fro = MessageQueue.create(QUANTUM, count)
        self.peer = Peer(self.to, self.fro)

    @rule(stream=streams, seed=st.integers(0, 1 << 32), largest=st.integers(1, 100))
    def send_stream(self, stream: Stream, seed: int, largest: int) -> None:
        stream = self.sized(stream, seed, largest)
        self.peer.begin("receive", stream)
        send(self.to, stream)
        assert self.peer.outcome() == "done"

    @rule(stream=streams, seed=st.integers(0, 1 << 32), largest=st.integers(1, 100))
    def receive_stream(self, stream: Stream, seed: int, largest: int) -> None:
        stream = self.sized(stream, seed, largest)
        self.peer.begin("send", stream)
        assert receive(self.fro, stream) == ""
        assert self.peer.outcome() == "done"

    @invariant()
    def nothing_is_left_over(self) -> None:
        if hasattr(self, "peer"):
            assert self.to.available_to_write() == self.count
            assert not self.fro.is_readable()

    def sized(self, stream: Stream, seed: int, largest: int) -> Stream:
        """Return the stream with packets of 1 to ``largest`` or all elements."""
        draw = random.Random(seed)
        limit = min(largest, self.count)
        sizes = tuple(draw.randint(1, limit) for _ in range(self.of_a_stream - 1))
        type(self).packets += self.of_a_stream
        return Stream(
            stream.start,
            (self.count, *sizes),
            stream.writer,
            stream.reader,
            stream.spins,
            stream.writer_pauses,
            stream.reader_pauses,
        )

    def teardown(self) -> None:
        if hasattr(self, "peer"):
            self.peer.__exit__()
            self.to.close()
            self.fro.close()


@pytest.mark.parametrize(
    ("packets", "of_a_stream"),
    [
        pytest.param(2_000, 400, id="some"),
        pytest.param(
            200_000,
            4_000,
            id="many",
            marks=[pytest.mark.exhaustive, pytest.mark.unrecorded],
        ),
    ],
)
def test_any_streams_both_ways_arrive_as_they_were_sent(
    monkeypatch: pytest.MonkeyPatch, packets: int, of_a_stream: int
) -> None:
    monkeypatch.setattr(TwoProcesses, "of_a_stream", of_a_stream)
    TwoProcesses.packets = 0
    while TwoProcesses.packets < packets:
        run_state_machine_as_test(
            TwoProcesses,
            settings=settings(
                max_examples=4,
                stateful_step_count=10,
                deadline=None,
                phases=[Phase.generate],
            ),
        )


@pytest.fixture(scope="module", params=["ring as here", "ring in Python"])
def ends(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[MessageQueue, MessageQueue, Peer]]:
    """Queues to a process and back, whose ends may have another ring there."""
    with (
        pytest.MonkeyPatch.context() as environment,
        MessageQueue.create(QUANTUM, 10) as to,
        MessageQueue.create(QUANTUM, 10) as fro,
    ):
        if request.param == "ring in Python":
            environment.setenv("ASYNCNN_PURE_RING", "1")
        with Peer(to, fro) as peer:
            yield to, fro, peer


class TestPairs:
    """Every way to write meets every way to read."""

    @pytest.mark.parametrize("spins", [True, False])
    @pytest.mark.parametrize("reader", READERS)
    @pytest.mark.parametrize("writer", WRITERS)
    def test_they_understand_each_other(
        self,
        ends: tuple[MessageQueue, MessageQueue, Peer],
        writer: str,
        reader: str,
        spins: bool,
    ) -> None:
        to, fro, peer = ends
        sizes = tuple(number % 10 + 1 for number in range(200))
        stream = Stream(5, sizes, writer, reader, spins)
        peer.begin("receive", stream)
        send(to, stream)
        assert peer.outcome() == "done"
        peer.begin("send", stream)
        assert receive(fro, stream) == ""
        assert peer.outcome() == "done"


class TestJudge:
    """`receive` notices what it is there to notice."""

    STREAM = Stream(0, (2, 3, 2), "nowait", "in place")

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (elements(0, 5) + elements(4, 2), "differ"),
            (elements(0, 2) + elements(3, 4), "differ"),
            (elements(0, 6) + elements(5, 1), "differ"),
            (elements(0, 4), "a packet ends at 4"),
        ],
    )
    def test_it_finds_what_is_wrong(self, data: bytes, problem: str) -> None:
        with (
            MessageQueue.create(QUANTUM, 10) as queue,
            MessageQueue.open(queue.descriptor) as other,
        ):
            queue.write_nowait(data)
            assert problem in receive(other, self.STREAM)
