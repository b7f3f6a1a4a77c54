"""Files that the user's programs keep for themselves, in the state directory.

Their contents are trusted, so none is read that another user may have written: a file
counts only if it is a regular one of this user that no other may use. They are written
aside and renamed, so that a reader finds the old contents or the new. A folder that
does not answer is gone without.
"""

import errno
import os
import stat
import time
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import TypeVar

from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.input_files import (
    call_abandonable,
    check_regular,
    in_one,
    open_input,
    patience,
)
from asyncnn.pacing import Steps

T = TypeVar("T")

_DEAD_S = 3600  # the age of a draft whose writer is not at work any more


def state_folder() -> Path:
    """Return the folder in ``$XDG_STATE_HOME``, by default in ``~/.local/state``.

    :raises RuntimeError: if there is no home.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local/state"
    return folder / "asyncnn"


def private_folder(path: Path) -> None:
    """Make sure that ``path`` is a folder of this user that no other may write to.

    :raises OSError: if it is not, or cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise OSError(f"{path} is not a folder of this user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"others than its owner may write to {path}")


def using(folder: Path) -> str:
    """Return what is said to be done where files in a folder are read or written."""
    return f"using {folder}"


def ask_folder(folder: Path, steps: Steps[T]) -> T:
    """Take steps in a folder that can be gone without, if it answers.

    :raises OSError: if it does not, or one of the steps raises that.
    """
    what = using(folder)
    try:
        return call_abandonable(what, steps, deadline=patience(what))
    except ResourceExhaustedTransientError as error:
        raise OSError(errno.EAGAIN, error.message) from error


def open_private(path: Path) -> int:
    """Return a descriptor for reading a file that only this user may use.

    :raises OSError: if it cannot be opened, is not a regular file of this user, or
        others may use it.
    """
    fd = open_input(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise OSError(f"{path} is not a file of this user")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise OSError(f"others than its owner may use {path}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_private(path: Path, most: int) -> bytes:
    """Return the contents of a file, and of longer ones the first ``most`` bytes.

    :raises OSError: if it cannot be read, is not a regular file of this user, or others
        may use it.
    """
    return ask_folder(path.parent, in_one(_read, path, most))


def _read(path: Path, most: int) -> bytes:
    with open(open_private(path), "rb") as file:
        return file.read(most)


def write_private(path: Path, content: bytes, *, may_replace: bool = True) -> None:
    """Put a complete file at ``path``, unless one is there that may not be replaced.

    :raises OSError: if that is not possible.
    """
    ask_folder(path.parent, writing(path, content, may_replace=may_replace))


def check_place(path: Path) -> None:
    """Find out, before long work, whether a file can be put at ``path``.

    :raises OSError: if it cannot.
    """

    def begin() -> None:
        next(steps := writing(path, b""))
        steps.close()

    ask_folder(path.parent, in_one(begin))


def writing(
    path: Path,
    content: bytes | memoryview,
    *,
    may_replace: bool = True,
    is_synced: bool = True,
) -> Steps[None]:
    """Do the same in steps; who stops them leaves nothing.

    What one that was killed has left is removed an hour later. Unless it is synced, a
    machine that fails may leave any contents there.

    :raises OSError: if that is not possible.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        check_regular(path, path.lstat())
    for left in path.parent.glob(f".{escape(path.name)}-{'[0-9a-f]' * 16}"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > _DEAD_S:
                left.unlink()
    draft = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            if is_synced:
                file.flush()
                os.fsync(fd)
        yield
        if may_replace:
            draft.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
