"""The transport half of the burst benchmark: contenders, peers, verdicts."""

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest

from asyncnn.bench.burst_goals import (
    GOALS,
    MILLISECOND,
    PIPE,
    PIPE_STREAM,
    QUEUE,
    QUEUE_BATCHES,
    QUEUE_HOGS,
    judge_burst,
)
from asyncnn.bench.burst_transport import BATCH, queue_echo, queue_stream
from asyncnn.bench.burst_transport_peers import (
    ManyCalls,
    iceoryx_echo,
    installed_versions,
    pipe_stream,
    uvloop_echo,
    zmq_echo,
)
from asyncnn.bench.litert import PeerMissingError
from asyncnn.bench.rounds import Figure
from asyncnn.bench.service_peers import Call, Exchange

CPU = min(os.sched_getaffinity(0))
EXCHANGE = Exchange(96, 72)
Peer = Callable[[int, Exchange], AbstractAsyncContextManager[Any]]


async def answer(call: Call) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


@pytest.mark.slow
class TestEchoes:
    @pytest.mark.parametrize(("peer", "package"), [(queue_echo, ""), (zmq_echo, "zmq")])
    async def test_an_answer_has_the_size_it_should(
        self, peer: Peer, package: str
    ) -> None:
        if package:
            pytest.importorskip(package)
        async with peer(CPU, EXCHANGE) as call:
            assert [len(await answer(call)) for _ in range(3)] == [72] * 3

    @pytest.mark.parametrize(
        ("peer", "package"),
        [(partial(uvloop_echo, CPU), "uvloop"), (iceoryx_echo, "iceoryx2")],
    )
    async def test_many_calls_are_timed_at_once(self, peer: Peer, package: str) -> None:
        pytest.importorskip(package)
        async with peer(CPU, EXCHANGE) as calls:
            assert isinstance(calls, ManyCalls)
            for runs in (3, 1):
                samples = calls.measure(runs)
                assert len(samples) == runs
                assert min(samples) > 0

    @pytest.mark.parametrize(
        "stream", [partial(queue_stream, batch=b) for b in (1, BATCH)] + [pipe_stream]
    )
    async def test_a_stream_is_acknowledged(
        self, stream: Callable[[int], AbstractAsyncContextManager[Call]]
    ) -> None:
        async with stream(CPU) as call:
            for _ in range(3):
                assert await answer(call)


@pytest.mark.parametrize(
    ("peer", "module", "package"),
    [
        (partial(uvloop_echo, CPU), "uvloop", "uvloop"),
        (zmq_echo, "zmq.asyncio", "pyzmq"),
        (iceoryx_echo, "iceoryx2", "iceoryx2"),
    ],
)
async def test_a_peer_that_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, peer: Peer, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PeerMissingError, match=f"pip install {package}"):
        async with peer(CPU, EXCHANGE):
            pass


def test_versions_are_those_of_peers_that_are_there() -> None:
    assert installed_versions().keys() <= {"grpcio", "iceoryx2", "pyzmq", "uvloop"}


def figures(**us: float) -> dict[str, Figure]:
    return {name: Figure((value,)) for name, value in us.items()}


class TestGoals:
    @pytest.mark.parametrize(("is_apart", "limit"), [(True, 0.06), (False, 0.5)])
    def test_a_placement_has_its_own(self, is_apart: bool, limit: float) -> None:
        for ratio, met in ((limit, True), (limit + 0.001, False)):
            measured = figures(**{QUEUE: ratio, PIPE: 1.0})
            (verdict,) = judge_burst(measured, is_apart=is_apart)
            assert (verdict.figure, verdict.peer) == (QUEUE, PIPE)
            assert (verdict.limit, verdict.met) == (limit, met)

    def test_one_without_its_peer_is_left_out(self) -> None:
        measured = figures(**{QUEUE_BATCHES: 1.0, PIPE: 1.0})
        assert judge_burst(measured, is_apart=True) == ()
        measured |= figures(**{PIPE_STREAM: 100.0})
        (verdict,) = judge_burst(measured, is_apart=True)
        assert verdict.met

    @pytest.mark.parametrize(("us", "met"), [(1000.0, True), (1001.0, False)])
    @pytest.mark.parametrize("is_apart", [True, False])
    def test_nothing_takes_a_millisecond(
        self, us: float, met: bool, is_apart: bool
    ) -> None:
        measured = figures(**{QUEUE_HOGS: us})
        (verdict,) = judge_burst(measured, is_apart=is_apart)
        assert (verdict.peer, verdict.met) == (MILLISECOND, met)

    def test_gates_are_wider_than_goals(self) -> None:
        for goal in GOALS:
            for limits in filter(None, (goal.apart, goal.together)):
                assert limits.of(gates=False) <= limits.of(gates=True)
        measured = figures(**{QUEUE: 0.07, PIPE: 1.0})
        (goal_verdict,) = judge_burst(measured, is_apart=True)
        (gate_verdict,) = judge_burst(measured, is_apart=True, gates=True)
        assert (goal_verdict.met, gate_verdict.met) == (False, True)

    def test_no_figure_is_held_against_a_peer_twice(self) -> None:
        pairs = [(goal.figure, goal.peer) for goal in GOALS]
        assert len(set(pairs)) == len(pairs)
