"""``asyncnn bench cache``: what is measured of a small model."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncnn.cli.bench import bench_app
from asyncnn.tools.bench.cache.measuring import bench_cache
from asyncnn.tools.bench.cache.report import ANEW, DESCRIPTIONS, LOADED


def test_all_figures_are_measured(shared: Path) -> None:
    path = shared / "models" / "ad01_fp32.tflite"
    (model,) = bench_cache([path], rounds=5).models
    assert model.us.keys() == DESCRIPTIONS.keys()
    assert 0 < model.us[LOADED] < model.us[ANEW]
    assert model.weights_bytes > 1_000_000
    assert -model.weights_bytes < model.growth_bytes < 2 * model.weights_bytes


@pytest.mark.exhaustive
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
