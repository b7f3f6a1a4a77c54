"""A process that owns a fence or waits for one; ``python -m tests.fences.peer``.

It is told what to do by one word for each packet, over the socket that it was given.
"""

import json
import os
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection

from asyncnn.fences import SyncFence
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import ErrorStatus

MOST_BYTES = 1024


def main(end: socket.socket) -> None:
    fence, source = SyncFence.pair()
    end.send(b"ready")
    while True:
        word, fds, _, _ = socket.recv_fds(end, MOST_BYTES, 1)
        match word:
            case b"own":
                socket.send_fds(end, [b"owned"], [fence.fileno()])
            case b"signal":
                source.signal()
            case b"fail":
                source.fail(ErrorStatus.MISSED_DEADLINE_TRANSIENT)
            case b"fork":
                _fork(end)
            case b"wait":
                awaited = SyncFence.from_fd(fds[0])
                os.close(fds[0])
                threading.Thread(target=_report, args=(end, awaited)).start()
            case _:
                return


def _fork(end: socket.socket) -> None:
    """Leave a child that outlives its parent, until the other side hangs up."""
    pid = os.fork()
    if pid == 0:
        end.send(b"forked")
        while end.recv(MOST_BYTES):
            pass
        os._exit(0)


def _report(end: socket.socket, fence: SyncFence) -> None:
    end.send(b"waiting")
    try:
        fence.wait_blocking(30)
        status = ErrorStatus.NONE
    except AsyncnnError as error:
        status = error.status
    heard_ns = time.monotonic_ns()
    end.send(json.dumps([status, heard_ns, fence.signalled_at_ns]).encode())


def wait_for(fence: SyncFence, answer: Connection) -> None:
    """Wait in a process that multiprocessing started."""
    answer.send(fence.state)
    fence.wait_blocking(30)
    answer.send(fence.state)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
