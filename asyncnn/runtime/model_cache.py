"""A folder of cache files, from which models are prepared again without the work.

Files are written beside the folder's others under names of their own and take their
places when they are complete: those who read them meanwhile, in any process, keep what
they have. What cannot be read or written, or by a folder that does not answer, is
prepared as if there were no cache.
"""

import fcntl
import hashlib
import logging
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn.callbacks import PreparedModelFuture, launched_preparation
from asyncnn.deadlines import check_deadline
from asyncnn.devices.cache_files import closing
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    MissedDeadlineError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.interfaces import IDevice, IPreparedModel, cause_of_death
from asyncnn.hal.refusals import CacheArguments, LoadArguments, PrepareArguments
from asyncnn.hal.types import ErrorStatus, Handle, Subgraph
from asyncnn.hal.validate import validating
from asyncnn.hal.validate.rules import malformed_as_invalid
from asyncnn.input_files import (
    in_one,
    offload_abandonable,
    open_input,
    patience,
    send_away,
)
from asyncnn.memory.descriptors import Descriptor, handles_of
from asyncnn.memory.pools import view
from asyncnn.offload import offload, offload_steps
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_MAX_BYTES = 2**30

_DRAFT = ".draft"
_OWN = re.compile(r"([0-9a-f]{64})\.(?:model|data)\d+(-[0-9a-f]{16}\.draft)?")
"""Names that caches give. What else is in the folder is not theirs to remove."""

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_ABANDONED_AFTER_S = 3600.0
_LOCKED_BY_OTHERS_S = 2.0
_LOOK_S = 0.005
_FEW_OPERATIONS = 100
"""Operations of a model that is validated faster than by another thread."""
_SLICE = 512
"""Operands or operations of a model that are encoded at a time."""
_NOT_LOADED = frozenset({ErrorStatus.GENERAL_FAILURE, ErrorStatus.INVALID_ARGUMENT})


