"""``asyncnn bench``: options and errors, with measuring left out."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asyncnn.cli import main
from asyncnn.cli.bench import BENCHMARKS, bench_app
from asyncnn.tools.bench.rounds import Order
from tests.tools.bench.made_up import MADE_UP


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace measuring by made-up reports; return the options that reach it."""
    options: dict[str, Any] = {}

    def replaced(name: str) -> Callable[..., object]:
        def bench(order: Order) -> object:
            options.update(order._asdict())
            return MADE_UP[name](met=True)

        return bench

    for name, benchmark in BENCHMARKS.items():
        door = f"asyncnn.tools.bench.{benchmark.door}"
        monkeypatch.setattr(door, replaced(name))
    return options


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["models", "folder", "--filter", "v*", "--no-mobilenet"],
            {"folder": Path("folder"), "pattern": "v*", "mobilenet": False},
        ),
        (["cache"], {"folder": None, "pattern": "*", "mobilenet": None, "rounds": 7}),
        (
            ["models", "file.onnx", "--input-shape", "x=1,3,64,64"],
            {"mobilenet": None, "input_shapes": {"x": (1, 3, 64, 64)}},
        ),
        (["kernels", "--filter", "add*"], {"pattern": "add*"}),
        (["burst"], {"gates": False}),
        (["burst", "--gates"], {"gates": True}),
        (
            ["accelerated", "folder", "--gates", "--section", "tiny"],
            {"folder": Path("folder"), "gates": True, "section": ["tiny"], "rounds": 5},
        ),
        (
            ["responsiveness", "--setting", "a=1", "--setting", "b=2"],
            {"setting": ["a=1", "b=2"], "rounds": 3, "pattern": "*"},
        ),
    ],
)
def test_options_reach_the_measurement(
    seen: dict[str, Any], arguments: Sequence[str], expected: dict[str, Any]
) -> None:
    result = CliRunner().invoke(bench_app, arguments)
    assert result.exit_code == 0, result.output
    assert {name: seen[name] for name in expected} == expected
    assert list(seen["progress"](["one", "two"])) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "rounds"), [("fence", 4), ("models", 4), ("responsiveness", 0)]
)
def test_too_few_rounds_are_refused(
    seen: dict[str, Any], name: str, rounds: int
) -> None:
    result = CliRunner().invoke(bench_app, [name, "--rounds", str(rounds)])
    assert result.exit_code == 2
    assert not seen


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_describes_itself(name: str) -> None:
    result = CliRunner().invoke(bench_app, [name, "--help"])
    assert result.exit_code == 0
    for option in ("--rounds", "--json", "--html", "--check"):
        assert option in result.output


@pytest.mark.usefixtures("without_litert")
def test_without_litert_the_command_ends_in_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.tflite").write_bytes(b"")
    monkeypatch.setattr(sys, "argv", ["asyncnn", "bench", "loading", str(tmp_path)])
    with pytest.raises(SystemExit) as info:
        main()
    assert info.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("asyncnn: LiteRT cannot be imported")
    assert error.count("\n") == 1
    assert "pip install asyncnn[bench]" in error
