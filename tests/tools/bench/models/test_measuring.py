"""The models benchmark end to end, on small generated files."""

from pathlib import Path

import msgspec
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.bench.errors import PeerRefusedError
from asyncnn.tools.bench.goals import LITERT, LITERT_REF
from asyncnn.tools.bench.models.measuring import bench_models
from asyncnn.tools.bench.models.report import AWAITED, DEVICE, ModelsReport
from asyncnn.tools.bench.tflite.mobilenet import mobilenet_v1

pytest.importorskip("ai_edge_litert")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("models")
    good = folder / "small.tflite"
    good.write_bytes(mobilenet_v1(quantized=False, size=32, width=0.25))
    return [good]


class TestReport:
    @pytest.fixture
    async def report(self, files: list[Path]) -> ModelsReport:
        return await bench_models(files, rounds=1)

    async def test_it_has_a_figure_for_every_contender(
        self, report: ModelsReport
    ) -> None:
        (model,) = report.models
        assert model.refusals == {}
        assert set(model.us) == {DEVICE, AWAITED, LITERT, LITERT_REF}
        assert model.us[DEVICE] <= model.us[AWAITED]
        assert set(model.ratios) == {LITERT, LITERT_REF}

    async def test_the_device_computes_what_the_reference_does(
        self, report: ModelsReport
    ) -> None:
        difference = report.models[0].difference_to_ref
        assert difference is not None
        assert not difference.in_steps
        assert difference.largest < 1e-5

    async def test_it_survives_json(self, report: ModelsReport) -> None:
        data = msgspec.json.encode(report)
        assert msgspec.json.decode(data, type=ModelsReport) == report


async def test_what_the_device_cannot_load_is_reported_with_the_reason(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise InvalidArgumentError(f"{path.name} is not for us")

    monkeypatch.setattr("asyncnn.tools.bench.models.measuring.load", refuse)
    report = await bench_models(files, rounds=1)
    (model,) = report.models
    assert model.refusals == {DEVICE: "small.tflite is not for us"}
    assert set(model.us) == {LITERT, LITERT_REF}
    assert model.verdicts == ()


async def test_what_a_peer_cannot_load_is_reported_with_the_reason(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *, reference: bool) -> None:
        raise PeerRefusedError("too new")

    monkeypatch.setattr("asyncnn.tools.bench.models.measuring.LiteRt", refuse)
    report = await bench_models(files, rounds=1)
    (model,) = report.models
    assert model.refusals == {LITERT: "too new", LITERT_REF: "too new"}
    assert set(model.us) == {DEVICE, AWAITED}
