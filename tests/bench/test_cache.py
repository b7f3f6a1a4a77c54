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
    weights_bytes: int = 1000,
    is_largest: bool = False,
) -> CacheReport:
    us = {ANEW: anew_us, LOADED: loaded_us}
    figures = {name: Figure((time,)) for name, time in us.items()}
    ratio = loaded_us / anew_us
    return CacheReport(
        "model", figures, us, ratio, weights_bytes, growth_bytes, is_largest
    )


def test_all_figures_are_measured(shared: Path) -> None:
    path = shared / "models" / "ad01_fp32.tflite"
    (model,) = bench_cache([path], rounds=5).models
    assert model.us.keys() == DESCRIPTIONS.keys()
    assert 0 < model.us[LOADED] < model.us[ANEW]
    assert model.weights_bytes > 1_000_000
    assert -model.weights_bytes < model.growth_bytes < 2 * model.weights_bytes


LARGE = MATTERS_ABOVE_BYTES


@pytest.mark.parametrize(
    ("measured", "met"),
    [
        (report(20_000, 4_000, 199_000, LARGE), True),
        (report(20_000, 6_000), False),
        (report(1_000, 400, weights_bytes=LARGE), False),
        (report(20_000, 4_000, 200_000, LARGE), False),
        (report(MATTERS_ABOVE_US - 1, 9_000, 900), True),
        (report(1_000, 400, is_largest=True), False),
        (report(1_000, 100, 200, is_largest=True), False),
        (report(1_000, 100, 199, is_largest=True), True),
    ],
    ids=[
        "both met",
        "slow",
        "slow though quickly prepared",
        "copied",
        "too small to matter",
        "the largest is slow",
        "the largest is copied",
        "the largest meets both",
    ],
)
def test_goals_hold_where_there_is_something_to_gain(
    measured: CacheReport, met: bool
) -> None:
    assert measured.met is met


def test_the_largest_model_of_a_folder_always_has_goals(shared: Path) -> None:
    names = ["hello_world_float", "hello_world_int8"]
    paths = [shared / "models" / f"{name}.tflite" for name in names]
    small, large = sorted(paths, key=lambda path: path.stat().st_size)
    by_name = {model.model: model for model in bench_cache(paths, rounds=5).models}
    assert by_name[small.stem].saves_time is None
    assert by_name[large.stem].saves_time is not None
    assert by_name[large.stem].saves_memory is not None


def test_the_command_prints_a_table(shared: Path) -> None:
    folder = shared / "models"
    options = ["--filter", "ad01_fp32", "--no-mobilenet", "--rounds", "5"]
    result = CliRunner().invoke(bench_app, ["cache", str(folder), *options])
    assert result.exit_code == 0, result.output
    assert "ad01_fp32" in result.output
    assert "loaded / anew" in result.output
