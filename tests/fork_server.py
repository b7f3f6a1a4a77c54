"""Forks drivers that have imported all they need: see `tests.forked_starts`.

``python -m tests.fork_server FD ROOM`` answers requests at a socket until its other end
is closed. It has no thread and no loop, and no descriptor but that. What it forks
becomes a child of the process that asks, which is a subreaper just then. ``ROOM`` is
any text: its place in memory is that of a driver's command.
"""

import ctypes
import fcntl
import gc
import json
import os
import resource
import runpy
import socket
import struct
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from asyncnn.kernels.registry import load_kernels

DRIVER = "asyncnn.service.start"
OF_DEVICES = ("asyncnn.devices.reference", "asyncnn.devices.accelerated")

MOST_BYTES = 1 << 16
"""Of a request."""

MOST_FDS = 100
PID = struct.Struct("i")
"""The answer: the process, which has all it was asked to; negative if it has not."""

_GO = b"g"
_HIGH = 200


def main(channel_fd: str, _: str) -> None:
    for each in (DRIVER, *OF_DEVICES):
        import_module(each)
    load_kernels()
    _forget(DRIVER)
    channel = socket.socket(fileno=int(channel_fd))
    # A process forked from one that has more would have it, too.
    assert set(_open_fds()) == {0, 1, 2, channel.fileno()}, _open_fds()
    gc.collect()
    gc.freeze()
    channel.send(PID.pack(os.getpid()))
    request = _serve(channel)
    if request is not None:
        sys.argv[:] = ["-m", *request["command"][3:]]
        runpy.run_module(DRIVER, run_name="__main__", alter_sys=True)


def _forget(module: str) -> None:
    """Have a module imported anew, as the program."""
    parent, _, name = module.rpartition(".")
    del sys.modules[module]
    delattr(sys.modules[parent], name)


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Return what a forked process is to run; None in this one, in the end."""
    while True:
        message, fds, _, _ = socket.recv_fds(channel, MOST_BYTES, MOST_FDS)
        if not message:
            return None
        told, telling = os.pipe()
        going, go = os.pipe()
        middle = os.fork()
        if not middle:
            os.close(told)
            os.close(go)
            channel.detach()  # `_begin` closes it
            if os.fork():
                os._exit(0)  # the other one becomes a child of whom it is for
            return _begin(json.loads(message), fds, telling, going)
        for fd in (telling, going, *fds):
            os.close(fd)
        os.waitpid(middle, 0)
        answer = os.read(told, PID.size) or PID.pack(0)
        os.close(told)
        with suppress(OSError):  # who asked has gone, which is noticed next
            channel.send(answer)
            os.write(go, _GO)
        os.close(go)


def _begin(
    request: dict[str, Any], fds: list[int], telling: int, going: int
) -> dict[str, Any]:
    """Become what `subprocess.Popen` would start; go on when that is known."""
    try:
        os.setpgid(0, request["group"])
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        # Out of the way of the numbers that they are to have.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH) for fd in (telling, going, *fds)]
        telling, going, *given = high
        for fd, number in zip(given, request["numbers"], strict=True):
            os.dup2(fd, number)
        for fd in set(_open_fds()).difference(request["numbers"], (telling, going)):
            with suppress(OSError):
                os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, request["limit"])
        sys.path[0] = os.getcwd()
        _show_command(request["command"])
    except BaseException:
        os.write(telling, PID.pack(-os.getpid()))
        os._exit(1)
    os.write(telling, PID.pack(os.getpid()))
    if os.read(going, 1) != _GO:
        os._exit(1)
    os.close(telling)
    os.close(going)
    return request


def _show_command(command: list[str]) -> None:
    """Have this process, and others, see a command as that of this process."""
    sys.orig_argv[:] = command
    *_, start, end = Path("/proc/self/stat").read_text().split()[:49]
    shown = b"".join(os.fsencode(each) + b"\0" for each in command)
    room = int(end) - int(start)
    assert len(shown) <= room, "the command is too long"
    ctypes.memmove(int(start), shown.ljust(room, b"\0"), room)


def _open_fds() -> list[int]:
    """Return the open descriptors, but for that of the folder which has them."""
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    return [fd for fd in listed if os.path.exists(f"/proc/self/fd/{fd}")]


if __name__ == "__main__":
    main(*sys.argv[1:])
