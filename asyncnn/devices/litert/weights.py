"""Packed weights of a model, shared by its graphs, by processes, and by later ones.

XNNPACK arranges weights for its kernels, which takes most of a compilation's time, and
can keep the result in a file that is mapped by every graph that uses it. It takes such
a file on trust: one of another model or with a bit flipped computes wrong results, and
one cut short while it is mapped ends the process. It also truncates a file that it does
not like, and ends the process where a disk is full. So it never gets a file to write:

- It packs into memory without a name, which is sealed against being cut afterwards.
- From there asyncnn writes a file, aside and renamed, to a folder that only this user
  may write. Its name says of which model it is, and what its checksum is, so that no
  order of events puts contents and checksum of two writers together.
- Each process verifies a file, and hands XNNPACK descriptors that can only be read. A
  file that is not what its name says is removed and built anew. There are files only
  where it is promised that nobody cuts them short: to copy one takes longer than to
  pack anew.

Source: ``tflite/delegates/xnnpack/weight_cache.cc`` of LiteRT 2.3.
"""

import contextlib
import hashlib
import logging
import mmap
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncnn import __version__
from asyncnn.devices.measured_capabilities import cpu_features, cpu_name
from asyncnn.devices.private_files import (
    ask_folder,
    open_private,
    private_folder,
    writing,
)
from asyncnn.hal.errors import InvalidArgumentError, shortage_of
from asyncnn.input_files import in_one
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.handles import FIXED_SIZE, create_file, seal
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

SUFFIX = ".weights"
_KEY = re.compile(r"[0-9a-f]{16,64}")
_OWN = re.compile(rf"\.?{_KEY.pattern}[-0-9a-f]*{re.escape(SUFFIX)}(-[0-9a-f]{{16}})?")
"""Names of files and drafts. Others in the folder, such as Darknet's, stay there."""
_KEY_BYTES, _SUM_BYTES = 24, 16
_SUMMED_WORDS = 512
_VERSION_BYTES = 8
"""At the begin of what XNNPACK packs: zeros until it has finished."""


class Closable(Protocol):
    """What was compiled, and may have to be compiled once more."""

    def close(self) -> None:
        """Free it."""
        ...


Array: TypeAlias = NDArray[Any]
T = TypeVar("T", bound=Closable)


def weights_key(content: bytes, version: str) -> str:
    """Return the key of what an engine of ``version`` packs for this CPU.

    ``content`` is what a model is made of, or a hash of that.
    """
    digest = hashlib.blake2b(content, digest_size=_KEY_BYTES)
    digest.update(
        "\0".join(("", __version__, version, cpu_name(), cpu_features())).encode()
    )
    return digest.hexdigest()


