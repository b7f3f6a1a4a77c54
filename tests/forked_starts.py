"""Has driver processes forked, not started anew: a pytest plugin.

A driver spends half a second on its imports. Here `subprocess.Popen` has the usual ones
forked by a process that has imported all that they need, `tests.fork_server`: a few
hundredths. They are children of this process, with an id, descriptors, a folder, an
environment and a process group as Popen gives them. What else is not as it was when the
tests began, such as a limit, has a process started anew, and so has what goes wrong. So
have tests of how a driver starts: their mark is ``started_anew``.
"""

import ctypes
import inspect
import json
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import DRIVER, MOST_BYTES, MOST_FDS, PID

ROOT = Path(__file__).parents[1]
READ_LATER = {
    "ASYNCNN_DEVICE",
    "ASYNCNN_LOG_JSON",
    "ASYNCNN_LOG_LEVEL",
    "ASYNCNN_TRACE",
    "KMP_DUPLICATE_LIB_OK",
    "PYTEST_CURRENT_TEST",
    "RAY_CLIENT_MODE",
    "XDG_STATE_HOME",
}
"""Variables that nothing which drivers need reads as it is imported.

Tests and packages that they import change them."""

TIMEOUT_S = 30.0
_SET_CHILD_SUBREAPER = 36
_AMPLE = 4096
_ROOM = 4096

_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_libc = ctypes.CDLL(None, use_errno=True)
_usual = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_signature = inspect.signature(_usual)


class ForkServer:
    """A process that forks drivers for this one."""

    def __init__(self) -> None:
        self.count = 0
        self.is_wanted = True
        self._works = False
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._circumstances = _circumstances(os.environ)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(TIMEOUT_S)
        with theirs:
            arguments = "tests.fork_server", str(theirs.fileno()), "-" * _ROOM
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd=ROOT,
                process_group=0,
            )

    def wait_ready(self) -> None:
        """Wait until it can fork; before that, and if it cannot, none is forked."""
        self._answered()

    def close(self) -> None:
        self._channel.close()
        self.process.wait()

    def take(self, started: "subprocess.Popen[Any]", given: dict[str, Any]) -> bool:
        """Have a process forked, if it can be; return whether that is done."""
        command = given["args"]
        environment = os.environ if given["env"] is None else given["env"]
        if not (
            self._works
            and self.is_wanted
            and os.getpid() == self._owner
            and isinstance(command, list)
            and command[:3] == [sys.executable, "-m", DRIVER]
            and _is_plain(given)
            and _circumstances(environment) == self._circumstances
        ):
            return False
        streams = given["p2cread"], given["c2pwrite"], given["errwrite"]
        fds = {n: n if fd == -1 else fd for n, fd in enumerate(streams)}
        fds |= {fd: fd for fd in given["pass_fds"]}
        group = os.getpgrp() if given["process_group"] == -1 else 0
        request = {
            "command": command,
            "cwd": os.fspath(given["cwd"] or os.getcwd()),
            "environment": dict(environment),
            "group": group,
            "numbers": list(fds),
            "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        message = json.dumps(request).encode()
        if len(message) > MOST_BYTES or len(fds) > MOST_FDS:
            return False
        with self._lock:
            pid = self._forked(message, list(fds.values()))
        if not pid:
            return False
        started.pid = pid
        started._child_created = True  # type: ignore[attr-defined]
        self.count += 1
        return True

    def _forked(self, message: bytes, fds: list[int]) -> int:
        """Return the id of a child that is what it is to be; 0 if there is none."""
        with _adopting():
            pid = self._answered(message, fds)
        if pid < 0:
            os.waitpid(-pid, 0)
        return max(pid, 0)

    def _answered(self, message: bytes = b"", fds: Sequence[int] = ()) -> int:
        """Return the id that the server tells; 0 if it is lost, and not used again."""
        self._works = False
        try:
            if message:
                socket.send_fds(self._channel, [message], fds)
            (pid,) = PID.unpack(self._channel.recv(PID.size))
            # It is a child of this process.
            os.waitid(os.P_PID, abs(pid), os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._works = True
        except (OSError, struct.error):
            return 0
        finally:
            if not self._works:
                self.process.kill()
        return int(pid)


@contextmanager
def _adopting() -> Iterator[None]:
    """Become the parent of what descendants leave."""
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _is_plain(given: dict[str, Any]) -> bool:
    """Return whether nothing is asked for that is not done here."""
    wanted = {
        "executable": None,
        "preexec_fn": None,
        "close_fds": True,
        "shell": False,
        "restore_signals": True,
        "gid": None,
        "gids": None,
        "uid": None,
        "umask": -1,
        "start_new_session": False,
    }
    return given["process_group"] in (-1, 0) and wanted.items() <= given.items()


def _circumstances(environment: Mapping[str, str]) -> tuple[object, ...]:
    """Return what a process has of its parent, or decides as it imports modules."""
    variables = dict(environment)
    for name in READ_LATER:
        variables.pop(name, None)
    limits = {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
    }
    # Each server in a process changes it; too few show while modules are imported.
    soft, hard = limits["RLIMIT_NOFILE"]
    limits["RLIMIT_NOFILE"] = (min(soft, _AMPLE), hard)
    status = Path("/proc/self/status").read_text()
    masks = re.findall(
        r"^(?:Umask|Uid|Gid|SigIgn|Cap\w+|Cpus_allowed):.*$", status, re.M
    )
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return variables, limits, masks, niceness, sys.executable


def _started(started: "subprocess.Popen[Any]", *arguments: Any, **named: Any) -> None:
    """Take the place of `subprocess.Popen._execute_child`."""
    given = _signature.bind(started, *arguments, **named).arguments
    if server is None or not server.take(started, given):
        _usual(started, *arguments, **named)
        return
    started._close_pipe_fds(*map(given.get, _PIPES))  # type: ignore[attr-defined]


server: ForkServer | None = None


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Start the server, which begins while tests are collected.

    Before there are any, as some look for processes and descriptors that are new.
    """
    global server
    if server is None and not collector.config.option.collectonly:
        server = ForkServer()
        subprocess.Popen._execute_child = _started  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    if server is not None:
        server.wait_ready()  # what it does would slow the first tests


def pytest_sessionfinish() -> None:
    global server
    subprocess.Popen._execute_child = _usual  # type: ignore[attr-defined]
    if server is not None:
        server.close()
        server = None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if server is not None:
        server.is_wanted = item.get_closest_marker("started_anew") is None
