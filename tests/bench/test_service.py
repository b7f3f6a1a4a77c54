"""The service benchmark: its contenders, verdicts and report."""

import inspect
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from asyncnn.bench import service
from asyncnn.bench.environment import describe_environment
from asyncnn.bench.litert import PeerMissingError
from asyncnn.bench.rounds import Figure
from asyncnn.bench.service import (
    DESCRIPTIONS,
    EXECUTE,
    GRPC,
    IMAGE,
    IMAGE_EXECUTOR,
    IMAGE_PIPE,
    STREAMS,
    ServicePlacement,
    ServiceReport,
    bench_service,
    judge_service,
)
from asyncnn.bench.service_driver import (
    exchanged_bytes,
    execute_call,
    image_call,
)
from asyncnn.bench.service_peers import (
    IMAGE_SHAPE,
    Call,
    Exchange,
    cut,
    executor_image,
    grpc_echo,
    grpc_version,
    pinned,
    pipe_echo,
    pipe_image,
    streams_echo,
)
from asyncnn.bench.service_table import service_notes, service_table
from asyncnn.cli.bench import bench_app
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.device import connect, open_device
from asyncnn.service import Server
from asyncnn.service.channel import Channel

Peer = Callable[[int, Any], AbstractAsyncContextManager[Call]]
CPU = min(os.sched_getaffinity(0))


async def answer(call: Call) -> Any:
    result = call()
    return await result if inspect.isawaitable(result) else result


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(1).random(IMAGE_SHAPE, np.float32)


@pytest.mark.slow
class TestPeers:
    @pytest.mark.parametrize("peer", [pipe_echo, streams_echo, grpc_echo])
    async def test_an_echo_has_the_size_it_should(self, peer: Peer) -> None:
        if peer is grpc_echo:
            pytest.importorskip("grpc")
        async with peer(CPU, Exchange(300, 70)) as call:
            assert [len(await answer(call)) for _ in range(3)] == [70] * 3

    @pytest.mark.parametrize("peer", [pipe_image, executor_image])
    async def test_a_result_is_cut_from_the_image(
        self, peer: Peer, image: np.ndarray
    ) -> None:
        async with peer(CPU, image) as call:
            np.testing.assert_array_equal(await answer(call), cut(image))


@pytest.mark.parametrize("in_place", [True, False])
async def test_the_driver_cuts_the_same(image: np.ndarray, in_place: bool) -> None:
    async with open_device() as device:
        call = await image_call(device, image, in_place=in_place)
        result = await call()
    assert result.size == 1001
    np.testing.assert_array_equal(result, cut(image))


async def test_echoes_are_as_long_as_messages_of_an_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send_now = Channel._send_now

    def watched(self: Channel, packet: bytes, fds: Any) -> bool:
        sent.append(len(packet))
        return send_now(self, packet, fds)

    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as hal, Server(hal, path), connect(path) as device:
        call = await execute_call(device)
        for _ in range(2):  # the second one binds the request
            await call()
        monkeypatch.setattr(Channel, "_send_now", watched)
        assert (await call()).status is ErrorStatus.NONE
    exchange = exchanged_bytes()
    # Small numbers take up to two bytes less, timings are what they are.
    assert sent == [
        pytest.approx(exchange.request, abs=12),
        pytest.approx(exchange.response, abs=20),
    ]


async def test_without_grpcio_the_peer_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.setitem(sys.modules, "grpc.aio", None)
    with pytest.raises(PeerMissingError, match="grpcio") as info:
        async with grpc_echo(CPU, Exchange(1, 1)):
            pass
    assert "asyncnn[bench]" in str(info.value)
    with pytest.raises(PeerMissingError):
        grpc_version()


def test_pinning_ends_with_the_block() -> None:
    before = os.sched_getaffinity(0)
    with pinned(CPU):
        assert os.sched_getaffinity(0) == {CPU}
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("cpus", "placements"),
    [({0, 1}, [(1, 0), (1, 1)]), ({2, 5, 7}, [(7, 5), (7, 7)]), ({3}, [(3, 3)])],
)
def test_processes_are_placed_apart_if_they_can_and_together(
    monkeypatch: pytest.MonkeyPatch, cpus: set[int], placements: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cpus)
    assert service.cpu_pairs() == placements


def figures(**us: float) -> dict[str, Figure]:
    return {name: Figure((value,)) for name, value in us.items()}


