import json
from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--path", "carrier"), "no path carrier"),
        (("--transport", "pigeon"), "no transport pigeon"),
        (("--filter", "no such case"), "no case matches"),
    ],
)
def test_what_cannot_be_run_is_refused(
    asyncnn_command: Command,
    shared: Path,
    options: tuple[str, str],
    message: str,
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
