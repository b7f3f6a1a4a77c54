"""What one connection, one user and one process may use of a driver.

`ServiceLimits` and `UserLimits` are the settings. `DescriptorReserve` keeps descriptors
for the driver itself: the kernel gives a new descriptor the lowest free number and
refuses numbers from the soft limit of open files on. So lowering that limit holds
descriptors back, and raising it for a moment hands them out, without any of them being
open meanwhile. `OwnedTasks` are the tasks of a connection, bounded and ended with it,
and `PendingAnswers` the peer's that calls wait for.
"""

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import asdict

from asyncnn import hal
from asyncnn.hal.errors import check_least, too_many
from asyncnn.memory.descriptors import being_closed


class _Limits(msgspec.Struct, frozen=True):
    def __post_init__(self) -> None:
        check_least(self, 0, *asdict(self))


class ServiceLimits(_Limits, frozen=True):
    """Bounds for each connection; beyond them a call gets RESOURCE_EXHAUSTED.

    Each fence of another owner costs a file descriptor, and so does each pool that is
    not mapped. ``max_descriptors`` and ``max_mappings`` bound all connections of a
    process, and count what they have the driver keep open. A client that breaks the
    protocol, sends a larger message, does not greet within ``max_greeting_s`` seconds,
    or lets more than ``max_unread_bytes`` of answers pile up is disconnected.

    :raises InvalidArgumentError: if one is negative.
    """

    max_message_bytes: int = 64 * 2**20
    max_fds_per_message: int = 64
    max_prepared_models: int = 256
    max_preparing: int = 16
    max_executions: int = 1024
    max_fenced_executions: int = 65536
    max_fence_fds: int = 256
    max_bound_requests: int = 256
    max_bursts: int = 64
    max_buffers: int = 4096
    max_pools: int = 1024
    max_pool_bytes: int = 4 * 2**30
    max_copied_bytes: int = 256 * 2**20
    max_descriptors: int = 2048
    max_mappings: int = 4096
    max_unread_bytes: int = 4 * 2**20
    max_greeting_s: float = 10.0


MAX_CALLS = 2**20
"""That a driver keeps at most; see `RecordingSettings`."""


class RecordingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver keeps of its calls.

    :param calls: how many of the last calls; 0 keeps none.
    :param models: keep models, in full: without them a recording is repeated only with
        the files of these.
    :param tensors: keep inputs and outputs.
    :param max_bytes: of models, tensors and requests that are kept; what is more than
        an eighth of that, or too old, is left out.
    :param missed_deadlines_to: file that is written when a call misses its deadline.
    :raises InvalidArgumentError: if a number is too small or too large.
    """

    calls: int = 1000
    models: bool = False
    tensors: bool = False
    max_bytes: int = 2**22
    missed_deadlines_to: str = ""

    def __post_init__(self) -> None:
        check_least(self, 0, "calls")
        check_least(self, 2**16, "max_bytes")
        if self.calls > MAX_CALLS or self.max_bytes > 2**32:
            raise hal.InvalidArgumentError(
                f"a driver keeps {MAX_CALLS} calls and {2**32} bytes of them at most"
            )


class UserLimits(_Limits, frozen=True):
    """Bounds for all connections of one user together, whatever its processes.

    Beyond them a call gets RESOURCE_EXHAUSTED as beyond a connection's; the
    names are the same. Each connection has one of the ``max_region_processes`` at most.

    :raises InvalidArgumentError: if one is negative.
    """

    max_prepared_models: int = 1024
    max_executions: int = 2048
    max_fenced_executions: int = 65536
    max_bursts: int = 512
    max_buffers: int = 16384
    max_pools: int = 4096
    max_pool_bytes: int = 16 * 2**30
    max_region_processes: int = 16


LARGE_OPERATIONS = 50
"""Operations of a model that is worth a thread: fewer take less than a millisecond."""


def is_large(model: hal.Model) -> bool:
    """Return whether to send or check ``model`` would keep an event loop for long."""
    return model.operation_count > LARGE_OPERATIONS


class OwnedTasks:
    """Up to ``most`` tasks at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks: set[asyncio.Task[None]] = set()

    def check_room(self) -> None:
        """Check that another one may be started.

        :raises ResourceExhaustedTransientError: if there are too many.
        """
        if len(self._tasks) >= self._most:
            raise too_many("pending calls", "ServiceLimits.max_executions", self._most)

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task, whether there is room or not, and return it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def cancel(self) -> None:
        """Cancel all of them."""
        for task in tuple(self._tasks):
            task.cancel()

    async def wait_ended(self) -> None:
        """Wait until there are none."""
        # Again and again, as a task that ends may have started another one.
        while self._tasks:
            await asyncio.wait(self._tasks)


