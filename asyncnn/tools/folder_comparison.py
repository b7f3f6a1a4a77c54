"""The work behind ``asyncnn compare FOLDER``: every model file in it, one by one.

Each file is compared in a process of its own: some runtimes end theirs on a damaged
file, and what one has loaded is not in the way of the next.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, in_one_line
from asyncnn.runtime.file_kinds import kind_of
from asyncnn.runtime.model import open_model_file
from asyncnn.tools.comparison import ComparisonReport, PeerKind
from asyncnn.tools.pages import Column, Page, SortableTable

OUT_OF_TOLERANCE = 1
"""Exit status of ``asyncnn compare`` for a file with outputs that differ."""


class FileReport(msgspec.Struct, frozen=True):
    """What became of one file: times in microseconds, ``problem`` where it did not run.

    ``passed`` is whether all outputs are within tolerance, ``largest`` the outputs that
    differ most, in words.
    """

    name: str
    bytes: int
    passed: bool
    device: str = ""
    run_us: float | None = None
    peer_us: float | None = None
    largest: str = ""
    problem: str = ""

    @property
    def ratio(self) -> float | None:
        """Time of a run beside the peer's."""
        if self.run_us is None or not self.peer_us:
            return None
        return self.run_us / self.peer_us

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        verdict = "agrees" if self.passed else "OUT OF TOLERANCE"
        return (
            f"{self.name}: {verdict}, awaited {self.run_us:.0f} us, "
            f"{self.ratio:.2f} times the peer's; {self.largest}"
        )


class FolderReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn compare FOLDER --json``."""

    folder: str
    peer: str
    passed: bool
    files: tuple[FileReport, ...]


def files_in(folder: Path, peer: PeerKind) -> list[Path]:
    """Return the files in a folder, and in those in it, that the peer reads.

    :raises InvalidArgumentError: if there is none.
    """
    found = [path for path in sorted(folder.rglob("*")) if _is_read(path, peer)]
    if not found:
        raise InvalidArgumentError(f"{folder}: no file in it is one of {peer.title}")
    return found


def _is_read(path: Path, peer: PeerKind) -> bool:
    try:
        if not path.is_file():
            return False
        peer.check_reads(kind_of(open_model_file(path)))
    except (AsyncnnError, OSError):
        return False
    return True


def compare_file(folder: Path, path: Path, options: Sequence[str]) -> FileReport:
    """Compare one file, in a process of its own.

    :param options: of ``asyncnn compare``.
    """
    command = [sys.executable, "-m", "asyncnn", "compare", str(path), "--json"]
    ended = subprocess.run([*command, *options], capture_output=True, check=False)
    name = str(path.relative_to(folder))
    return _report(name, path, ended.returncode, ended.stdout, ended.stderr)


def _report(
    name: str, path: Path, status: int, printed: bytes, complaints: bytes
) -> FileReport:
    size = os.stat(path).st_size
    if status not in (0, OUT_OF_TOLERANCE):
        return FileReport(name, size, False, problem=_problem(path, status, complaints))
    report = msgspec.json.decode(printed, type=ComparisonReport)
    outputs = [output for series in report.series for output in series.outputs]
    differing = [output for output in outputs if not output.passed]
    return FileReport(
        name,
        size,
        report.passed,
        report.device,
        report.run_us,
        report.peer_us,
        "; ".join(map(str, differing or outputs[:1])),
    )


def _problem(path: Path, status: int, complaints: bytes) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    lines = complaints.decode(errors="replace").strip().splitlines()
    said = in_one_line(lines[-1]) if lines else f"ended with status {status}"
    return said.removeprefix("asyncnn: ").removeprefix(f"{path}: ")


def page_of(report: FolderReport) -> Page:
    """Return the page that shows a report."""
    columns = [
        Column("file"),
        Column("size", "B"),
        Column("agrees"),
        Column("awaited run", "us"),
        Column(report.peer, "us", help="in asyncio.to_thread, with its defaults"),
        Column("ratio", help="of both times"),
        Column("outputs, or why it does not run"),
    ]
    rows = [
        (
            *(each.name, each.bytes, "yes" if each.passed else "no"),
            *(each.run_us, each.peer_us, each.ratio, each.problem or each.largest),
        )
        for each in report.files
    ]
    table = SortableTable(title="Files", columns=columns, rows=rows)
    return Page(title=f"{report.folder} beside {report.peer}", parts=[table])
