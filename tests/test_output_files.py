"""Files that are written are complete, or as they were before."""

import os
import stat
import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from asyncnn.output_files import check_writable, write_file


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_text("before")
    return path


def contents(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in folder.iterdir()}


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new"
    for text in ("long at first", "short", "näive"):
        write_file(path, text)
        assert contents(tmp_path) == {"new": text}
    write_file(path, b"bytes")
    assert path.read_bytes() == b"bytes"


def test_what_is_private_is_so_from_the_beginning(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def see(file: BinaryIO) -> None:
        seen.append(os.fstat(file.fileno()).st_mode & 0o777)

    def change(path: Path, mode: int) -> None:
        seen.append(path.stat().st_mode & 0o777)

    target.chmod(0o644)
    monkeypatch.setattr(os, "chmod", change)
    write_file(target, see, is_private=True)
    assert set(seen) == {0o600}
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError])
def test_what_ends_in_the_middle_leaves_the_file_that_was_there(
    target: Path, error: type[BaseException]
) -> None:
    def write_half(file: BinaryIO) -> None:
        file.write(b"half")
        file.flush()
        raise error

    with pytest.raises(error):
        write_file(target, write_half)
    assert contents(target.parent) == {"report.json": "before"}


def test_a_full_disk_is_told_with_the_name_of_the_file() -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        write_file("/dev/full", b"x" * 100_000)
    assert caught.value.filename == "/dev/full"


def test_a_file_larger_than_allowed_leaves_what_was_there(target: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write_file(target, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(target)
    assert contents(target.parent) == {"report.json": "before"}


def test_modes_and_links_stay(target: Path, tmp_path: Path) -> None:
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    write_file(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_pipe_is_written_where_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    contents = b"through" * 2**16  # more than it holds
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb") as end:
        os.set_blocking(end.fileno(), True)
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(end.read()))
        check_writable(pipe)
        writer = threading.Thread(target=write_file, args=(pipe, contents))
        writer.start()
        with open(pipe, "wb"):  # it has not ended before the other one has begun
            reader.start()
            writer.join()
        reader.join()
    assert read == [contents]
    assert pipe.is_fifo()


def test_a_text_with_what_is_none_is_written(tmp_path: Path) -> None:
    write_file(tmp_path / "a", "x\udcff")
    assert contents(tmp_path) == {"a": "x?"}


class TestChecks:
    def test_what_can_be_written_is_left_as_it_is(
        self, target: Path, tmp_path: Path
    ) -> None:
        check_writable(None, target, tmp_path / "new", "/dev/null")
        assert contents(tmp_path) == {"report.json": "before"}

    @pytest.mark.parametrize(
        ("name", "reason"),
        [("nowhere/f", "No such file"), (".", "directory"), ("report.json/f", "ot a")],
    )
    def test_what_cannot_is_refused(self, target: Path, name: str, reason: str) -> None:
        path = target.parent / name
        with pytest.raises(OSError, match=reason) as caught:
            check_writable(path)
        assert caught.value.filename == str(path)
