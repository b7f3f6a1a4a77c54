"""Files that a command writes: complete, or as they were before.

A disk that fills up, an interrupt or a fault in the middle leaves the file that was
there. What is measured for long is asked for its files before, by `check_writable`. An
interrupt also ends the waiting for a folder that does not answer.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from asyncnn.input_files import AnyPath, call_abandonable, in_one
from asyncnn.pacing import Steps

Write: TypeAlias = Callable[[BinaryIO], object]
"""Writes contents to a file."""


def write_file(
    path: AnyPath, content: bytes | str | Write, *, is_private: bool = False
) -> None:
    """Write a file that takes the place of ``path`` once it is complete and on disk.

    A file that is replaced hands on its mode, and a link stays one. What cannot be
    replaced is written where it is: a device such as ``/dev/stdout``, a pipe that
    somebody reads, a file that is mounted alone, or one in a folder that takes no
    others. A text is encoded as UTF-8. What ``is_private`` is for this user alone.

    :raises OSError: with this ``path``, if that is not possible.
    """
    if isinstance(content, str):
        # Names of files may have bytes that are no text, which no encoding takes.
        content = content.encode(errors="replace")
    call_abandonable(f"writing {os.fspath(path)}", _writing(path, content, is_private))


def _writing(path: AnyPath, content: bytes | Write, is_private: bool) -> Steps[None]:
    def write(file: BinaryIO) -> None:
        if isinstance(content, bytes):
            file.write(content)
        else:
            content(file)

    target = Path(os.path.realpath(path))
    try:
        if _is_written_in_place(target):
            with open(_open_in_place(path), "wb") as file:
                if is_private and target.is_file():
                    os.fchmod(file.fileno(), 0o600)
                write(file)
            return
        draft = _new_draft(target, is_private)
        try:
            with open(draft, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            yield  # what was interrupted replaces nothing
            os.replace(draft, target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _located(error, path) from error


def _open_in_place(path: AnyPath) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    os.set_blocking(fd, True)  # who reads a pipe may be slower than this
    return fd


def check_writable(*paths: AnyPath | None) -> None:
    """Find out, before long work, whether files can be written; None is no file.

    :raises OSError: with the path, if one cannot.
    """
    for path in paths:
        if path is not None:
            call_abandonable(f"writing {os.fspath(path)}", in_one(_check, path))


def _check(path: AnyPath) -> None:
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not _is_written_in_place(target):
            _new_draft(target, is_private=True).unlink()
        elif not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _located(error, path) from error


def _is_written_in_place(target: Path) -> bool:
    if not target.exists():
        return False
    takes_others = os.access(target.parent, os.W_OK | os.X_OK)
    return not target.is_file() or target.is_mount() or not takes_others


def _new_draft(target: Path, is_private: bool) -> Path:
    """Create an empty file beside ``target``, with the mode of that."""
    draft = target.with_name(f".asyncnn-{os.urandom(8).hex()}.tmp")
    # Whoever may open it once reads all that is written to it later.
    mode = 0o600 if is_private else 0o666
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    if not is_private:
        with suppress(FileNotFoundError):
            os.chmod(draft, target.stat().st_mode & 0o777)
    return draft


def _located(error: OSError, path: AnyPath) -> OSError:
    """Return the same error of the file that was asked for."""
    reason = error.strerror or str(error)
    if error.errno == errno.ENXIO:
        reason = "a FIFO that nobody reads"
    return OSError(error.errno, reason, os.fspath(path))