class PackedWeights:
    """The packed weights of one model, which graphs of this process share.

    ``key`` is a hash of all that they depend on (`weights_key`), in hexadecimal digits.
    Without a ``folder`` they are kept as long as this object or a graph lives; else
    they are found there again, by other processes too, but never for another flatbuffer
    than the one they were packed of. The folder holds weights of other models and is
    kept below ``most_bytes`` by removing what was used least recently. Files there are
    mapped: nobody may cut them short.

    :raises InvalidArgumentError: if the key is no such hash.
    """

    def __init__(
        self, key: str, folder: Path | None = None, *, most_bytes: int = 2**30
    ) -> None:
        if not _KEY.fullmatch(key):
            raise InvalidArgumentError(f"{key!r} is no key of packed weights")
        self._key = key
        self._name = ""  # the key and a checksum of the model
        self._model: Array | None = None
        self._folder = folder
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._descriptor: Descriptor | None = None
        self._is_forked = False
        disown_in_children(self)

    def compile(self, model: Array, compile_with: Callable[[int], T]) -> T:
        """Return what is compiled with a descriptor of the weights, packed if need be.

        ``model`` is the flatbuffer. ``compile_with`` compiles it and hands the
        descriptor over to XNNPACK, which closes it.

        :raises InvalidArgumentError: if it was another one before.
        :raises ForkedError: in a child of the process that made this object.
        """
        if self._is_forked:
            raise forked_error("a set of packed weights")
        with self._lock:
            self._turn_to(model)
            if self._descriptor is None:
                self._descriptor = self._asked("used", in_one(self._found))
            if self._descriptor is None:
                packed = self._pack(compile_with)
                if packed is not None:
                    return packed
            assert self._descriptor is not None
            return _compile(compile_with, _reopened(self._descriptor.fd))

    @property
    def is_kept(self) -> bool:
        """Whether they are in a folder for others."""
        return self._folder is not None

    def close(self) -> None:
        """Let go of the weights; graphs that use them still do."""
        with self._lock:
            self._descriptor = None

    def disown(self) -> None:
        """Refuse all use: this is a forked child of the process that made it."""
        self._is_forked = True
        self._lock = threading.Lock()

    def _turn_to(self, model: Array) -> None:
        if self._model is not None and _are_one(self._model, model):
            return
        name = f"{self._key}-{checksum(self._key, model.data)}"
        if self._name not in ("", name):
            raise InvalidArgumentError("these packed weights are of another model")
        self._name, self._model = name, model

    def _pack(self, compile_with: Callable[[int], T]) -> T | None:
        """Have weights packed; return the graph if others cannot share them."""
        memory = Descriptor(create_file("asyncnn-weights"))
        graph = _compile(compile_with, os.dup(memory.fd))
        # It goes without where it has no descriptor left. To be handed what it has not
        # finished ends the process.
        if not any(os.pread(memory.fd, _VERSION_BYTES, 0)):
            return graph
        seal(memory.fd, FIXED_SIZE)
        self._descriptor = self._asked("kept", self._keeping(memory))
        if self._descriptor is None:
            self._descriptor = Descriptor(_reopened(memory.fd))
        # It keeps as much memory as the largest weights need while they are packed.
        graph.close()
        return None

    def _asked(
        self, what_for: str, steps: Steps[Descriptor | None]
    ) -> Descriptor | None:
        """Take steps in the folder; without one, or if it does not answer, none."""
        if self._folder is None:
            return None
        try:
            return ask_folder(self._folder, steps)
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            logger.warning("packed weights are not %s: %s", what_for, error)
            return None

    def _found(self) -> Descriptor | None:
        """Return a file that is what its name says, None if there is none.

        :raises OSError: if descriptors or memory have run out.
        """
        for path in self._files():
            try:
                return self._verified(path)
            except (OSError, ValueError) as error:
                if shortage_of(error) is not None:
                    raise  # there is nothing wrong with the file
                logger.warning("packed weights in %s are not used: %s", path, error)
                with contextlib.suppress(OSError):
                    path.unlink()
        return None

    def _files(self) -> list[Path]:
        assert self._folder is not None
        try:
            names = sorted(os.listdir(self._folder))
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            return []  # it is not there, or no folder
        start = f"{self._name}-"
        return [
            self._folder / name
            for name in names
            if name.startswith(start) and name.endswith(SUFFIX)
        ]

    def _verified(self, path: Path) -> Descriptor:
        private_folder(path.parent)
        file = Descriptor(open_private(path))
        with _contents(file.fd) as content:
            if self._path_of(content) != path:
                raise ValueError("its checksum is another one")
        os.utime(file.fd)  # used most recently
        return file

    def _keeping(self, packed: Descriptor) -> Steps[Descriptor | None]:
        """Write a file of what was packed; return it, None if it is not kept."""
        assert self._folder is not None
        try:
            private_folder(self._folder)
            with _contents(packed.fd) as content:
                if len(content) > self._most_bytes:
                    return None
                path = self._path_of(content)
                yield from writing(path, content, is_synced=False)
            for other in self._files():
                if other != path:  # another process has packed them, too
                    other.unlink(missing_ok=True)
            make_room(self._folder, self._most_bytes, besides=path)
            return self._verified(path)
        except (OSError, ValueError) as error:
            logger.warning("packed weights are not kept: %s", error)
            return None

    def _path_of(self, content: bytes | memoryview) -> Path:
        assert self._folder is not None
        digest = checksum(self._name, content)
        return self._folder / f"{self._name}-{digest}{SUFFIX}"


def checksum(key: str, content: bytes | memoryview) -> str:
    """Return what any damage to ``content`` changes; it is no defence against malice.

    It is a hash of the sums of pages, since hashing all would take longer than packing.
    """
    view = memoryview(content).cast("B")
    page = _SUMMED_WORDS * 8
    whole = len(view) // page * page
    words = np.frombuffer(view[:whole], np.uint64).reshape(-1, _SUMMED_WORDS)
    digest = hashlib.blake2b(f"{key} {len(view)}".encode(), digest_size=_SUM_BYTES)
    digest.update(np.add.reduce(words, axis=1, dtype=np.uint64).tobytes())
    digest.update(view[whole:])
    return digest.hexdigest()


def make_room(folder: Path, most_bytes: int, besides: Path) -> None:
    """Remove the files used least recently until the others take ``most_bytes``.

    What other processes have mapped stays with them until they let go of it.

    :raises OSError: if the folder cannot be listed.
    """
    found = []
    for path in folder.iterdir():
        if not _OWN.fullmatch(path.name):  # drafts have it: a writer may have died
            continue
        with contextlib.suppress(OSError):
            status = path.lstat()
            found.append((path != besides, -status.st_mtime_ns, status.st_size, path))
    taken = 0
    for _, _, nbytes, path in sorted(found):
        taken += nbytes
        if taken > most_bytes and path != besides:
            with contextlib.suppress(OSError):
                path.unlink()


def _compile(compile_with: Callable[[int], T], descriptor: int) -> T:
    # LiteRT closes the descriptor, but not if it fails early. Nobody else opens this
    # very file meanwhile: the caller holds the lock.
    status = os.fstat(descriptor)
    try:
        return compile_with(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), status):
                os.close(descriptor)
        raise


def _reopened(descriptor: int) -> int:
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def _are_one(model: Array, other: Array) -> bool:
    """Return whether both are the same memory; the first, and its address, is kept."""
    return (model.ctypes.data, model.nbytes) == (other.ctypes.data, other.nbytes)


@contextlib.contextmanager
def _contents(descriptor: int) -> Iterator[memoryview]:
    with (
        mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ) as mapped,
        memoryview(mapped) as content,
    ):
        yield content
