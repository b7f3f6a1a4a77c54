"""Reports of all benchmarks: as JSON, as tables, as pages, and as an exit status."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

import asyncnn
from asyncnn.cli.bench import BENCHMARKS, bench_app
from asyncnn.cli.options import rounded
from asyncnn.tools.bench.peers import exchanged_bytes
from asyncnn.tools.bench.report import (
    BenchReport,
    Cell,
    Outcome,
    ReportTable,
    documented,
    page_of,
    refusal_notes,
)
from asyncnn.tools.bench.rounds import Order
from asyncnn.tools.pages import Judged, SortableTable
from asyncnn.tools.pages.drawing import draw
from tests.tools.bench.made_up import MADE_UP, REFUSAL, responsiveness

every_benchmark = pytest.mark.parametrize("name", BENCHMARKS)


def run(
    monkeypatch: pytest.MonkeyPatch, name: str, report: BenchReport, *arguments: str
) -> tuple[Result, dict[str, Any]]:
    """Run a command whose benchmark gives a report; return its options as well."""
    seen: dict[str, Any] = {}
    monkeypatch.delenv("COLUMNS", raising=False)

    def bench(order: Order) -> BenchReport:
        seen.update(order._asdict())
        return report

    monkeypatch.setattr(f"asyncnn.tools.bench.{BENCHMARKS[name].door}", bench)
    return CliRunner().invoke(bench_app, [name, *arguments]), seen


def cells_of(report: BenchReport) -> Iterator[Cell]:
    """Yield all cells of the tables of a report."""
    for table in report.tables:
        for row in (row for section in table.sections for row in section):
            assert len(row) == len(table.headings)
            yield from row


def texts(report: BenchReport) -> Iterator[str]:
    """Yield all that is to be read in the tables of a report."""
    for table in report.tables:
        yield from (table.title, *table.headings)
    for cell in cells_of(report):
        yield cell.text if isinstance(cell, Outcome) else cell


def documented_fields(name: str) -> set[str]:
    """Return the fields that the page of benchmarks says a document has."""
    page = (Path(asyncnn.__file__).parents[1] / "docs/benchmarks.md").read_text()
    section = page[page.index(f"## `bench {name}`") :].split("\n## ")[0]
    starts = "document is", "```\n{"
    (text,) = (p for p in section.split("\n\n") if any(each in p for each in starts))
    return {*re.findall(r'"(\w+)"', text[text.index("{") :])}


def fields_of(record: Any) -> set[str]:
    """Return the names of all fields that are anywhere in a document."""
    if isinstance(record, list):
        return {name for each in record for name in fields_of(each)}
    if not isinstance(record, dict):
        return set()
    return {*record, *fields_of([*record.values()])}


@every_benchmark
class TestEveryReport:
    def test_its_document_has_the_fields_that_the_page_names(self, name: str) -> None:
        document = msgspec.json.decode(msgspec.json.encode(MADE_UP[name](met=True)[0]))
        assert documented_fields(name) <= fields_of(document)
        names = {*documented_fields(name), "p99_us", "is_apart"}
        assert document.keys() <= names

    @pytest.mark.parametrize("met", [True, False])
    def test_a_missed_goal_is_marked_and_fails_a_check_after_all_is_reported(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, met: bool
    ) -> None:
        report = MADE_UP[name](met=met)
        assert report.met is met
        files = tmp_path / "report.json", tmp_path / "report.html"
        options = ["--check", "--json", str(files[0]), "--html", str(files[1])]
        result, _ = run(monkeypatch, name, report, *options)
        assert result.exit_code == (0 if met else 1), result.output
        assert ("MISSED" in result.output) is not met
        assert ('class="missed">missed' in files[1].read_text("utf-8")) is not met
        data = msgspec.json.decode(msgspec.json.encode(rounded(report.document)))
        assert msgspec.json.decode(files[0].read_bytes()) == data

    def test_without_a_check_it_does_not_matter(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        result, seen = run(monkeypatch, name, MADE_UP[name](met=False), "--rounds", "9")
        assert result.exit_code == 0
        assert seen["rounds"] == 9

    def test_all_of_it_is_printed_and_on_the_page(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr("asyncnn.cli.options._PIPE_WIDTH", 300)
        report = MADE_UP[name](met=True)
        shown = plain(draw(page_of(name, report)))
        result, _ = run(monkeypatch, name, report)
        printed = " ".join(result.output.split())
        for text in texts(report):
            assert text in shown
            assert " ".join(text.split()) in printed
        for line in (*report.notes, f"5 rounds, {report.where}"):
            assert line in shown
            assert line in result.output
        assert str(report.document["environment"]) in result.output

    def test_a_bar_is_drawn_for_every_time(self, name: str) -> None:
        report = MADE_UP[name](met=True)
        bars = [us for group in report.bars.values() for us in group.values()]
        drawn = re.findall(
            r'class="bar c\d" style="width:([\d.]+)%"', draw(page_of(name, report))
        )
        widths = [float(width) for width in drawn]
        assert len(widths) == len(bars)
        assert sorted(zip(bars, widths, strict=True)) == [
            *zip(sorted(bars), sorted(widths), strict=True)
        ]

    def test_cells_look_as_on_a_terminal_and_are_sorted_by_their_numbers(
        self, name: str
    ) -> None:
        report = MADE_UP[name](met=False)
        outcomes = [cell for cell in cells_of(report) if isinstance(cell, Outcome)]
        judged = [
            cell
            for part in page_of(name, report).parts
            if isinstance(part, SortableTable)
            for row in part.rows
            for cell in row[1:]
            if isinstance(cell, Judged)
        ]
        assert [(c.text, c.met) for c in judged if c.met is not None] == [
            (text, met) for text, met in outcomes if met is not None
        ]
        for cell in judged:
            if cell.text[0].isdecimal():
                assert cell.value == float(re.match(r"[\d.]+", cell.text)[0])


def plain(page: str) -> str:
    """Return the text that is to be read on a page."""
    body = page[page.index("<main>") : page.index("</main>")]
    return unescape(re.sub(r"<script.*?</script>|<[^>]*>", "", body))


def test_names_and_reasons_are_not_taken_for_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = ReportTable("<i>", ("[b]", "&"), [[("[red]", Outcome("[/]", None))]])
    odd = BenchReport(documented(5, placement="<here>"), [table])
    page = draw(page_of("odd", odd))
    assert "&lt;i&gt;" in page
    assert "&lt;here&gt;" in page
    result, _ = run(monkeypatch, "fence", odd)
    for text in ("[b]", "[red]", "[/]"):
        assert text in result.output


def test_times_ratios_limits_and_verdicts_stand_in_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, _ = run(monkeypatch, "kernels", MADE_UP["kernels"](met=True))
    (row,) = [line for line in result.output.splitlines() if "add_int8" in line]
    assert row.replace("│", " ").split() == (
        ["add_int8", "80.0", "10.0", "1", "LSB", "8.000", "<=", "25", "met"]
    )


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        (
            "models",
            [
                "<odd>: LiteRT's invoke and LiteRT's reference kernels cannot run it: "
                f"{REFUSAL}",
                "<odd>: reference cannot run it: too old",
            ],
        ),
        (
            "service",
            [
                "{0.request} bytes to the driver and {0.response} back".format(
                    exchanged_bytes()
                ),
                f"grpc_aio was not measured: {REFUSAL}",
            ],
        ),
        (
            "responsiveness",
            [
                "goals: p99 below 5 ms, none over 20 ms; "
                "models of 20,000 operations, inputs of 64 MiB",
                "prepare: repeated 2 times, as the machine disturbed it",
            ],
        ),
    ],
)
def test_notes_say_what_tables_do_not(name: str, notes: list[str]) -> None:
    assert MADE_UP[name](met=True).notes == notes


def test_idle_loops_have_no_goal_but_are_remarked_on() -> None:
    report = responsiveness(met=True, idle_ms=90)
    assert report.met
    assert any("too busy to judge" in note for note in report.notes)


def test_a_peer_that_is_missing_is_told_of_once() -> None:
    missing, own = {"onnx": "not installed"}, {"device": "too old"}
    notes = refusal_notes(
        {"a": missing, "b": missing | own, "c": missing}, {"onnx": "ONNX Runtime"}
    )
    assert list(notes) == [
        "ONNX Runtime was not measured: not installed",
        "b: device cannot run it: too old",
    ]
    alone = refusal_notes({"a": missing}, {})
    assert list(alone) == ["a: onnx cannot run it: not installed"]
    assert list(refusal_notes({}, {})) == []
