"""``asyncnn bench sessions``: that it measures what it says, and judges it."""

from pathlib import Path
from typing import Any

import pytest

from asyncnn.tools.bench import bench_files
from asyncnn.tools.bench.bench_files import STEPS, sessions
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.bench.report import Outcome
from asyncnn.tools.bench.rounds import Order
from tests.tools.bench import made_up


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    pytest.importorskip("ai_edge_litert")
    try:
        bench_files.package_models()
    except PeerMissingError as error:
        pytest.skip(str(error))
    report = sessions(Order(pattern="okay_nabu", rounds=1))
    (model,) = report.document["models"]
    return model


def test_all_contenders_are_measured(model: dict[str, Any]) -> None:
    assert model["model"] == "okay_nabu"
    assert set(model["us"]) == set(STEPS.titles)
    assert all(us > 0 for us in model["us"].values())


def test_sessions_take_a_fraction_of_what_interpreters_do(
    model: dict[str, Any],
) -> None:
    # Each of a hundred interpreters has more than the file's 80 KB.
    assert model["interpreters_kib"] > 8000
    assert 100 < model["sessions_kib"] < model["interpreters_kib"] / 5


@pytest.mark.parametrize(
    ("step", "burst", "kib", "outcomes"),
    [
        (1.1, 1.1, 99, [True, True, True]),
        (1.2, 1.1, 99, [False, True, True]),
        (1.1, 1.2, 99, [True, False, True]),
        (1.1, 1.1, 101, [True, True, False]),
    ],
)
def test_goals_are_judged(
    step: float, burst: float, kib: int, outcomes: list[bool]
) -> None:
    (table,) = made_up.sessions(step=step, burst=burst, kib=kib).tables
    cells = [cell for cell in table.sections[0][0] if isinstance(cell, Outcome)]
    assert [cell.met for cell in cells] == outcomes


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_files, "STATEFUL_PACKAGE", "no_such_package")
    with pytest.raises(PeerMissingError, match="no_such_package"):
        bench_files.package_models()


def test_a_folder_takes_its_place(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no \.tflite file"):
        sessions(Order(tmp_path))
