"""Verbose logging by tag, log lines that strangers cannot multiply, errors as one line.

The tags are the HAL's, and cost next to nothing while they are off:

===============  =================================================================
tag              says
===============  =================================================================
``model``        what models come to be prepared
``compilation``  what became of a preparation; plans that were built
``execution``    each execution as it is launched, by whichever call, and as it ends
``cpuexe``       the operations that an execution computes
``manager``      devices that were opened, drivers that were connected to
``driver``       calls that reach a device; clients of a driver process
``memory``       pools that were mapped or copied, buffers that were allocated
===============  =================================================================

The environment variable ``ASYNCNN_VLOG`` names tags, separated by spaces, commas or
colons; ``all`` or ``1`` stands for every one. What they say goes to standard error, and
to the loggers ``asyncnn.logs.TAG``. A message that takes work to make asks first::

    if EXECUTION.is_on:
        EXECUTION("launched", inputs=describe(request))

`SparseLogger` is for what clients can bring about as often as they like: a line of each
kind every ten seconds, which says how many others there were.

Source: the HAL's property ``debug.nn.vlog`` and its macros VLOG and VLOG_IS_ON.
"""

import errno
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from asyncnn.hal.errors import AsyncnnError, in_one_line

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


logger = logging.getLogger(__name__)

VARIABLE = "ASYNCNN_VLOG"

_SEPARATORS = re.compile(r"[ ,:]+")
_EVERYTHING = frozenset({"1", "all"})


class Tag:
    """A topic, which ``is_on`` or not. Calling it logs a message with its fields.

    The record has ``tag`` and ``fields`` as attributes, for handlers that store them.
    """

    __slots__ = ("_logger", "is_on", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_on = False
        self._logger = logging.getLogger(f"{__name__}.{name}")

    def __call__(self, message: str, **fields: object) -> None:
        """Log ``message`` and the fields, if this tag is on."""
        if self.is_on:
            words = [message, *(f"{key}={value}" for key, value in fields.items())]
            extra = {"tag": self.name, "fields": fields}
            self._logger.info(" ".join(words), extra=extra)

    def switch(self, is_on: bool) -> None:
        """Turn the tag on or off."""
        self.is_on = is_on
        self._logger.setLevel(logging.INFO if is_on else logging.NOTSET)


MODEL = Tag("model")
COMPILATION = Tag("compilation")
EXECUTION = Tag("execution")
CPUEXE = Tag("cpuexe")
MANAGER = Tag("manager")
DRIVER = Tag("driver")
MEMORY = Tag("memory")

TAGS = {
    tag.name: tag
    for tag in (MODEL, COMPILATION, EXECUTION, CPUEXE, MANAGER, DRIVER, MEMORY)
}
"""All tags, in the order of the bits in the HAL's mask."""


def set_tags(setting: str) -> None:
    """Turn on the tags that ``setting`` names and the others off.

    A tag that does not exist is logged as an error; the others count.
    """
    names = set(filter(None, _SEPARATORS.split(setting)))
    if names & _EVERYTHING:
        names = set(TAGS)
    for name in sorted(names - TAGS.keys()):
        known = ", ".join(TAGS)
        extra = {"tag": VARIABLE}
        logger.error("there is no tag %r; known: %s", name, known, extra=extra)
    for tag in TAGS.values():
        tag.switch(tag.name in names)


def obey_environment() -> None:
    """Turn on what the environment asks for, and show it on standard error."""
    setting = os.environ.get(VARIABLE, "")
    if setting and not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter("asyncnn[%(process)d] %(tag)s: %(message)s")
        )
        handler.addFilter(lambda record: hasattr(record, "tag"))
        logger.addHandler(handler)
    set_tags(setting)


obey_environment()


Level: TypeAlias = Literal["debug", "info", "warning", "error"]

EXIT_FAILED = 1
"""Exit status of a command that did its work, which failed."""
EXIT_BAD_INPUT = 2
"""Exit status of a process that was started with what it cannot work with."""

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Numbers of errors of writing, if a disk takes no more."""


@contextmanager
def errors_as_lines(failures: tuple[type[AsyncnnError], ...] = ()) -> Iterator[None]:
    """End the process with one line for an error that has a message.

    The status is 1 for an error of ``failures`` and for a disk that takes no more, and
    2 for any other.
    """
    try:
        yield
    except (AsyncnnError, OSError) as error:
        print(f"asyncnn: {one_line(error)}", file=sys.stderr)  # noqa: T201
        is_full = isinstance(error, OSError) and error.errno in DISK_FULL
        has_failed = is_full or isinstance(error, failures)
        sys.exit(EXIT_FAILED if has_failed else EXIT_BAD_INPUT)


def one_line(error: AsyncnnError | OSError) -> str:
    """Return what an error says, in one line."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    return in_one_line(" ".join(text.split()))