class TestGoals:
    @pytest.mark.parametrize(
        ("figure", "peer", "met", "missed"),
        [
            (EXECUTE, STREAMS, 1.6, 1.61),
            (EXECUTE, GRPC, 0.5, 0.51),
            (IMAGE, IMAGE_PIPE, 0.3, 0.31),
            (IMAGE, IMAGE_EXECUTOR, 0.1, 0.11),
        ],
    )
    def test_each_has_its_limit(
        self, figure: str, peer: str, met: float, missed: float
    ) -> None:
        for ratio, expected in ((met, True), (missed, False)):
            (verdict,) = judge_service(figures(**{figure: ratio, peer: 1.0}))
            assert (verdict.figure, verdict.peer) == (figure, peer)
            assert verdict.ratio == ratio
            assert verdict.met is expected

    def test_one_without_its_peer_is_left_out(self) -> None:
        assert judge_service(figures(**{EXECUTE: 1.0, IMAGE: 1.0})) == ()


@pytest.fixture(scope="module")
def report() -> ServiceReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "_BATCH_US", 500.0)
        patch.setattr(service, "cpu_pairs", lambda: [(CPU, CPU)])
        patch.setattr(service, "grpc_echo", _missing)
        return bench_service(rounds=2)


def _missing(cpu: int, exchange: Exchange) -> AbstractAsyncContextManager[Call]:
    class Missing:
        async def __aenter__(self) -> Call:
            raise PeerMissingError("no grpcio [here]")

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError

    return Missing()


@pytest.mark.slow
class TestReport:
    def test_every_contender_has_a_figure_or_a_reason(
        self, report: ServiceReport
    ) -> None:
        (placed,) = report.placements
        assert list(placed.us) == [name for name in DESCRIPTIONS if name != GRPC]
        assert placed.refusals == {GRPC: "no grpcio [here]"}
        assert all(us > 0 for us in placed.us.values())
        assert f"CPU {CPU}" in placed.placement

    def test_it_survives_json(self, report: ServiceReport) -> None:
        data = msgspec.json.encode(report)
        assert msgspec.json.decode(data, type=ServiceReport) == report


def made_up(execute_us: float) -> ServiceReport:
    measured = figures(**dict.fromkeys(DESCRIPTIONS, 100.0))
    measured |= figures(**{EXECUTE: execute_us, IMAGE: 5.0})
    del measured[GRPC]
    placed = ServicePlacement(
        placement="apart",
        figures=measured,
        us={name: figure.us for name, figure in measured.items()},
        verdicts=judge_service(measured),
        refusals={GRPC: "no grpcio [here]"},
    )
    return ServiceReport(describe_environment(), 5, Exchange(218, 95), (placed,))


class TestTable:
    @pytest.mark.parametrize(("execute_us", "outcome"), [(160, "met"), (161, "MISSED")])
    def test_it_shows_times_and_verdicts(self, execute_us: float, outcome: str) -> None:
        report = made_up(execute_us)
        assert report.met is (outcome == "met")
        console = Console(width=130, record=True, file=io.StringIO())
        console.print(service_table(report))
        rows = console.export_text().splitlines()
        (row,) = [row for row in rows if "execute / asyncio_streams" in row]
        assert row.split()[-5:-1] == [f"{execute_us / 100:.3f}", "<=", "1.6", outcome]
        (row,) = [row for row in rows if "execute / grpc_aio" in row]
        assert row.split()[-2] == "-"

    def test_notes_say_sizes_and_who_is_missing(self) -> None:
        assert list(service_notes(made_up(1))) == [
            "218 bytes to the driver and 95 back",
            "grpc_aio was not measured: no grpcio [here]",
        ]


@pytest.mark.parametrize(("execute_us", "status"), [(160, 0), (161, 1)])
def test_a_missed_goal_fails_a_check_after_all_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, execute_us: float, status: int
) -> None:
    def fake(*, rounds: int) -> ServiceReport:
        assert rounds == 6
        return made_up(execute_us)

    monkeypatch.setattr("asyncnn.cli.bench.bench_service", fake)
    file = tmp_path / "report.json"
    options = ["service", "--rounds", "6", "--check", "--json", str(file)]
    result = CliRunner().invoke(bench_app, options)
    assert result.exit_code == status
    assert "grpc_aio was not measured: no grpcio [here]" in result.output
    assert json.loads(file.read_text())["placements"][0]["placement"] == "apart"
