"""Reports on models, in figures and as a page."""

import re
from xml.etree import ElementTree

import pytest

from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.goals import LITERT, LITERT_REF
from asyncnn.tools.bench.models.page import draw_page
from asyncnn.tools.bench.models.report import (
    AWAITED,
    DEVICE,
    ModelReport,
    ModelsReport,
    summarize,
)
from asyncnn.tools.bench.rounds import Figure


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
