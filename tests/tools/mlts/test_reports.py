"""A report can be read again, written in the suite's columns, and drawn as a page."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.mlts.suite_csv import RANGES, csv_of
from asyncnn.tools.mlts.suite_page import page_of
from asyncnn.tools.mlts.suite_records import (
    Accuracy,
    Latency,
    Preparation,
    SuiteReport,
    SuiteRow,
    read_report,
)
from asyncnn.tools.pages import Bars, Distributions, History, SortableTable, Text
from asyncnn.tools.pages.drawing import draw
from tests.tools.mlts.conftest import report, row

OFF = Accuracy("golden", 2, {}, ("sample 0, y: off, by 3",), None)
JUDGED = {"accurate": Accuracy("golden", 2), "off": OFF}


class TestJson:
    def test_it_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        path, found = tmp_path / "r.json", report(row(), row("LiteRT", is_peer=True))
        found.write(path)
        assert read_report(path) == found

    def test_percentiles_are_among_the_figures(self) -> None:
        latency = Latency.of([float(each) for each in range(101)])
        assert (latency.p50_us, latency.p90_us, latency.p99_us) == (50, 90, 99)

    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"[1]", b'{"format": 1', b"\xff\xfe", b"[" * 20000]
    )
    def test_a_damaged_file_is_bad_input(self, content: bytes, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        path.write_bytes(content)
        with pytest.raises(InvalidArgumentError, match=r"r\.json is no report"):
            read_report(path)

    @pytest.mark.parametrize(
        "changed",
        [
            {"models": ()},
            {"made_at": datetime(2026, 1, 2)},
            {"rows": (row(latency=Latency((), 1, 1, 1)),)},
            {"rows": (row(preparation=Preparation(())),)},
        ],
    )
    def test_what_no_run_writes_is_bad_input(
        self, changed: dict[str, object], tmp_path: Path
    ) -> None:
        path = tmp_path / "r.json"
        msgspec.structs.replace(report(row()), **changed).write(path)
        with pytest.raises(InvalidArgumentError, match=r"^\S+r\.json (is no|has rows)"):
            read_report(path)

    def test_a_later_format_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        msgspec.structs.replace(report(row()), format=2).write(path)
        with pytest.raises(InvalidArgumentError, match="has format 2, and 1 is known"):
            read_report(path)

    def test_devices_fail_and_peers_do_not(self) -> None:
        assert report(row(), row("LiteRT", is_peer=True, accuracy=OFF)).passed
        failed = report(row(), row("accelerated", accuracy=OFF))
        assert not failed.passed
        assert [each.system for each in failed.failures()] == ["accelerated"]


class Line:
    """A line of the suite's CSV, read from the left as its own reader does."""

    def __init__(self, text: str) -> None:
        self._cells = iter(text.split(","))

    def text(self) -> str:
        return next(self._cells)

    def number(self) -> float:
        return float(self.text())

    def texts(self, count: int) -> list[str]:
        return [self.text() for _ in range(count)]

    def times(self) -> tuple[float, float, float, float, list[float]]:
        runs, total, start, step = (self.number() for _ in range(4))
        counts = [self.number() for _ in range(int(self.number()))]
        return runs, total, start, step, counts

    def rest(self) -> Iterator[str]:
        return self._cells


