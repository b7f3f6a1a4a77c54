"""Files that a command writes: complete, or as they were before.

A disk that fills up, an interrupt or a fault in the middle leaves the file that was
there. What is measured for long is asked for its files before, by `check_writable`.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]


@contextmanager
def replacing(path: AnyPath) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` once it is complete and on disk.

    A file that is replaced hands on its mode, and a link stays one. What cannot be
    replaced is written where it is: a device such as ``/dev/stdout``, a pipe, a file
    that is mounted alone, or one in a folder that takes no others.

    :raises OSError: with this ``path``, if that is not possible.
    """
    target = Path(os.path.realpath(path))
    try:
        if _is_written_in_place(target):
            with open(path, "wb") as file:
                yield file
            return
        draft = _new_draft(target)
        try:
            with open(draft, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _located(error, path) from error


def write_file(path: AnyPath, content: bytes | str) -> None:
    """Write a file as `replacing` does; a text is encoded as UTF-8.

    :raises OSError: with this ``path``, if that is not possible.
    """
    # Names of files may have bytes that are no text, which no encoding takes.
    data = content.encode(errors="replace") if isinstance(content, str) else content
    with replacing(path) as file:
        file.write(data)


def check_writable(*paths: AnyPath | None) -> None:
    """Find out, before long work, whether files can be written; None is no file.

    :raises OSError: with the path, if one cannot.
    """
    for path in paths:
        if path is None:
            continue
        target = Path(os.path.realpath(path))
        try:
            if target.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not _is_written_in_place(target):
                _new_draft(target).unlink()
            elif not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise _located(error, path) from error


def _is_written_in_place(target: Path) -> bool:
    if not target.exists():
        return False
    takes_others = os.access(target.parent, os.W_OK | os.X_OK)
    return not target.is_file() or target.is_mount() or not takes_others


def _new_draft(target: Path) -> Path:
    """Create an empty file beside ``target``, with the mode of that."""
    draft = target.with_name(f".asyncnn-{os.urandom(8).hex()}.tmp")
    with open(draft, "xb"), suppress(FileNotFoundError):
        os.chmod(draft, target.stat().st_mode & 0o777)
    return draft


def _located(error: OSError, path: AnyPath) -> OSError:
    """Return the same error of the file that was asked for."""
    return OSError(error.errno, error.strerror or str(error), os.fspath(path))
