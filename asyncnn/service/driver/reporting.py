"""What a driver reports to its operator: a line on standard error for each record.

A line is dropped, and counted, rather than waited for: a slow reader must not be able
to stop the driver. Refusals and failures of clients are explained here in one wording.
"""

import logging
import os
import re
import select
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from asyncnn import hal
from asyncnn.callbacks import CallbackObject
from asyncnn.logs import KindLimit, Level, SparseLogger
from asyncnn.qos import LOCAL, calling_client

MOST_BYTES = select.PIPE_BUF
"""A line is no longer: a pipe that can be written takes so much at once, and whole."""

_STDERR = 2
_YES = {"1", "true", "t", "yes", "y", "on"}
_NO = {"", "0", "false", "f", "no", "n", "off"}
_ROOT = Path(__file__).parents[3]
_SHOWN_FIELDS = ("client", "error", "place")

logger = logging.getLogger(__name__)


def level_from_environment() -> tuple[Level, bool]:
    """Return the level, and whether lines are JSON, that the environment asks for.

    :raises InvalidArgumentError: if a variable has a value that means nothing.
    """
    level = os.environ.get("ASYNCNN_LOG_LEVEL") or "warning"
    as_json = os.environ.get("ASYNCNN_LOG_JSON", "").strip().lower()
    if level not in get_args(Level):
        raise hal.InvalidArgumentError(
            f"ASYNCNN_LOG_LEVEL is {level}", hint=f"known: {', '.join(get_args(Level))}"
        )
    if as_json not in _YES | _NO:
        raise hal.InvalidArgumentError(f"ASYNCNN_LOG_JSON is {as_json}", hint="1 or 0")
    return cast("Level", level), as_json in _YES


@contextmanager
def logging_to_stderr(level: Level, *, as_json: bool = False) -> Iterator[None]:
    """Log everything of at least ``level`` to standard error, inside the block.

    Warnings of Python, and what ends a thread, are records like all others.
    """
    root, before = logging.getLogger(), threading.excepthook
    level_before = root.level
    handler = LineHandler(_STDERR, as_json=as_json)
    handler.setLevel(level.upper())
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    threading.excepthook = _log_end_of_thread
    try:
        yield
    finally:
        threading.excepthook = before
        logging.captureWarnings(False)
        root.setLevel(level_before)
        root.removeHandler(handler)


