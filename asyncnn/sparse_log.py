"""A logger for what strangers can bring about as often as they like."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable

INTERVAL_S = 10.0
"""Seconds that pass between two lines of a kind."""


class KindLimit:
    """Lets one of each kind through every `INTERVAL_S`, and counts all others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due: dict[Hashable, float] = {}
        self._left_out: Counter[Hashable] = Counter()

    def admit(self, kind: Hashable, count: int = 0) -> int | None:
        """Return how many were left out before this one; None if it is, too.

        It stands for ``count`` others, which were left out elsewhere.
        """
        now = self._clock()
        if now < self._due.get(kind, now):
            self._left_out[kind] += 1 + count
            return None
        self._due[kind] = now + INTERVAL_S
        return self._left_out.pop(kind, 0) + count


class SparseLogger:
    """Logs a line of each kind at most once every `INTERVAL_S`.

    What is left out is counted, and the next line of the kind says how many that were.
    A kind is a message without its arguments, so that nobody can make up new ones.
    """

    def __init__(
        self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logger = logger
        self._limit = KindLimit(clock)

    def log(
        self,
        level: int,
        message: str,
        *arguments: object,
        error: BaseException | None = None,
        kind: Hashable = None,
        **fields: object,
    ) -> None:
        """Log a line, unless one of its ``kind`` was logged lately.

        The traceback of an ``error`` follows it. The record has ``fields``, ``kind``
        and ``left_out`` as attributes, for handlers that store them.
        """
        kind = kind or message
        left_out = self._limit.admit(kind)
        if left_out is None:
            return
        if left_out:
            message, arguments = f"{message} (and %d more)", (*arguments, left_out)
        extra = {"fields": fields, "kind": kind, "left_out": left_out}
        self._logger.log(
            level, message, *arguments, exc_info=error, stacklevel=2, extra=extra
        )
