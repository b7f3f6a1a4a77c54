"""The service benchmark end to end."""

from contextlib import AbstractAsyncContextManager

import msgspec
import pytest

from asyncnn.tools.bench.echoes import Exchange
from asyncnn.tools.bench.errors import PeerMissingError
from asyncnn.tools.bench.rounds import Call
from asyncnn.tools.bench.service import measuring
from asyncnn.tools.bench.service.measuring import bench_service
from asyncnn.tools.bench.service.report import DESCRIPTIONS, GRPC, ServiceReport
from tests.tools.bench.calling import CPU


@pytest.fixture(scope="module")
def report() -> ServiceReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_BATCH_US", 500.0)
        patch.setattr(measuring, "cpu_pairs", lambda: [(CPU, CPU)])
        patch.setattr(measuring, "grpc_echo", _missing)
        return bench_service(rounds=2)


def _missing(cpu: int, exchange: Exchange) -> AbstractAsyncContextManager[Call]:
    class Missing:
        async def __aenter__(self) -> Call:
            raise PeerMissingError("no grpcio [here]")

        async def __aexit__(self, *_: object) -> None:
            raise AssertionError

    return Missing()


class TestReport:
    @pytest.mark.exhaustive
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
