"""``asyncnn bench sessions``: that it measures what it says, and judges it."""

from pathlib import Path

import pytest

from asyncnn.tools.bench import bench_files
from asyncnn.tools.bench.bench_files import SessionsReport, sessions
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.bench.rounds import Order
from tests.tools.bench import made_up


@pytest.fixture(scope="module")
def report() -> SessionsReport:
    pytest.importorskip("ai_edge_litert")
    try:
        bench_files.package_models()
    except PeerMissingError as error:
        pytest.skip(str(error))
    return sessions(Order(pattern="okay_nabu", rounds=1))


def test_all_contenders_are_measured(report: SessionsReport) -> None:
    (model,) = report.models
    assert model.model == "okay_nabu"
    assert set(model.us) == set(SessionsReport.CONTENDERS)
    assert all(us > 0 for us in model.us.values())


def test_sessions_take_a_fraction_of_what_interpreters_do(
    report: SessionsReport,
) -> None:
    (model,) = report.models
    # Each of a hundred interpreters has more than the file's 80 KB.
    assert model.interpreters_kib > 8000
    assert 100 < model.sessions_kib < model.interpreters_kib / 5


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
    (model,) = made_up.sessions(step=step, burst=burst, kib=kib).models
    assert list(model.outcomes()) == outcomes
    assert len(model.cells()) == len(SessionsReport.OTHERS)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_files, "STATEFUL_PACKAGE", "no_such_package")
    with pytest.raises(PeerMissingError, match="no_such_package"):
        bench_files.package_models()


def test_a_folder_takes_its_place(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no \.tflite file"):
        sessions(Order(tmp_path))