AnswerT = TypeVar("AnswerT")


class PendingAnswers:
    """The answers of a peer that calls wait for. Belongs to the event loop.

    Each has the number of its call, or of what that was to make.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[object]] = {}

    def __len__(self) -> int:
        """Return how many are waited for."""
        return len(self._waiting)

    async def answer(self, number: int, kind: type[AnswerT]) -> AnswerT:
        """Wait for an answer to what was just sent; nothing is read in between.

        :raises GeneralFailureError: if the peer sends another kind of answer.
        :raises DeviceUnavailableError: if it is lost first.
        """
        waiting = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        try:
            answer = await waiting
        finally:
            del self._waiting[number]
        if not isinstance(answer, kind):
            raise hal.GeneralFailureError(f"the peer answers with {answer!r}")
        return answer

    def answered(self, number: int, answer: object) -> None:
        """Take an answer; one that is late, or made up, is dropped."""
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def lose(self, cause: Callable[[], hal.DeviceUnavailableError]) -> None:
        """Fail what waits, each with an error of its own: the connection has ended."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(cause())


_LEAST_SHARE = 4
"""A reserve never takes more than this part of all descriptors."""


def are_free(count: int, like: int) -> bool:
    """Return whether ``count`` more descriptors can be had, by duplicating ``like``."""
    try:
        # No more than a guess: other threads may take them next.
        close_all(duplicates([like] * count))
    except OSError:
        return False
    return True


def least_limit(count: int, reserved: int) -> int:
    """Return the least limit that has ``count`` besides a reserve of ``reserved``."""
    share = (count - 1) * _LEAST_SHARE // (_LEAST_SHARE - 1) + 1
    return min(share, count + reserved)


class DescriptorReserve:
    """Holds back up to ``count`` descriptors of ``most``, by default all there can be.

    The process has only one: the limit is of whichever was used last.
    """

    def __init__(self, count: int, most: int | None = None) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = hard if most is None else most
        self._count = min(count, self._most // _LEAST_SHARE)
        self._used = 0
        self._set(self.limit)

    @property
    def limit(self) -> int:
        """How many descriptors there are besides those held back."""
        return self._most - self._count

    def covers(self, count: int) -> bool:
        """Return whether it has ``count`` descriptors that are not in use."""
        closing = sum([self.has(fd) for fd in being_closed()])
        return count <= self._count - self._used - closing

    def has(self, fd: int) -> bool:
        """Return whether ``fd`` is one that was held back."""
        return fd >= self.limit

    @contextlib.contextmanager
    def used_by(self, fds: Sequence[int]) -> Iterator[None]:
        """Count what of ``fds`` was held back as in use inside the block."""
        used = sum([self.has(fd) for fd in fds])
        self._used += used
        try:
            yield
        finally:
            self._used -= used

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Have the reserve at hand inside the block; what was opened stays open."""
        self._set(self._most)
        try:
            yield
        finally:
            self._set(self.limit)

    def _set(self, soft: int) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors, those that follow one another in one system call.

    In each of them a thread that computes may take the interpreter from the loop.
    """
    numbers = sorted(fds)
    first = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            os.closerange(numbers[first], numbers[end - 1] + 1)
            first = end


def duplicates(fds: Sequence[int]) -> tuple[int, ...]:
    """Return as many descriptors of the same files.

    :raises OSError: if there are not so many left.
    """
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401 - closed below if one fails
    except OSError:
        close_all(copies)
        raise
    return tuple(copies)
