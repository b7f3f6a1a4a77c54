"""Files that the user's programs keep for themselves, in the state directory.

Their contents are trusted, so none is read that another user may have written: a file
counts only if it is a regular one of this user that no other may use. They are written
aside and renamed, so that a reader finds the old contents or the new.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


def open_private(path: Path) -> int:
    """Return a descriptor for reading a file that only this user may use.

    :raises OSError: if it cannot be opened, is not a regular file of this user, or
        others may use it.
    """
    # A pipe in its place must not be waited for.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
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
    with open(open_private(path), "rb") as file:
        return file.read(most)


@contextmanager
def private_draft(
    path: Path, content: bytes | memoryview, *, is_synced: bool = True
) -> Iterator[Path]:
    """Write a complete file next to ``path``, which the block puts in its place.

    Unless it is synced, a machine that fails may leave any contents there.

    :raises OSError: if that is not possible.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
            if is_synced:
                file.flush()
                os.fsync(fd)
        yield draft
    finally:
        draft.unlink(missing_ok=True)
