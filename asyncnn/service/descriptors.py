"""How many files this process may have open, and those that it holds back for need.

The kernel gives a new descriptor the lowest free number and refuses numbers from the
soft limit of open files on. So lowering that limit holds descriptors back, and raising
it for a moment hands them out, without any of them being open meanwhile.
"""

import contextlib
import os
import resource
from collections.abc import Iterator, Sequence

_LEAST_SHARE = 4
"""A reserve never takes more than this part of all descriptors."""


def are_free(count: int, like: int) -> bool:
    """Tell whether ``count`` more descriptors can be had, by duplicating ``like``."""
    try:
        close_all(duplicates([like] * count))
    except OSError:
        return False
    return True


class DescriptorReserve:
    """Holds back up to ``count`` descriptors of ``most``, by default all there can be.

    The process has only one: the limit is that of whichever was used last.
    """

    def __init__(self, count: int, most: int | None = None) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = hard if most is None else most
        self._count = min(count, self._most // _LEAST_SHARE)
        self._used = 0
        self._set(self.limit)

    @property
    def limit(self) -> int:
        """How many descriptors there are besides those held back."""
        return self._most - self._count

    def covers(self, count: int) -> bool:
        """Tell whether it has ``count`` descriptors that are not in use."""
        return count <= self._count - self._used

    def has(self, fd: int) -> bool:
        """Tell whether ``fd`` is one that was held back."""
        return fd >= self.limit

    @contextlib.contextmanager
    def used_by(self, fds: Sequence[int]) -> Iterator[None]:
        """Count those of ``fds`` that were held back as in use inside the block."""
        used = sum([self.has(fd) for fd in fds])
        self._used += used
        try:
            yield
        finally:
            self._used -= used

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Have the reserve at hand inside the block; what was opened stays open."""
        self._set(self._most)
        try:
            yield
        finally:
            self._set(self.limit)

    def _set(self, soft: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors, those that follow one another in one system call.

    In each of them a thread that computes may take the interpreter from the loop.
    """
    numbers = sorted(fds)
    first = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            os.closerange(numbers[first], numbers[end - 1] + 1)
            first = end


def duplicates(fds: Sequence[int]) -> tuple[int, ...]:
    """Return as many descriptors of the same files.

    :raises OSError: if there are not so many left.
    """
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - closed below if one fails
    except OSError:
        close_all(copies)
        raise
    return tuple(copies)
