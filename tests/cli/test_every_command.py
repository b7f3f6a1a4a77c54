"""What holds for every command and each of its options."""

import json
import math
import re
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from typer.main import get_command

import asyncnn
from asyncnn.cli.app import app
from asyncnn.cli.options import rounded
from asyncnn.hal.errors import counted
from asyncnn.tools.bench.report import ReportTable, draw_table
from tests.cli.conftest import Ran
from tests.test_documentation import commands_below

Command = Callable[..., Ran]
NUMBER = re.compile(r"(--[a-z-]+) .*?(?:<int|<float|<list.int|INTEGER|FLOAT)")
"""An option of a number in a line of help."""

WITHOUT_NUMBERS = {"demo", "inspect", "devices", "capabilities", "graph", "record"}
MODEL = asyncnn.bundled_file("digits_float.asyncnn")


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    below = commands_below(command)
    if not below:
        yield path
    for name, each in below.items():
        yield from commands(each, (*path, name))


def asked(path: tuple[str, ...]) -> list[object]:
    """Return a command line with what the command cannot do without."""
    words: list[object] = [*path]
    if path[0] in ("run", "compare", "diff", "replay") or path == ("loadgen", "run"):
        words.append(MODEL)
    if path[0] == "compare":
        words += ["--with", "litert"]
    if path[0] == "stress":
        words.append("threads")
    if path[0] == "mlts":
        words.append("--builtin")
    if path[0] == "conformance":
        words.append(Path(__file__).parent)
    return words


@pytest.mark.parametrize("path", list(commands(get_command(app))), ids=" ".join)
def test_negative_numbers_are_refused_in_one_line(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    options = NUMBER.findall(asyncnn_command(*path, "--help").out)
    assert options or path[0] in WITHOUT_NUMBERS
    for option in options:
        ran = asyncnn_command(*asked(path), f"{option}=-5")
        assert ran.status == 2, ran
        assert option in ran.err
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("asyncnn: ")


def test_a_command_that_does_not_exist_is_refused_in_one_line(
    asyncnn_command: Command,
) -> None:
    ran = asyncnn_command("runn")
    assert ran.status == 2
    assert ran.err.startswith("asyncnn: No such command 'runn'")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["bench"]], ids=str)
def test_without_a_command_there_is_help(
    asyncnn_command: Command, words: list[str]
) -> None:
    ran = asyncnn_command(*words)
    assert "Usage: asyncnn" in ran.out + ran.err
    assert "asyncnn: " not in ran.err


@pytest.mark.parametrize(
    ("words", "choices"),
    [
        (["run"], ["async, sync, burst or", "low|medium|high", "asyncnn devices"]),
        (["compare"], ["litert|onnxruntime", "inprocess or", "async, sync,"]),
        (["conformance"], ["newest", "inprocess or"]),
    ],
)
def test_help_lists_the_choices(
    asyncnn_command: Command, words: list[str], choices: list[str]
) -> None:
    text = " ".join(asyncnn_command(*words, "--help").out.replace("│", " ").split())
    for choice in choices:
        assert choice in text


@pytest.mark.parametrize(
    "words",
    [
        ["devices"],
        ["capabilities"],
        ["inspect", MODEL],
        ["run", MODEL, "--explain"],
        ["run", MODEL],
    ],
    ids=lambda words: str(words[0]),
)
def test_tables_fit_80_columns(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch, words: list[object]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    drawn = [
        line
        for line in asyncnn_command(*words).out.splitlines()
        if line[:1] in "┏┃┡│├└╭╰"
    ]
    assert all(len(line) <= 80 for line in drawn)
    assert not any("…" in line for line in drawn)


@pytest.mark.parametrize("width", [80, 130, 400])
def test_a_wide_table_of_a_benchmark_is_drawn_in_parts(width: int) -> None:
    headings = ["model", *(f"a contender of number {n}" for n in range(9))]
    rows = [[f"model_{row}", *(f"{row}.{n}" for n in range(9))] for row in range(3)]
    table = ReportTable("microseconds", headings, [rows])
    out = Console(width=width, record=True, file=StringIO())
    parts = list(draw_table(table, out))
    for part in parts:
        out.print(part)
    text = out.export_text()
    assert (len(parts) == 1) is (width == 400)
    assert max(map(len, text.splitlines())) <= width
    for word in (*headings, *(cell for row in rows for cell in row)):
        assert word in text
    assert text.count("model_1") == len(parts)


def test_long_names_are_folded_before_a_table_is_divided() -> None:
    names = [f"{'a_model_of_a_very_long_name_' * 3}{n}" for n in range(2)]
    headings = ("", "accelerated", "engine", "ratio", "reference", "differs")
    times = ("1234567", "1234567", "10.00", "1234567", "255 LSB")
    out = Console(width=80, record=True, file=StringIO())
    table = ReportTable("microseconds", headings, [[(name, *times) for name in names]])
    (whole,) = draw_table(table, out)
    out.print(whole)
    lines = out.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    folded = "".join(line.split("│")[1].strip() for line in lines if "│" in line)
    assert folded == "".join(names)


def numbers_of(document: Any) -> Iterator[float]:
    if isinstance(document, float):
        yield document
    elif isinstance(document, dict):
        for value in document.values():
            yield from numbers_of(value)
    elif isinstance(document, list):
        for value in document:
            yield from numbers_of(value)


def test_measured_numbers_are_as_long_as_they_mean_something() -> None:
    class Measured(msgspec.Struct, frozen=True):
        values: dict[str, tuple[float, ...]]
        name: str = "1.23456789"
        count: int = 123456789
        nothing: float | None = None

    exact = (1234567.891234, 12.3456789, -0.00012345678, 0.0, math.inf)
    short = (1234567.891, 12.3457, -0.000123457, 0.0, math.inf)
    assert rounded([Measured({"a": exact})]) == [Measured({"a": short})]


@pytest.mark.parametrize(
    "words",
    [("run", MODEL, "--json"), ("profile", MODEL, "--runs", 3, "--json")],
    ids=lambda words: str(words[0]),
)
def test_reports_have_no_digits_that_mean_nothing(
    asyncnn_command: Command, words: tuple[object, ...]
) -> None:
    numbers = list(numbers_of(json.loads(asyncnn_command(*words).out)))
    assert len(numbers) > 1
    for number in numbers:
        assert number in (round(number, 3), float(f"{number:.6g}"))


def test_counts_have_plurals() -> None:
    assert counted(1, "file") == "1 file"
    assert counted(2000, "file") == "2,000 files"


@pytest.mark.parametrize(
    "words",
    [
        ("run", MODEL, "--output"),
        ("profile", MODEL, "--html"),
        ("diff", MODEL, "--html"),
        ("mlts", "--builtin", "--csv"),
        ("conformance", Path(__file__).parent, "--json"),
        ("bench", "threads", "--json"),
        ("loadgen", "compare", "--json"),
    ],
    ids=lambda words: " ".join(str(words[n]) for n in (0, -1)),
)
def test_files_that_cannot_be_written_are_refused_before_anything_is_measured(
    asyncnn_command: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[object, ...],
) -> None:
    def measure(*_: object) -> None:
        raise AssertionError("it began to measure")

    monkeypatch.setattr("anyio.run", measure)
    monkeypatch.setattr("asyncio.run", measure)
    for file, reason in (("none/f.npz", "No such file"), (".", "Is a dir")):
        ran = asyncnn_command(*words, tmp_path / file)
        assert ran.status == 2, ran
        assert reason in ran.err
        assert ran.err.count("\n") == 1
