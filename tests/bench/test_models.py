"""The models benchmark end to end, on small generated files."""

import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from asyncnn.bench.environment import describe_environment
from asyncnn.bench.goals import LITERT, LITERT_REF
from asyncnn.bench.litert import PeerRefusedError
from asyncnn.bench.mobilenet import mobilenet_v1
from asyncnn.bench.models import (
    AWAITED,
    DEVICE,
    Difference,
    ModelReport,
    ModelsReport,
    bench_models,
    largest_difference,
    random_inputs,
    summarize,
)
from asyncnn.bench.page import draw_page
from asyncnn.bench.rounds import Figure
from asyncnn.errors import InvalidArgumentError

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

    monkeypatch.setattr("asyncnn.bench.models.load", refuse)
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

    monkeypatch.setattr("asyncnn.bench.models.LiteRt", refuse)
    report = await bench_models(files, rounds=1)
    (model,) = report.models
    assert model.refusals == {LITERT: "too new", LITERT_REF: "too new"}
    assert set(model.us) == {DEVICE, AWAITED}


class TestSummary:
    def test_ratios_are_the_devices_own_time_to_each_peers(self) -> None:
        model = summarize(
            "vww_96_int8",
            {
                DEVICE: Figure((10.0, 12.0, 11.0)),
                AWAITED: Figure((20.0, 22.0, 21.0)),
                LITERT: Figure((1.0, 1.0, 1.0)),
                LITERT_REF: Figure((20.0, 24.0, 22.0)),
            },
            {},
        )
        assert model.us[AWAITED] == 21.0
        assert model.ratios == {LITERT: 11.0, LITERT_REF: 0.5}
        assert all(verdict.met for verdict in model.verdicts)
        assert len(model.verdicts) == 2

    @pytest.mark.parametrize(("limit_met", "device_us"), [(True, 5.0), (False, 6.0)])
    def test_a_report_meets_its_goals_if_every_model_does(
        self, limit_met: bool, device_us: float
    ) -> None:
        figures = {DEVICE: Figure((device_us,)), LITERT_REF: Figure((10.0,))}
        assert judged(figures) is limit_met


def judged(figures: dict[str, Figure]) -> bool:
    models = (summarize("tiny", {}, {}), summarize("kws_ref_model", figures, {}))
    return report_of(*models).met


def report_of(*models: ModelReport) -> ModelsReport:
    return ModelsReport(describe_environment(litert="1"), "pinned", 5, models)


class TestInputs:
    def test_they_are_the_same_every_time(self) -> None:
        kinds = [((1, 3), np.dtype(np.float32)), ((2,), np.dtype(np.int8))]
        first, second = random_inputs(kinds), random_inputs(kinds)
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)

    @pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int32])
    def test_they_have_the_models_dtype_and_length_1_where_it_is_open(
        self, dtype: type
    ) -> None:
        (array,) = random_inputs([((0, 4), np.dtype(dtype))])
        assert array.shape == (1, 4)
        assert array.dtype == dtype


class TestDifference:
    def test_integers_differ_in_steps(self) -> None:
        difference = largest_difference(
            [np.array([-128, 3], np.int8)], [np.array([127, 3], np.int8)]
        )
        assert difference == Difference(255.0, in_steps=True)
        assert str(difference) == "255 LSB"

    def test_floats_differ_absolutely_and_the_largest_of_all_outputs_counts(
        self,
    ) -> None:
        one, half = np.ones(2, np.float32), np.full(3, 0.5, np.float32)
        difference = largest_difference([one, half], [one, half * 2])
        assert difference == Difference(0.5, in_steps=False)

    def test_arrays_of_other_shapes_are_not_comparable(self) -> None:
        assert largest_difference([np.zeros(2)], [np.zeros(3)]) is None


class TestPage:
    def page(self) -> str:
        figures = {
            DEVICE: Figure((30.0,)),
            LITERT: Figure((10.0,)),
            LITERT_REF: Figure((20.0,)),
        }
        return draw_page(
            report_of(
                summarize("kws_ref_model", figures, {}),
                summarize("<odd>", {}, {DEVICE: "no & never"}),
            )
        )

    def test_it_is_well_formed_and_draws_a_bar_for_every_figure(self) -> None:
        page = self.page()
        svg = ElementTree.fromstring(
            page[page.index("<svg") : page.index("</svg>") + 6]
        )
        bars = [float(bar.attrib["width"]) for bar in svg.iter("rect")]
        assert len(bars) == 3
        assert bars[1] < bars[2] < bars[0]

    def test_it_refers_to_nothing_outside(self) -> None:
        assert not re.search(r"https?:|src=|href=|url\(|@import", self.page())

    def test_it_escapes_names_and_reasons(self) -> None:
        page = self.page()
        assert "&lt;odd&gt;" in page
        assert "no &amp; never" in page
        assert "<odd>" not in page

    def test_it_tells_missed_goals(self) -> None:
        assert '<span class="missed">missed</span>' in self.page()
