"""``asyncnn bench cache``: what is measured of a small model."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncnn.bench.cache import (
    ANEW,
    DESCRIPTIONS,
    LOADED,
    MATTERS_ABOVE_BYTES,
    MATTERS_ABOVE_US,
    CacheReport,
    bench_cache,
)
from asyncnn.bench.rounds import Figure
from asyncnn.cli.bench import bench_app


def report(
    anew_us: float,
    loaded_us: float,
    growth_bytes: int = 0,
    weights_bytes: int = MATTERS_ABOVE_BYTES,
) -> CacheReport:
    us = {ANEW: anew_us, LOADED: loaded_us}
    figures = {name: Figure((time,)) for name, time in us.items()}
    ratio = loaded_us / anew_us
    return CacheReport("model", figures, us, ratio, weights_bytes, growth_bytes)


def test_all_figures_are_measured(shared: Path) -> None:
    path = shared / "models" / "ad01_fp32.tflite"
    (model,) = bench_cache([path], rounds=5).models
    assert model.us.keys() == DESCRIPTIONS.keys()
    assert 0 < model.us[LOADED] < model.us[ANEW]
    assert model.weights_bytes > 1_000_000
    assert -model.weights_bytes < model.growth_bytes < 2 * model.weights_bytes


@pytest.mark.parametrize(
    ("measured", "met"),
    [
        (report(20_000, 4_000), True),
        (report(20_000, 6_000), False),
        (report(20_000, 4_000, growth_bytes=300_000), False),
        (report(MATTERS_ABOVE_US - 1, 9_000, 900, weights_bytes=1000), True),
    ],
    ids=["both met", "slow", "copied", "too small to matter"],
)
def test_goals_hold_where_there_is_something_to_gain(
    measured: CacheReport, met: bool
) -> None:
    assert measured.met is met


def test_the_command_prints_a_table(shared: Path) -> None:
    folder = shared / "models"
    options = ["--filter", "ad01_fp32", "--no-mobilenet", "--rounds", "5"]
    result = CliRunner().invoke(bench_app, ["cache", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert "ad01_fp32" in result.output
    assert "loaded / anew" in result.output