class TestCsv:
    def lines(self, *rows: SuiteRow) -> list[str]:
        return csv_of(report(*rows)).splitlines()

    def test_the_first_lines_tell_the_machine_and_the_columns(self) -> None:
        machine, columns, _ = self.lines(row())
        assert machine.startswith("20260304_090506,asyncnn ")
        assert machine.count(",") == 1
        assert columns.startswith("#testInfo,backendType,inferenceIterations,")
        assert columns.endswith(",compilationCacheSizeBytes")

    @pytest.mark.parametrize("name", ["=cmd|'/c calc'!A0", "+1", "-1", "@SUM(A1)"])
    def test_a_name_is_no_formula_of_a_spreadsheet(self, name: str) -> None:
        line = Line(self.lines(row(model=name))[2])
        assert line.text() == f"'{name}"

    def test_a_name_ends_no_cell_and_no_line(self) -> None:
        *_, last = self.lines(row(model='a,b\n"c"'))
        assert last.startswith("a b 'c',asyncnn_reference")

    def test_a_line_has_what_the_suites_reader_takes(self) -> None:
        line = Line(self.lines(row())[2])
        assert line.texts(2) == ["net", "asyncnn_reference_inprocess_async"]
        runs, total, start, step, counts = line.times()
        assert (runs, len(counts), sum(counts)) == (4, RANGES, 4)
        assert total == pytest.approx(770e-6)
        assert start == pytest.approx(100e-6)
        assert step == pytest.approx(10e-6)
        assert [k for k, count in enumerate(counts) if count] == [0, 2, 4, 31]
        assert line.number() == 0.5  # the largest error
        assert line.number() == 2  # samples
        assert line.texts(2) == ["0", "0"]  # evaluators, problems
        assert line.text() == "true"
        assert line.times()[0] == 2
        assert line.text() == "true"
        assert line.times()[:3] == (1, pytest.approx(950e-6), pytest.approx(950e-6))
        assert line.text() == "true"
        assert line.times()[4] == [1, *[0] * (RANGES - 1)]
        assert list(line.rest()) == ["4096"]

    def test_evaluators_and_problems_have_their_names_and_values(self) -> None:
        figures = {"max_mel_cep_distortion": 5.5, "max_log_f0_error": None}
        accuracy = Accuracy("mel-cep-log-f0", 9, figures, ('a, "b"', "c"), 1.25)
        line = Line(self.lines(row(accuracy=accuracy, preparation=None))[2])
        line.texts(2)
        line.times()
        assert line.texts(4) == ["1.25", "9", "2", "2"]
        assert line.texts(2) == [*figures]
        assert line.texts(2) == ["5.5", "NaN"]
        assert line.texts(2) == ["a 'b'", "c"]
        assert list(line.rest()) == ["false", "false", "false", "0"]

    def test_litert_is_what_the_suite_compares_with(self) -> None:
        backends = [
            line.split(",")[1]
            for line in self.lines(
                row("LiteRT", is_peer=True, path="call"),
                row("ONNX Runtime", is_peer=True, path="call"),
                row("accelerated", transport="remote", path="burst"),
            )[2:]
        ]
        assert backends == [
            "TFLite_CPU",
            "ONNXRuntime_CPU",
            "asyncnn_accelerated_remote_burst",
        ]

    def test_what_was_refused_has_no_line(self) -> None:
        assert len(self.lines(row(latency=None, refusal="not so"))) == 2


