"""``asyncnn conformance``, with and without ``--mutate``."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncnn.service.process import driver_process
from asyncnn.tools.conformance.mutations.trial import RowResult
from tests.cli.conftest import Ran

Command = Callable[..., Ran]


def test_a_selection_is_run_and_counted(
    asyncnn_command: Command, shared: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    ran = asyncnn_command(
        *("conformance", shared / "vts" / "V1_0", "--filter", "add*"),
        *("--path", "sync", "--json", report, "--workers", 1),
    )
    assert ran.status == 0, ran.out
    verdicts = json.loads(report.read_bytes())
    assert verdicts
    assert {verdict["outcome"] for verdict in verdicts} == {"passed"}
    assert {verdict["path"] for verdict in verdicts} == {"sync"}
    last = ran.out.splitlines()[-1]
    assert last == f"{len(verdicts)} passed, 0 failed, 0 skipped"


@pytest.mark.parametrize("how", [(), ("--mutate",)], ids=["vectors", "mutants"])
def test_a_driver_that_runs_is_asked(
    asyncnn_command: Command, shared: Path, tmp_path: Path, how: tuple[str, ...]
) -> None:
    report = tmp_path / "report.json"
    options = ("--filter", "add_*", "--path", "sync", "--workers", 1, *how)
    with driver_process(tmp_path / "d.sock") as driver:
        ran = asyncnn_command(
            *("conformance", shared / "vts" / "V1_0", *options, "--json", report),
            *("--socket", driver.path),
        )
    assert ran.status == 0, ran.out + ran.err
    verdicts = json.loads(report.read_bytes())
    assert {verdict["transport"] for verdict in verdicts} == {"remote"}
    gone = asyncnn_command(
        *("conformance", shared / "vts" / "V1_0", *options, "--socket", driver.path)
    )
    assert gone.status == 2
    assert gone.err.startswith("asyncnn: no driver at")
    assert gone.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--socket", "s", "--device", "reference"), "has its own device"),
        (("--path", "carrier"), "no path 'carrier'"),
        (("--transport", "pigeon"), "no transport 'pigeon'"),
        (("--through", "glass"), "no layer 'glass'"),
        (("--through", "framework", "--mutate"), "reference device itself"),
        (("--filter", "no such case"), "no case matches"),
    ],
)
def test_what_cannot_be_run_is_refused(
    asyncnn_command: Command, shared: Path, options: tuple[str, str], message: str
) -> None:
    ran = asyncnn_command("conformance", shared / "vts" / "V1_1", *options)
    assert ran.status == 2
    assert message in ran.err


def test_a_folder_without_vectors_is_refused(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command("conformance", tmp_path)
    assert ran.status == 2
    assert "no vector files" in ran.err


OF_NO_VERSION = b"""{"spec": "s", "hal": "V1_0", "cases": [{
    "name": "c", "min_hal": "V9_0", "declared_hal": "UNKNOWN", "relaxed": false,
    "main": {"operands": [], "operations": [], "inputs": [], "outputs": []},
    "expect_failure": false, "referenced": [], "outputs": [],
    "multinomial_tolerance": 0.0}]}"""


@pytest.mark.parametrize(
    "content",
    [
        b"not compressed",
        gzip.compress(b"{", mtime=0),
        gzip.compress(b"{}", mtime=0)[:-9],
        gzip.compress(OF_NO_VERSION, mtime=0),
    ],
)
def test_a_damaged_file_of_vectors_is_named_in_one_line(
    asyncnn_command: Command, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "broken.json.gz").write_bytes(content)
    ran = asyncnn_command("conformance", tmp_path, "--workers", 1)
    assert ran.status == 2
    assert ran.err.count("\n") == 1
    assert "broken.json.gz: not a file of vectors" in ran.err


def test_mutants_are_tried_and_counted_by_row(
    asyncnn_command: Command, shared: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    ran = asyncnn_command(
        *("conformance", shared / "vts" / "V1_0", "--filter", "relu*", "--mutate"),
        *("--mutants", 2, "--json", report, "--workers", 1),
    )
    assert ran.status == 0, ran.out
    results = json.loads(report.read_bytes())
    assert {result["transport"] for result in results} == {"inprocess"}
    assert max(result["passed"] for result in results) == 2
    passed = sum(result["passed"] for result in results)
    skipped = sum(sum(result["skipped"].values()) for result in results)
    last = ran.out.splitlines()[-1]
    assert last == f"{passed} passed, 0 failed, {skipped} skipped"
    assert "an operand is written twice" in ran.out
    assert "[VM16]: nothing reads the operand" in ran.out


def test_mutants_of_no_case_are_refused(asyncnn_command: Command, shared: Path) -> None:
    options = ("--mutate", "--filter", "no such case", "--workers", 1)
    ran = asyncnn_command("conformance", shared / "vts" / "V1_1", *options)
    assert ran.status == 2
    assert "no case matches" in ran.err


def test_a_mutant_that_is_accepted_fails_the_command(
    asyncnn_command: Command, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "asyncnn.tools.conformance.mutations.trial.run_mutants",
        lambda specs, plan, workers: [
            [
                RowResult(
                    "V1_0/add", "add", "VM9", plan.transport, failed=1, problems=("no",)
                )
            ]
        ],
    )
    ran = asyncnn_command("conformance", shared / "vts" / "V1_0", "--mutate")
    assert ran.status == 1
    assert "failed: add [VM9, inprocess]: no" in ran.out
    assert ran.out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_the_environment_names_the_device_where_no_option_does(
    asyncnn_command: Command, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("conformance", shared / "vts" / "V1_1", "--filter", "no such case")
    monkeypatch.setenv("ASYNCNN_DEVICE", "none-such")
    assert "there is no device 'none-such'" in asyncnn_command(*command).err
    monkeypatch.setenv("ASYNCNN_DEVICE", "accelerated")
    for option in ((), ("--mutate",)):
        assert "no case matches" in asyncnn_command(*command, *option).err
