"""A folder that stops answering, as one of a network does whose server has gone.

A process of its own serves it by FUSE, and shows the files of a folder beside it. What
is asked for after `DeadFolder.hang` waits in the kernel, where no signal but SIGKILL
ends it, until `DeadFolder.answer`. Mounting takes the rights of root.

Source: ``include/uapi/linux/fuse.h`` of Linux 6.1.
"""

import ctypes
import errno
import os
import select
import shutil
import signal
import stat
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import IO

_DETACH = 2
_BUFFER_BYTES = 2**20 + 2**16
_MOST_WRITTEN_BYTES = 2**20
_HEADER = struct.Struct("<IIQQIIII")
_ANSWER = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ROOT = 1
DONE = "done"
_LOOK_S = 0.02


class Call(IntEnum):
    """What the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    CREATE = 35
    INTERRUPT = 36
    BATCH_FORGET = 42
    RENAME2 = 45


_UNANSWERED = (Call.FORGET, Call.BATCH_FORGET, Call.INTERRUPT)


class DeadFolder:
    """A mounted folder at ``path``, with the files of the folder ``behind``."""

    def __init__(self, path: Path, behind: Path, server: subprocess.Popen[str]) -> None:
        self.path = path
        self.behind = behind
        self._server = server
        self._hanging: deque[str] = deque()

    def hang(self, *calls: Call) -> None:
        """Answer no more of these calls, by default of none."""
        self._say(f"hang {','.join(call.name for call in calls or Call)}")

    def answer(self) -> None:
        """Answer all that waits, and all that follows."""
        self._say("answer")

    def wait_hanging(self) -> str:
        """Wait until one more call waits for an answer; return its name. Blocks."""
        return self._hanging.popleft() if self._hanging else self._told()

    def wake(self) -> None:
        """Have what waits in `wait_hanging` return, though nothing hangs."""
        self._order("hang")

    def _order(self, words: str) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(f"{words}\n")
        self._server.stdin.flush()

    def _say(self, words: str) -> None:
        self._order(words)
        while (told := self._told()) != DONE:
            self._hanging.append(told)

    def _told(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().strip()


@contextmanager
def dead_folder(path: Path) -> Iterator[DeadFolder]:
    """Mount a folder at ``path`` for a block; nothing waits for it afterwards.

    :raises OSError: if that is not allowed here.
    """
    behind = path.with_name(f"{path.name}-behind")
    behind.mkdir()
    path.mkdir()
    server = subprocess.Popen(
        [sys.executable, __file__, path, behind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        told = server.stdout.readline().strip()
        if told != DONE:
            raise OSError(errno.EPERM, f"no folder can be mounted: {told}")
        yield DeadFolder(path, behind, server)
    finally:
        server.kill()  # what still waits fails then
        server.communicate()
        _libc().umount2(os.fsencode(path), _DETACH)
        shutil.rmtree(behind)


def _tell(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class _Server:
    """Answers what the kernel asks of one mount."""

    def __init__(self, device: int, behind: str) -> None:
        self._device = device
        self._paths = {_ROOT: behind}
        self._numbers = {behind: _ROOT}
        self._hanging: set[Call] = set()
        self._waiting: list[bytes] = []
        self._calls: dict[Call, Callable[[str, bytes], bytes]] = {
            Call.INIT: self._init,
            Call.LOOKUP: self._lookup,
            Call.GETATTR: lambda path, _: self._attributes(path),
            Call.SETATTR: self._set_attributes,
            Call.MKNOD: self._make_node,
            Call.MKDIR: self._make_folder,
            Call.UNLINK: lambda path, rest: self._without(os.unlink, path, rest),
            Call.RMDIR: lambda path, rest: self._without(os.rmdir, path, rest),
            Call.RENAME: lambda path, rest: self._rename(path, rest, 8),
            Call.RENAME2: lambda path, rest: self._rename(path, rest, 16),
            Call.OPEN: self._open,
            Call.CREATE: self._create,
            Call.READ: self._read,
            Call.WRITE: self._write,
            Call.STATFS: lambda *_: bytes(80),
            Call.RELEASE: self._release,
            Call.FSYNC: lambda *_: b"",
            Call.FLUSH: lambda *_: b"",
            Call.OPENDIR: lambda *_: bytes(16),
            Call.READDIR: self._list,
            Call.RELEASEDIR: lambda *_: b"",
        }

    def serve(self, orders: IO[str]) -> None:
        """Answer until the orders end."""
        self._take(os.read(self._device, _BUFFER_BYTES))  # what is asked for first
        _tell(DONE)
        while True:
            look_s = _LOOK_S if self._waiting else None
            sources = [self._device, orders.fileno()]
            ready, _, _ = select.select(sources, [], [], look_s)
            if orders.fileno() in ready:
                verb, *names = orders.readline().replace(",", " ").split() or ("end",)
                if verb == "end":
                    return
                self._hanging = {Call[name] for name in names}
                _tell(DONE)
                waiting, self._waiting = self._waiting, []
                for request in waiting:
                    self._take(request)
            if self._device in ready:
                self._take(os.read(self._device, _BUFFER_BYTES))
            self._let_go_of_killed()

    def _let_go_of_killed(self) -> None:
        """Fail the calls of threads that are killed: the kernel has them wait, too."""
        for request in tuple(self._waiting):
            _, _, unique, _, _, _, thread, _ = _HEADER.unpack_from(request)
            if _is_killed(thread):
                self._waiting.remove(request)
                self._answer(unique, errno.EINTR, b"")

    def _take(self, request: bytes) -> None:
        length, code, unique, node, *_ = _HEADER.unpack_from(request)
        known = {int(each) for each in Call}
        call = Call(code) if code in known else None
        if call in _UNANSWERED:
            return
        if call in self._hanging:
            self._waiting.append(request)
            _tell(call.name)
            return
        error, answer = errno.ENOSYS, b""
        if call in self._calls:
            try:
                rest = request[_HEADER.size : length]
                answer = self._calls[call](self._paths.get(node, ""), rest)
                error = 0
            except OSError as failed:
                error = failed.errno or errno.EIO
        self._answer(unique, error, answer)

    def _answer(self, unique: int, error: int, answer: bytes) -> None:
        head = _ANSWER.pack(_ANSWER.size + len(answer), -error, unique)
        with suppress(FileNotFoundError):  # who asked was killed
            os.write(self._device, head + answer)

    def _init(self, _: str, rest: bytes) -> bytes:
        major, minor, ahead, _ = struct.unpack_from("<4I", rest)
        kept = struct.pack("<HHII", 16, 12, _MOST_WRITTEN_BYTES, 1)
        return struct.pack("<4I", major, min(minor, 31), ahead, 0) + kept + bytes(36)

    def _number(self, path: str) -> int:
        if path not in self._numbers:
            number = len(self._paths) + 1
            self._numbers[path], self._paths[number] = number, path
        return self._numbers[path]

    def _described(self, path: str) -> bytes:
        found = os.lstat(path)
        times = [found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns]
        return _ATTRIBUTES.pack(
            self._number(path),
            found.st_size,
            found.st_blocks,
            *(ns // 10**9 for ns in times),
            *(ns % 10**9 for ns in times),
            found.st_mode,
            found.st_nlink,
            found.st_uid,
            found.st_gid,
            0,
            4096,
            0,
        )

    def _entry(self, path: str) -> bytes:
        described = self._described(path)
        # Nothing stays valid: the kernel is to ask each time.
        return struct.pack("<4Q2I", self._number(path), 0, 0, 0, 0, 0) + described

    def _attributes(self, path: str) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._described(path)

    def _lookup(self, path: str, rest: bytes) -> bytes:
        return self._entry(_joined(path, rest))

    def _set_attributes(self, path: str, rest: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", rest)
        mode = struct.unpack_from("<I", rest, 68)[0]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(path, size)
        return self._attributes(path)

    def _make_node(self, path: str, rest: bytes) -> bytes:
        made = _joined(path, rest[16:])
        os.mknod(made, struct.unpack_from("<I", rest)[0])
        return self._entry(made)

    def _make_folder(self, path: str, rest: bytes) -> bytes:
        made = _joined(path, rest[8:])
        os.mkdir(made, struct.unpack_from("<I", rest)[0])
        return self._entry(made)

    def _without(self, remove: Callable[[str], None], path: str, rest: bytes) -> bytes:
        removed = _joined(path, rest)
        remove(removed)
        self._numbers.pop(removed, None)
        return b""

    def _rename(self, path: str, rest: bytes, skipped: int) -> bytes:
        folder = self._paths[struct.unpack_from("<Q", rest)[0]]
        old, new = rest[skipped:].split(b"\0")[:2]
        before, after = _joined(path, old), _joined(folder, new)
        os.rename(before, after)
        number = self._numbers.pop(before, None)
        self._numbers.pop(after, None)
        if number is not None:
            self._numbers[after], self._paths[number] = number, after
        return b""

    def _open(self, path: str, rest: bytes) -> bytes:
        flags = struct.unpack_from("<I", rest)[0]
        # What is kept in memory of this machine would be read without being asked for.
        return struct.pack("<QII", os.open(path, flags & ~os.O_NOFOLLOW), 0, 0)

    def _create(self, path: str, rest: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", rest)
        made = _joined(path, rest[16:])
        fd = os.open(made, flags | os.O_CREAT, mode)
        return self._entry(made) + struct.pack("<QII", fd, 0, 0)

    def _read(self, _: str, rest: bytes) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", rest)
        return os.pread(fd, size, offset)

    def _write(self, _: str, rest: bytes) -> bytes:
        fd, offset, size = struct.unpack_from("<QQI", rest)
        return struct.pack("<II", os.pwrite(fd, rest[40 : 40 + size], offset), 0)

    def _release(self, _: str, rest: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", rest)[0])
        return b""

    def _list(self, path: str, rest: bytes) -> bytes:
        _, offset, _ = struct.unpack_from("<QQI", rest)
        entries = b""
        for position, name in enumerate(sorted(os.listdir(path)), 1):
            if position > offset:
                encoded = os.fsencode(name)
                entry = struct.pack(
                    "<QQII", 2**32 + position, position, len(encoded), 0
                )
                entry += encoded
                entries += entry + bytes(-len(entry) % 8)
        return entries[:4096] if len(entries) <= 4096 else b""


def _is_killed(thread: int) -> bool:
    try:
        lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in lines if "Pnd:" in line]
    return any(signals & 1 << signal.SIGKILL - 1 for signals in pending)


def _joined(path: str, name: bytes) -> str:
    return os.path.join(path, os.fsdecode(name.split(b"\0")[0]))


def _main(path: str, behind: str) -> None:
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id=0"
        libc = _libc()
        arguments = b"asyncnn-test", os.fsencode(path), b"fuse", 0, options.encode()
        if libc.mount(*arguments):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        _tell(str(error.strerror))
        return
    _Server(device, behind).serve(sys.stdin)


if __name__ == "__main__":
    _main(*sys.argv[1:])
