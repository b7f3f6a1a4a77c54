"""The kernels benchmark on few kernels."""

import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.bench.arrays import Difference
from asyncnn.tools.bench.errors import PeerMissingError
from asyncnn.tools.bench.goals import LITERT
from asyncnn.tools.bench.kernels import measuring
from asyncnn.tools.bench.kernels.cases import Case
from asyncnn.tools.bench.kernels.measuring import bench_kernels
from asyncnn.tools.bench.kernels.report import ENGINE


class TestMeasuring:
    @pytest.fixture(autouse=True)
    def short_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("ai_edge_litert")
        monkeypatch.setattr(measuring, "_BATCH_US", 100.0)

    async def test_the_filter_selects_what_is_measured_against_litert(self) -> None:
        seen: list[str] = []

        def progress(cases: list[Case]) -> list[Case]:
            seen.extend(case.name for case in cases)
            return cases

        report = await bench_kernels("fully*_int8", rounds=2, progress=progress)
        (kernel,) = report.kernels
        assert seen == [kernel.kernel] == ["fully_connected_int8"]
        assert kernel.difference_to_ref == Difference(0.0, True)
        ratio = kernel.figures[ENGINE].ratio_to(kernel.figures[LITERT])
        assert kernel.verdict.ratio == ratio
        assert all(us > 0 for us in kernel.us.values())
        assert report.median_verdict is None

    async def test_a_filter_that_selects_nothing_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="no kernel 'nothing'"):
            await bench_kernels("nothing")


@pytest.mark.usefixtures("without_litert")
async def test_without_litert_there_is_nothing_to_measure() -> None:
    with pytest.raises(PeerMissingError):
        await bench_kernels("prelu*")