class LineHandler(logging.Handler):
    """Writes records as lines of text, or as one JSON object each.

    Of each kind, one is written every `INTERVAL_S`, with the number of those that were
    not. A kind is what `SparseLogger` says it is, otherwise a place in the code. At
    the level DEBUG all are written, and tracebacks.
    """

    def __init__(
        self,
        fd: int,
        *,
        as_json: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._fd = fd
        self._as_json = as_json
        self._limit = KindLimit(clock)
        self._writable = select.poll()
        self._writable.register(fd, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless one of its kind was written lately."""
        if hasattr(record, "tag"):  # verbose logging has a handler of its own
            return
        try:
            left_out: int | None = getattr(record, "left_out", 0)
            if self.level > logging.DEBUG:
                kind = getattr(record, "kind", None) or (record.pathname, record.lineno)
                left_out = self._limit.admit(kind, left_out or 0)
            if left_out is not None:
                self._write(self._line(self._fields(record, left_out)))
        except Exception:
            self.handleError(record)

    def _fields(self, record: logging.LogRecord, left_out: int) -> dict[str, Any]:
        message = record.getMessage()
        suffix = f" (and {getattr(record, 'left_out', 0)} more)"
        fields = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": " ".join(message.removesuffix(suffix).split()),
        }
        client = calling_client.get()
        if client is not LOCAL:
            fields["client"] = client.name
        fields |= getattr(record, "fields", {})
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            fields |= {"error": _described(error), "place": _place_of(error)}
            if self.level <= logging.DEBUG:
                fields["traceback"] = "".join(traceback.format_exception(error))
        if left_out:
            fields["left_out"] = left_out
        return fields

    def _line(self, fields: dict[str, Any]) -> bytes:
        if self._as_json:
            return _json_line(fields)
        text = "{time} asyncnn[{pid}] {level}: {message}".format_map(fields)
        shown = [f"{name}={fields[name]}" for name in _SHOWN_FIELDS if name in fields]
        if shown:
            text += f" [{', '.join(shown)}]"
        if "left_out" in fields:
            text += f" (and {fields['left_out']} more)"
        line = text.encode(errors="replace")[: MOST_BYTES - 1] + b"\n"
        return line + str(fields.get("traceback", "")).encode(errors="replace")

    def _write(self, line: bytes) -> None:
        """Write a line if that is possible at once, and a traceback after it."""
        while line:
            events = [event for _, event in self._writable.poll(0)]
            if not events or not events[0] & select.POLLOUT:
                return
            with suppress(OSError):  # nobody reads any more
                os.write(self._fd, line[:MOST_BYTES])
            line = line[MOST_BYTES:]


def _json_line(fields: dict[str, Any]) -> bytes:
    line = msgspec.json.encode(fields, enc_hook=str) + b"\n"
    while len(line) > MOST_BYTES:  # it stays a document
        longest = max(fields, key=lambda name: len(str(fields[name])))
        fields[longest] = str(fields[longest])[: len(str(fields[longest])) // 2]
        line = msgspec.json.encode(fields, enc_hook=str) + b"\n"
    return line


def _time_of(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _described(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # it is a stranger's
        text = "it cannot be described"
    return f"{type(error).__name__}: {text}"


def _place_of(error: BaseException) -> str:
    """Return where an error was raised, like ``asyncnn/kernels/softmax.py:12``."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        with suppress(ValueError):
            path = path.relative_to(_ROOT)
        place = f"{path}:{line} in {frame.f_code.co_name}"
    return place


def _log_end_of_thread(ended: threading.ExceptHookArgs) -> None:
    name = "one" if ended.thread is None else ended.thread.name
    logger.error("a thread has failed: %s", name, exc_info=ended.exc_value)


log = SparseLogger(logger)  # one for all clients, who come and go

_SETTING = re.compile(r"\b\w+\.max_\w+|ulimit -n")
NO_DESCRIPTOR = "the driver has no descriptor left: its limit of open files (ulimit -n)"

_REFUSALS = hal.ResourceExhaustedTransientError, hal.ResourceExhaustedPersistentError


def explained(error: Exception) -> hal.AsyncnnError:
    """Return the error to report to the calling client.

    What it was refused for want of room is logged, and what nobody expected.
    """
    failure, name = hal.failure_of(error), calling_client.get().name
    if isinstance(failure, _REFUSALS):
        warn_of_refusal(name, failure)
    elif failure is not error:
        code = _code_of(error)
        log.log(logging.ERROR, "a call of %s failed", name, error=error, kind=code)
    return failure


def warn_of_refusal(client: str, error: hal.AsyncnnError) -> None:
    """Log that ``client`` is refused for want of room; the error says which."""
    found = _SETTING.search(str(error))
    setting = found and found.group()
    log.log(
        logging.WARNING,
        "a call of %s is refused: %s",
        client,
        str(error),  # its traceback would keep what frames refer to
        kind=(_code_of(error), setting),  # one for each limit
        client=client,
        setting=setting,
    )


def warn_if_refused(
    client: str, callback: CallbackObject, status: hal.ErrorStatus
) -> None:
    """Log if a device has refused a call of ``client`` for want of room."""
    is_refusal = status in (refusal.status for refusal in _REFUSALS)
    if is_refusal and not callback.is_dead:  # one that was cancelled ends likewise
        warn_of_refusal(client, hal.error_for(status, callback.reason))


def kill(callback: CallbackObject) -> None:
    """Let a callback die, whatever a device makes of it."""
    try:
        callback.die()
    except Exception as error:
        log.log(logging.ERROR, "a call could not be cancelled", error=error)


def _code_of(error: Exception) -> Hashable:
    place: Hashable = type(error).__name__
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = frame.f_code, line
    return place
