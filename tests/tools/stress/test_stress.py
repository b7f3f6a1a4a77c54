"""``asyncnn stress`` finds what fails, hangs and crashes, and nothing else."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncnn.service.recorded_memory import CallKind
from asyncnn.service.recording import read_record
from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
from asyncnn.tools.pages.drawing import load_page
from asyncnn.tools.stress.soak import growth_of
from asyncnn.tools.stress.stress_cases import CASES, SOAK, StressCase
from asyncnn.tools.stress.stress_report import StressReport, StressRow
from asyncnn.tools.stress.watchdog import CALLS, StressTrial, try_case
from tests.cli.conftest import Ran
from tests.cli.conftest import asyncnn_command as asyncnn_command
from tests.tools.stress.lying import MOST, NAME, install_lying

_HERE = "tests.tools.stress.misbehaving"


def misbehaving(body: str, *, kills_clients: bool = False) -> StressCase:
    return StressCase(body, "", f"{_HERE}:{body}", kills_clients=kills_clients)


def tried(case: StressCase, folder: Path, **options: object) -> StressRow:
    usual = {"device": "reference", "transport": IN_PROCESS, "width": 1, "seed": 1}
    usual |= {"seconds": 60.0, "patience_s": 60.0, "command": "asyncnn stress x"}
    return try_case(StressTrial(case=case, folder=folder, **usual | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "outcome", "reason", "logged"),
    [
        ("waits_for_ever", "HANG", "verified nothing", "in waits_for_ever"),
        ("blocks_for_ever", "HANG", "verified nothing", "in blocks_for_ever"),
        ("crashes", "CRASH", "SIGSEGV", "in crashes"),
        ("exits", "CRASH", "status 3", ""),
        ("finds_a_fault", "FAILURE", "a result is wrong", "in finds_a_fault"),
        ("is_notified_twice", "FAILURE", "notified 2 times", ""),
        ("is_notified_again_later", "FAILURE", "notified 2 times", ""),
        ("ends_early", "FAILURE", "before its time", ""),
    ],
)
def test_what_goes_wrong_is_told_apart_and_leaves_what_repeats_it(
    tmp_path: Path, body: str, outcome: str, reason: str, logged: str
) -> None:
    patience_s = 0.2 if outcome == "HANG" else 60.0
    row = tried(misbehaving(body), tmp_path, patience_s=patience_s)
    assert (row.outcome, row.has_passed) == (outcome, False)
    assert reason in row.reason
    assert row.folder == str(tmp_path)
    told = (tmp_path / "failure.txt").read_text()
    assert row.reason in told
    assert "asyncnn stress x" in told
    assert logged in (tmp_path / "client-0.log").read_text()


def test_a_driver_that_dies_is_a_crash(tmp_path: Path) -> None:
    row = tried(misbehaving("kills_its_driver"), tmp_path, transport=REMOTE)
    assert row.outcome == "CRASH"
    assert "driver ended by SIGKILL" in row.reason
    calls = read_record(tmp_path / CALLS).calls
    assert [call.kind for call in calls] == [CallKind.PREPARE] + 10 * [CallKind.EXECUTE]


def test_wrong_results_of_the_driver_of_a_package_are_cut_down_to_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asyncnn_command: Callable[..., Ran]
) -> None:
    install_lying(monkeypatch, tmp_path)
    row = tried(misbehaving("adds"), tmp_path, transport=REMOTE, device=NAME)
    assert (row.outcome, row.counts) == ("FAILURE", {"began": MOST + 1})
    calls = tmp_path / CALLS
    words = ["replay", str(calls), "--bisect"]
    assert f"asyncnn {shlex.join(words)}" in (tmp_path / "failure.txt").read_text()
    ran = asyncnn_command(*words)
    assert ran.status == 0, ran  # it lies once more
    ran = asyncnn_command(*words, "--device", "reference")
    assert ran.status == 1, ran
    (cut,) = read_record(f"{calls}.cut").calls
    assert cut.kind is CallKind.EXECUTE
    assert cut.details.inputs == 2 * (np.full(4, MOST + 1, np.float32).tobytes(),)


def test_what_does_not_apply_is_no_failure(tmp_path: Path) -> None:
    row = tried(misbehaving("does_not_apply"), tmp_path)
    assert (row.outcome, row.reason) == ("SKIPPED", "it has no driver")
    assert row.has_passed


def test_clients_that_are_killed_are_replaced_and_no_crash(tmp_path: Path) -> None:
    case = misbehaving("works", kills_clients=True)
    row = tried(case, tmp_path, seconds=0.7, width=2)
    assert row.outcome == "SUCCESS"
    assert row.counts["worked"] > 0
    assert row.processes == 2 + row.kills


def test_growth_is_told_from_noise_and_from_a_single_step() -> None:
    minutes = np.linspace(0, 30, 900)
    noise = np.random.default_rng(1).normal(0, 0.3, 900)
    warming = 50 * np.exp(-minutes)  # is over in a third of the time

    def grows(unit: str, values: np.ndarray) -> bool:
        return growth_of("x", unit, minutes.tolist(), values.tolist()).grows

    assert not grows("MB", 100 + warming + noise)
    assert grows("MB", 100 + warming + noise + 6 * minutes / 60)
    assert not grows("", np.where(minutes < 20, 8.0, 9.0))
    assert grows("", np.floor(minutes / 2))
    assert not grows("", np.where(minutes < 18, 360.0, 375.0))
    assert not grows("", 360 + 20 * np.random.default_rng(1).random(900).round())
    assert not growth_of("x", "", [0.0] * 9, [*range(9)]).grows


@pytest.fixture
def finds_a_fault(monkeypatch: pytest.MonkeyPatch) -> str:
    case = misbehaving("finds_a_fault")
    monkeypatch.setitem(CASES, case.name, case)
    return case.name


def test_the_command_reports_failures_and_exits_with_1(
    asyncnn_command: Callable[..., Ran], tmp_path: Path, finds_a_fault: str
) -> None:
    files = ["--json", tmp_path / "r.json", "--html", tmp_path / "r.html"]
    ways = ["--transport", IN_PROCESS, "--width", 1, "--folder", tmp_path]
    ran = asyncnn_command("stress", finds_a_fault, *ways, *files)
    assert (ran.status, ran.err) == (1, "")
    assert ran.out.splitlines()[-1] == "1 FAILURE"
    assert "a result is wrong" in ran.out
    report = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=StressReport)
    (row,) = report.rows
    assert row.folder in ran.out.replace("\n", "")
    assert (
        f"asyncnn stress {finds_a_fault}" in Path(row.folder, "failure.txt").read_text()
    )
    assert "row.json" in [each.name for each in Path(row.folder).iterdir()]
    page = load_page((tmp_path / "r.html").read_text())
    assert finds_a_fault in json.dumps(msgspec.to_builtins(page))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "there is no case 'nothing'"),
        (["threads", "--device", "toaster"], "toaster"),
        (["threads", "--transport", "pigeon"], "there is no transport 'pigeon'"),
        (["all,threads"], "there is no case 'all'"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(
    asyncnn_command: Callable[..., Ran], words: list[str], said: str
) -> None:
    ran = asyncnn_command("stress", *words)
    assert ran.status == 2
    assert said in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("transport", [IN_PROCESS, REMOTE])
@pytest.mark.parametrize("case", [*CASES.values(), SOAK], ids=lambda case: case.name)
def test_each_case_finds_nothing_in_a_moment(
    tmp_path: Path, case: StressCase, transport: str
) -> None:
    row = tried(case, tmp_path, transport=transport, seconds=0.1, width=2)
    assert row.outcome == "SUCCESS", row.reason
    assert sum(row.counts.values()) > 0
