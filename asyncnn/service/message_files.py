"""Memory files that messages too large for a packet travel in.

They are sealed: nobody changes what another process reads.
"""

import fcntl
import os

from asyncnn.errors import InvalidArgumentError
from asyncnn.memory.copying import Descriptor

_SEALS = (
    fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
)
_CHUNK_BYTES = 2**20
_BLOCK_BYTES = 512
"""What ``st_blocks`` counts."""


class MessageFile:
    """A file of ``size`` bytes, ready to be sent; it goes with this object.

    :raises OSError: if memory or descriptors have run out.
    """

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._file = Descriptor(_sealed_file(data))

    @property
    def fd(self) -> int:
        """The descriptor of the file."""
        return self._file.fd


def _sealed_file(data: bytes) -> int:
    """Return the descriptor of a memory file that nobody can change any more."""
    fd = os.memfd_create("asyncnn-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


class ReceivedFile:
    """A message of ``size`` bytes in a memory file that the peer sent.

    Slicing it returns that piece; one thread at a time may. The file is read in chunks,
    which others need not wait for, and is not mapped. Chunks are large: a thread that
    often lets go of the interpreter for a moment keeps all others from getting it.
    """

    def __init__(self, file: Descriptor, size: int) -> None:
        self.size = size
        self._file = file
        self._chunk = memoryview(b"")
        self._chunk_at = 0

    @property
    def fd(self) -> int:
        """The descriptor of the file."""
        return self._file.fd

    def check(self) -> None:
        """Check that reading costs the peer what it costs us, and waits for nobody.

        The seals vouch for the latter, and that it is a memory file. A sparse one would
        have our pages filled with zeros that its sender never had.

        :raises InvalidArgumentError: if it is not sealed, shorter, or sparse.
        """
        fd = self._file.fd
        try:
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise InvalidArgumentError("a message's file is not sealed")
            status = os.fstat(fd)
        except OSError as error:
            raise _unreadable(error) from error
        if status.st_size < self.size:
            raise InvalidArgumentError("a message's file is shorter than it says")
        if status.st_blocks * _BLOCK_BYTES < self.size:
            raise InvalidArgumentError("a message's file is sparse")

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, span: slice) -> bytes | memoryview:
        """Return bytes of the message, as many as there are.

        :raises InvalidArgumentError: if they cannot be read.
        :raises MemoryError: if memory has run out.
        """
        start, stop, _ = span.indices(self.size)
        if stop - start > _CHUNK_BYTES:
            return self._read(start, stop - start)
        at = start - self._chunk_at
        if at < 0 or at + stop - start > len(self._chunk):
            self._chunk = memoryview(self._read(start, _CHUNK_BYTES))
            self._chunk_at, at = start, 0
        return self._chunk[at : at + stop - start]

    def _read(self, start: int, length: int) -> bytes:
        try:
            return os.pread(self._file.fd, length, start)
        except OSError as error:
            raise _unreadable(error) from error


def _unreadable(error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError(f"a message's file cannot be read: {error.strerror}")
