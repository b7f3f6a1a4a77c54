"""What an operator reads on standard error: one line for each record, not too many."""

import json
import logging
import os
import select
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from asyncnn.logs import DRIVER, INTERVAL_S, SparseLogger
from asyncnn.qos import Client, acting_for
from asyncnn.service.driver.reporting import (
    MOST_BYTES,
    Level,
    LineHandler,
    logging_to_stderr,
)

logger = logging.getLogger("tests.stderr_log")


class Pipe:
    """What an operator reads from; all that was written so far."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe2(os.O_NONBLOCK)

    def read(self) -> str:
        try:
            return os.read(self.reader, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def lines(self) -> list[str]:
        return self.read().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for fd in (pipe.reader, pipe.writer):
        try:
            os.close(fd)
        except OSError:
            continue


@contextmanager
def handled(
    pipe: Pipe,
    level: int = logging.WARNING,
    *,
    as_json: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    handler = LineHandler(pipe.writer, as_json=as_json, clock=clock)
    handler.setLevel(level)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(handler)


def fail() -> None:
    raise ValueError("it is\nbroken")


def log_failure() -> None:
    try:
        fail()
    except ValueError as error:
        logger.error("a call\nfailed", exc_info=error)


def test_a_line_says_when_who_what_and_for_whom(pipe: Pipe) -> None:
    with handled(pipe), acting_for(Client("pid 7")):
        logger.warning("there are %d", 3)
    (line,) = pipe.lines()
    time, rest = line.split(maxsplit=1)
    assert time.endswith("Z")
    assert rest == f"asyncnn[{os.getpid()}] warning: there are 3 [client=pid 7]"


def test_an_exception_is_one_line_with_its_place(pipe: Pipe) -> None:
    with handled(pipe):
        log_failure()
    (line,) = pipe.lines()
    assert "error: a call failed [error=ValueError: it is broken, place=" in line
    assert "test_stderr_log.py:" in line
    assert "in fail]" in line


def test_a_traceback_follows_at_the_level_of_debugging(pipe: Pipe) -> None:
    with handled(pipe, logging.DEBUG):
        log_failure()
    first, *traceback = pipe.lines()
    assert "a call failed" in first
    assert traceback[0].startswith("Traceback")
    assert any("in log_failure" in line for line in traceback)


def test_json_has_the_same_as_fields(pipe: Pipe) -> None:
    sparse = SparseLogger(logger)
    with handled(pipe, as_json=True):
        sparse.log(logging.WARNING, "a client of %d", 5, client="pid 9", limit=256)
        with acting_for(Client("pid 7")):
            log_failure()
    refused, failed = map(json.loads, pipe.lines())
    assert refused["message"] == "a client of 5"
    assert refused["level"] == "warning"
    assert refused["logger"] == logger.name
    assert refused["pid"] == os.getpid()
    assert refused["client"] == "pid 9"
    assert refused["limit"] == 256
    assert failed["client"] == "pid 7"
    assert failed["error"] == "ValueError: it is broken"
    assert failed["place"].endswith("in fail")
    assert "traceback" not in failed


def test_of_each_kind_there_is_one_line_in_a_while(pipe: Pipe) -> None:
    now = 100.0
    loggers = [SparseLogger(logger, lambda: now) for _ in range(2)]

    def all_log() -> None:
        for number in range(3):
            logger.warning("here %d", number)
            for sparse in loggers:
                sparse.log(logging.WARNING, "there %d", number)

    with handled(pipe, clock=lambda: now):
        all_log()
        now += INTERVAL_S
        all_log()
    messages = [line.partition(": ")[2] for line in pipe.lines()]
    # Two of each three "there" are left out by their logger, and one logger's by all.
    assert messages == [
        "here 0",
        "there 0",
        "here 0 (and 2 more)",
        "there 0 (and 3 more)",
    ]


def test_at_the_level_of_debugging_all_lines_are_written(pipe: Pipe) -> None:
    with handled(pipe, logging.DEBUG):
        for number in range(3):
            logger.info("here %d", number)
    assert len(pipe.lines()) == 3


def test_verbose_logging_is_not_told_twice(pipe: Pipe) -> None:
    with handled(pipe, logging.DEBUG):
        logger.info("tagged", extra={"tag": DRIVER.name})
    assert pipe.lines() == []


@pytest.mark.parametrize("as_json", [False, True])
def test_a_long_line_is_cut(pipe: Pipe, as_json: bool) -> None:
    with handled(pipe, as_json=as_json):
        logger.warning("x" * 10 * MOST_BYTES)
    line = pipe.read()
    assert line.endswith("\n")
    assert len(line) <= MOST_BYTES
    if as_json:
        assert json.loads(line)["level"] == "warning"


@pytest.mark.parametrize("reader", ["sleeps", "is gone"])
def test_a_reader_cannot_stop_the_writer(pipe: Pipe, reader: str) -> None:
    os.set_blocking(pipe.writer, True)
    if reader == "is gone":
        os.close(pipe.reader)
    with handled(pipe, logging.DEBUG):
        for _ in range(200):
            logger.warning("x" * 1000)
    if reader == "sleeps":
        assert 20 <= len(pipe.lines()) < 200
        with handled(pipe, logging.DEBUG):
            logger.warning("and so on")
        assert "and so on" in pipe.read()


def test_threads_that_fail_and_warnings_are_records(
    capfd: pytest.CaptureFixture[str],
) -> None:
    level: Level = "warning"
    before = logging.getLogger().level, threading.excepthook
    with logging_to_stderr(level):
        thread = threading.Thread(target=fail, name="lane 3")
        thread.start()
        thread.join()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old\nnews", stacklevel=1)
        logging.getLogger("asyncnn.other").info("not told")
    logging.getLogger("asyncnn.other").warning("not told any more")
    assert (logging.getLogger().level, threading.excepthook) == before
    failed, warned = [
        line for line in capfd.readouterr().err.splitlines() if "asyncnn[" in line
    ]
    assert "error: a thread has failed: lane 3 [error=ValueError" in failed
    assert "old news" in warned
    assert select.PIPE_BUF == MOST_BYTES
