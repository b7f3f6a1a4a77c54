import asyncio
import io

import msgspec
import numpy as np
import pytest
from rich.console import Console

from asyncnn.tools import demo
from asyncnn.tools.demo import PATHS, DemoResult, run_demo

FLOORS = {"float": 0.97, "int8": 0.96}

Demonstrated = tuple[DemoResult, str]
"""What a demonstration results in, and what it prints."""


def console_of(*, is_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=is_terminal)


async def demonstrate(console: Console, json: bool = False) -> Demonstrated:
    result = await run_demo(console, json)
    return result, console.file.getvalue()


@pytest.fixture(scope="module")
def piped() -> Demonstrated:
    return asyncio.run(demonstrate(console_of()))


@pytest.fixture(scope="module")
def as_json() -> Demonstrated:
    return asyncio.run(demonstrate(console_of(is_terminal=True), json=True))


def test_both_models_reach_their_floor_on_every_path(piped: Demonstrated) -> None:
    result, _ = piped
    assert {model.model for model in result.models} == FLOORS.keys()
    for model in result.models:
        assert tuple(path.path for path in model.paths) == PATHS
        assert all(path.accuracy >= FLOORS[model.model] for path in model.paths)
    assert result.passed


def test_the_confusion_matrix_tells_the_accuracy_of_the_first_path(
    as_json: Demonstrated,
) -> None:
    result, _ = as_json
    for model in result.models:
        confusion = np.array(model.confusion)
        assert confusion.sum() == result.images
        assert confusion.trace() / result.images == model.paths[0].accuracy


def test_it_prints_a_picture_of_each_model_and_a_line_for_each_path(
    piped: Demonstrated,
) -> None:
    _, text = piped
    rows = [line.split() for line in text.splitlines()]
    assert ["float", "int8"] in rows
    for model in FLOORS:
        for path in PATHS:
            assert any(row[:2] == [model, path] for row in rows)
    assert rows[-1] == ["passed"]


async def test_progress_is_drawn_on_a_terminal_only(piped: Demonstrated) -> None:
    _, drawn = await demonstrate(console_of(is_terminal=True))
    assert "classifying" not in piped[1]
    assert "classifying" in drawn


def test_with_json_nothing_is_printed_and_the_result_can_be_encoded(
    as_json: Demonstrated,
) -> None:
    result, text = as_json
    assert text == ""
    assert msgspec.json.decode(msgspec.json.encode(result), type=DemoResult) == result


async def test_an_accuracy_below_its_floor_fails_the_demonstration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(demo.ACCURACY_FLOORS, "int8", 1.0)
    result, text = await demonstrate(console_of())
    assert not result.passed
    assert [model.passed for model in result.models] == [True, False]
    assert "FAILED" in text


async def test_only_the_paths_asked_for_are_taken() -> None:
    result = await run_demo(console_of(), json=True, paths=["sync"])
    assert all([path.path for path in m.paths] == ["sync"] for m in result.models)