class TestPage:
    def titled(self, found: SuiteReport, *earlier: SuiteReport) -> dict[str, object]:
        parts = page_of(found, earlier).parts
        return {part.title: part for part in parts if not isinstance(part, Text)}

    def test_it_has_tables_plots_and_devices_side_by_side(self) -> None:
        parts = self.titled(
            report(
                row(),
                row(path="sync"),
                row("LiteRT", is_peer=True, path="call", latency=Latency.of([50.0])),
                row("x", latency=None, refusal="not supported"),
            )
        )
        assert list(parts) == [
            "Latency",
            "Preparation and memory",
            "Accuracy",
            "Not measured",
            "Device against device",
            "Latency of net",
        ]
        latency, bars = parts["Latency"], parts["Device against device"]
        assert isinstance(latency, SortableTable)
        headings = [column.heading for column in latency.columns]
        first = dict(zip(headings, latency.rows[0], strict=True))
        assert first["p50"] == 130.0
        assert first["to LiteRT"] == 2.6
        assert first["energy"] is None
        assert isinstance(bars, Bars)
        assert bars.groups == {"net": {"reference async": 130.0, "LiteRT call": 50.0}}
        plot = parts["Latency of net"]
        assert isinstance(plot, Distributions)
        assert list(plot.series) == ["reference async", "LiteRT call"]

    def test_every_row_of_a_table_has_a_cell_for_each_column(self) -> None:
        rows = [row(), row("y", preparation=None, accuracy=OFF, joules=0.5)]
        refused = row("z", latency=None, refusal="so")
        for part in page_of(report(*rows, refused), [report(*rows, hour=8)]).parts:
            if isinstance(part, SortableTable):
                assert {len(each) for each in part.rows} == {len(part.columns)}

    def test_a_plot_has_few_points_however_many_runs_there_were(self) -> None:
        long = Latency.of([float(each) for each in range(5000)])
        plot = self.titled(report(row(latency=long)))["Latency of net"]
        assert isinstance(plot, Distributions)
        points = plot.series["reference async"]
        assert len(points) < 250
        assert (points[0], points[-1]) == (0.0, 4999.0)

    def test_history_is_in_the_order_of_time(self) -> None:
        earlier = report(row(latency=Latency.of([260.0])), hour=7)
        other = report(row("new"), hour=8)
        parts = self.titled(report(row(), hour=9), other, earlier)
        table, plot = parts["History"], parts["History of net"]
        assert isinstance(table, SortableTable)
        assert table.rows[0][-4:] == [260.0, None, 130.0, 0.5]
        assert isinstance(plot, History)
        assert plot.runs == ["2026-03-04 07:05", "2026-03-04 08:05", "2026-03-04 09:05"]
        assert plot.series == {"reference async": [260.0, None, 130.0]}

    def test_what_was_measured_once_has_no_history_to_plot(self) -> None:
        earlier = report(row(model="other"), hour=8)
        parts = self.titled(report(row(), hour=9), earlier)
        assert "History" in parts
        assert "History of net" not in parts

    def test_reports_of_one_minute_are_told_apart(self) -> None:
        parts = self.titled(report(row()), report(row()), report(row()))
        plot = parts["History of net"]
        assert isinstance(plot, History)
        day = "2026-03-04 09:05"
        assert plot.runs == [day, f"{day} (2)", f"{day} (3)"]

    def test_a_verdict_is_told_once(self) -> None:
        of = {name: report(row(accuracy=each)) for name, each in JUDGED.items()}
        drawn = {name: draw(page_of(each)) for name, each in of.items()}
        for name, word in (("accurate", "met"), ("off", "missed")):
            assert f'<span class="{word}">{name}</span></td>' in drawn[name]
            assert f">{word}</span>" not in drawn[name]

    def test_counts_of_elements_stand_in_full(self) -> None:
        figures = {"elements": 1234567.0, "share": 0.123456}
        accuracy = Accuracy("golden", 2, figures)
        parts = self.titled(report(row(accuracy=accuracy)))
        table = parts["Accuracy"]
        assert isinstance(table, SortableTable)
        assert table.rows[0][-2] == "elements 1234567, share 0.1235"

    def test_an_interrupted_report_says_so_in_each_form(self) -> None:
        how_far = "interrupted after 1 of 2 models"
        found = replace(report(row()), interrupted=how_far)
        page = page_of(found)
        assert f"It was {how_far}." in str(page.parts[0])
        assert how_far in page.circumstances
        assert csv_of(found).splitlines()[0].endswith(how_far)
        assert how_far not in csv_of(report(row()))

    def test_the_summary_names_models_that_are_off(self) -> None:
        text = str(page_of(report(row(accuracy=OFF))).parts[0])
        assert "Outputs are off: net" in text
        assert "outputs of 1 model are accurate" in str(page_of(report(row())).parts[0])
        assert "to judge" in str(page_of(report(row(accuracy=None))).parts[0])