class ModelCache:
    """Keeps at most ``max_bytes`` of cache files in ``folder``.

    The folder is created, for this user alone, when it is needed. The files of models
    that have not been asked for the longest go first. Several devices and processes may
    use one folder.

    :raises InvalidArgumentError: if ``max_bytes`` is not positive.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        if max_bytes < 1:
            raise InvalidArgumentError(f"a cache of {max_bytes} bytes")
        self.folder = Path(folder)
        self.max_bytes = max_bytes

    async def prepare(
        self,
        device: IDevice,
        arguments: PrepareArguments,
        identity: bytes | None = None,
    ) -> IPreparedModel:
        """Load a model from the cache, or prepare it and leave it there.

        ``identity`` stands for the contents of the model, all of which have to be read
        otherwise.

        :raises InvalidArgumentError: if the folder is a file.
        :raises AsyncnnError: if the model cannot be prepared.
        """
        check_deadline(arguments.deadline)
        _, *counts = device.get_number_of_cache_files_needed()
        if not any(counts):
            return await prepare(device, arguments)
        if identity is None:
            token = await offload(_token, device, arguments)
        else:
            token = _begun_token(device, arguments, identity).digest()
        names = _names(token, counts)
        loaded = await self._load(device, arguments, names, token)
        if loaded is not None:
            return loaded
        return await self._prepare_and_save(device, arguments, names, token)

    async def _load(
        self,
        device: IDevice,
        arguments: PrepareArguments,
        names: "_Names",
        token: bytes,
    ) -> IPreparedModel | None:
        async with self._opened(names, os.O_RDONLY, arguments.deadline) as caches:
            if caches is None:
                return None
            cache = CacheArguments(*caches, token)
            asked = LoadArguments(arguments.deadline, cache)
            callback = launched_preparation(device, asked)
            try:
                prepared = await _outcome(device, callback)
            except AsyncnnError as error:
                if error.status not in _NOT_LOADED:
                    raise
                logger.info("%s is not used: %s", names[0][0], error)
                return None
            return prepared

    async def _prepare_and_save(
        self,
        device: IDevice,
        arguments: PrepareArguments,
        names: "_Names",
        token: bytes,
    ) -> IPreparedModel:
        suffix = f"-{os.urandom(8).hex()}{_DRAFT}"
        drafts = tuple(tuple(name + suffix for name in kind) for kind in names)
        try:
            async with self._opened(drafts, _NEW, arguments.deadline) as caches:
                if caches is None:
                    self._remove(drafts)
                    return await prepare(device, arguments)
                cache = CacheArguments(*caches, token)
                prepared = await prepare(device, arguments._replace(cache=cache))
        except BaseException:
            self._remove(drafts)
            raise
        try:
            await self._ask(self._adopting(drafts, names), arguments.deadline)
        except BaseException as error:
            self._remove(drafts)
            if not isinstance(error, OSError | ResourceExhaustedTransientError):
                raise
            logger.warning("a model is not kept in %s: %s", self.folder, error)
        return prepared

    @asynccontextmanager
    async def _opened(
        self, names: "_Names", flags: int, deadline: int | None
    ) -> AsyncIterator["_Handles | None"]:
        """Open all files, closed in the end; None if that is not possible."""
        files = None
        try:
            files = await self._ask(self._opening(names, flags), deadline)
        except FileNotFoundError:
            pass
        except (OSError, ResourceExhaustedTransientError) as error:
            is_over = deadline is not None and time.monotonic_ns() >= deadline
            if is_over and isinstance(error, MissedDeadlineError):
                raise
            logger.warning("no cache in %s: %s", self.folder, error)
        if files is None:
            yield None
            return
        handles = handles_of(files)
        try:
            yield handles[: len(names[0])], handles[len(names[0]) :]
        finally:
            files.clear()

    async def _ask(self, steps: Steps[T], deadline: int | None) -> T:
        """Take steps in the folder, for which nobody waits if it does not answer."""
        what = f"using the cache in {self.folder}"
        limits = [patience(what), deadline]
        limit = min(each for each in limits if each is not None)
        return await offload_abandonable(what, steps, deadline=limit)

    def _opening(self, names: "_Names", flags: int) -> Steps[list[Descriptor]]:
        """Open all files; those that are there count as used just now."""
        is_new = bool(flags & os.O_CREAT)
        try:
            if is_new:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            files = [
                closing(open_input(self.folder / name, flags))
                for name in (*names[0], *names[1])
            ]
            yield
        except (FileExistsError, NotADirectoryError) as error:
            if not self.folder.is_file():
                raise
            message = f"{self.folder} is a file, not a folder"
            raise InvalidArgumentError(message) from error
        except GeneratorExit:  # nobody waits for them any more
            if is_new:
                self._unlink(names)
            raise
        if not is_new:
            for file in files:
                with suppress(OSError):
                    os.utime(file.fd)
        return files

    def _adopting(self, drafts: "_Names", names: "_Names") -> Steps[None]:
        """Put complete files in their places, the model's last; make room for them.

        The last one says whether the device has saved the model. It may have had no use
        for others.

        :raises OSError: if that is not possible.
        """
        written = [
            (self.folder / draft, self.folder / name)
            for draft, name in zip(
                (*drafts[1], *reversed(drafts[0])),
                (*names[1], *reversed(names[0])),
                strict=True,
            )
        ]
        try:
            fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield from _locking(fd)
                if written[-1][0].stat().st_size:
                    for draft, path in written:
                        draft.replace(path)
                self._evict()
            finally:
                os.close(fd)
        finally:
            self._unlink(drafts)

    def _remove(self, names: "_Names") -> None:
        """Have files removed, but do not wait for that."""
        send_away(f"using the cache in {self.folder}", in_one(self._unlink, names))

    def _unlink(self, names: "_Names") -> None:
        for name in (*names[0], *names[1]):
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)

    def _evict(self) -> None:
        sizes: Counter[str] = Counter()
        used: defaultdict[str, float] = defaultdict(float)
        files: defaultdict[str, list[Path]] = defaultdict(list)
        for entry in os.scandir(self.folder):
            name = _OWN.fullmatch(entry.name)
            if name is None:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # somebody's draft, which is gone
                continue
            token, draft = name.groups()
            if draft is None:
                sizes[token] += status.st_size
                used[token] = max(used[token], status.st_mtime)
                files[token].append(Path(entry))
            elif time.time() - status.st_mtime > _ABANDONED_AFTER_S:
                Path(entry).unlink(missing_ok=True)
        excess = sizes.total() - self.max_bytes
        for token in sorted(used, key=used.__getitem__):
            if excess <= 0:
                break
            excess -= sizes[token]
            for path in files[token]:
                path.unlink(missing_ok=True)


def _locking(fd: int) -> Steps[None]:
    """Keep others from changing a folder, so that files go in pairs."""
    until_s = time.monotonic() + _LOCKED_BY_OTHERS_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(_LOOK_S)
        yield


_Names = Sequence[Sequence[str]]
_Handles = tuple[Sequence[Handle], Sequence[Handle]]


async def prepare(device: IDevice, arguments: PrepareArguments) -> IPreparedModel:
    """Prepare a model and await it; it is saved in its cache if that is possible.

    A large model is validated on a thread, so that the device knows it already. Whether
    one is taken that drivers need not take is for the device to say.

    :raises AsyncnnError: if it cannot be prepared.
    """
    with malformed_as_invalid("model"):
        is_large = arguments.model.operation_count > _FEW_OPERATIONS
    if is_large:
        await offload_steps(validating(arguments.model, runtime_only_features=True))
    return await _outcome(device, launched_preparation(device, arguments))


async def _outcome(device: IDevice, callback: PreparedModelFuture) -> IPreparedModel:
    try:
        return await callback
    except DeviceUnavailableError as error:
        raise cause_of_death(device) or error from None


def _begun_token(
    device: IDevice, arguments: PrepareArguments, identity: bytes | None = None
) -> "hashlib._Hash":
    version = device.get_version_string()[1]
    settings = (version, int(arguments.preference), int(arguments.priority))
    token = hashlib.sha256(msgspec.msgpack.encode(settings))
    if identity is not None:
        token.update(b"identity")
        token.update(identity)
    return token


def _token(device: IDevice, arguments: PrepareArguments) -> bytes:
    """Return what distinguishes a prepared model from all others, by its contents."""
    token = _begun_token(device, arguments)
    # Bit by bit: encoding all at once would hold the interpreter for too long.
    model = arguments.model
    for subgraph in (model.main, *model.referenced):
        for part in (subgraph.operands, subgraph.operations):
            token.update(len(part).to_bytes(8, "little"))
            for start in range(0, len(part), _SLICE):
                token.update(msgspec.msgpack.encode(part[start : start + _SLICE]))
    token.update(
        msgspec.msgpack.encode(
            replace(
                model,
                main=_outline(model.main),
                referenced=tuple(map(_outline, model.referenced)),
                pools=(),
            )
        )
    )
    for memory in arguments.model.pools:
        token.update(memory.size.to_bytes(8, "little"))
        token.update(view(memory))
    return token.digest()


def _outline(subgraph: Subgraph) -> Subgraph:
    return replace(subgraph, operands=(), operations=())


def _names(token: bytes, counts: Sequence[int]) -> _Names:
    kinds = zip(("model", "data"), counts, strict=True)
    return [[f"{token.hex()}.{kind}{i}" for i in range(n)] for kind, n in kinds]
