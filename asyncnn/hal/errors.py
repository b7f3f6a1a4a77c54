"""The one exception family; every member carries the HAL status it stands for.

Errors cross the HAL as `ErrorStatus`. Inside Python they are raised, and mapped to a
status at the HAL boundary; the awaitable face maps a status back with `error_for`.
"""

import errno
import os
import resource
from collections.abc import Collection
from contextlib import suppress
from functools import cache
from math import inf
from pathlib import Path
from typing import ClassVar, Self

from asyncnn.hal.types import ErrorStatus, OutputShapes

_MOST_CHARACTERS = 20_000
"""How much is kept of a message that says where an error is."""


def in_one_line(text: str) -> str:
    """Return ``text`` with spaces for what cannot be printed, cut if it is very long.

    What a file says of itself may be part of a message.
    """
    if not text.isprintable():
        text = "".join(each if each.isprintable() else " " for each in text)
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}..."
    return text


class AsyncnnError(Exception):
    """Base of all errors raised by asyncnn.

    ``status`` is the HAL status, ``hint`` says what to do next where that is known.
    """

    status: ClassVar[ErrorStatus] = ErrorStatus.GENERAL_FAILURE

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        self.message = message or self.status.name
        self.hint = hint
        super().__init__(f"{self.message} ({hint})" if hint else self.message)

    def at(self, where: str) -> Self:
        """Return the same error with ``where`` in front of its message."""
        message = in_one_line(f"{where}: {self.message}")
        return type(self)(message, hint=in_one_line(self.hint))


class DeviceUnavailableError(AsyncnnError):
    """The device takes no work; its subclasses say why."""

    status = ErrorStatus.DEVICE_UNAVAILABLE


class DeviceClosedError(DeviceUnavailableError):
    """This application has closed the device, or what belongs to it."""


class DriverDiedError(DeviceUnavailableError):
    """The driver process has gone (DEAD_OBJECT); pending work may have been done."""


class NoDriverError(DeviceUnavailableError):
    """No driver serves there, or none could be started."""


class ForkedError(DeviceUnavailableError):
    """A parent process has opened it, which a forked child cannot share."""


class GeneralFailureError(AsyncnnError):
    """Computing failed, or the request is valid but not supported."""

    status = ErrorStatus.GENERAL_FAILURE


class ExecutionFailedError(GeneralFailureError):
    """An execution that was begun has failed: a value, a kernel or the engine did."""


class PreparationFailedError(GeneralFailureError):
    """A device has failed to prepare a model, and has given no reason."""


class BusyError(GeneralFailureError):
    """Another call uses what only one can use at a time, such as a burst's arrays."""


class EngineUnavailableError(GeneralFailureError):
    """The engine of a device is missing, or does not work; the hint says what to do."""


class OutputInsufficientSizeError(AsyncnnError):
    """An output buffer is too small; ``output_shapes`` says what is needed."""

    status = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE

    def __init__(self, message: str = "", output_shapes: OutputShapes = ()) -> None:
        super().__init__(message)
        self.output_shapes = output_shapes

    def at(self, where: str) -> Self:
        """Return the same error with ``where`` in front of its message."""
        message = in_one_line(f"{where}: {self.message}")
        return type(self)(message, self.output_shapes)


class StalePlanError(OutputInsufficientSizeError):
    """Outputs have other shapes than in earlier runs: it is to run once more."""


class InvalidArgumentError(AsyncnnError, ValueError):
    """A model, request or argument breaks a rule of the HAL."""

    status = ErrorStatus.INVALID_ARGUMENT


class WrongTypeError(InvalidArgumentError, TypeError):
    """An argument is of a type that cannot be meant, such as text for an array."""


class WrongLoopError(InvalidArgumentError, RuntimeError):
    """No event loop of asyncio runs here, or another than the one that opened it."""


class MissedDeadlineError(AsyncnnError, TimeoutError):
    """The deadline passed; whether to try again is what the subclasses say."""

    status = ErrorStatus.MISSED_DEADLINE_TRANSIENT

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message or "the deadline passed", hint=hint)


MISSED = frozenset(
    {ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT}
)
"""What executions end with whose deadline passed."""


class MissedDeadlineTransientError(MissedDeadlineError):
    """The deadline passed; the same work may succeed shortly."""

    status = ErrorStatus.MISSED_DEADLINE_TRANSIENT


class MissedDeadlinePersistentError(MissedDeadlineError):
    """The deadline passed; the same work is likely to miss it again."""

    status = ErrorStatus.MISSED_DEADLINE_PERSISTENT


class ResourceExhaustedError(AsyncnnError):
    """Something has run out; whether to try again is what the subclasses say."""

    status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


class ResourceExhaustedTransientError(ResourceExhaustedError):
    """Memory, descriptors, threads or a quota have run out, or work was cancelled."""

    status = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


class ResourceExhaustedPersistentError(ResourceExhaustedError):
    """The work needs more than the device will ever give."""

    status = ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT


_BY_STATUS: dict[ErrorStatus, type[AsyncnnError]] = {
    cls.status: cls
    for cls in (
        DeviceUnavailableError,
        GeneralFailureError,
        OutputInsufficientSizeError,
        InvalidArgumentError,
        MissedDeadlineTransientError,
        MissedDeadlinePersistentError,
        ResourceExhaustedTransientError,
        ResourceExhaustedPersistentError,
    )
}


def counted(count: int, what: str) -> str:
    """Return a number of things in words; ``what`` is one of them."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def error_for(status: ErrorStatus, message: str = "") -> AsyncnnError:
    """Return the exception that stands for ``status``.

    :raises ValueError: if ``status`` is NONE, which is no error.
    """
    if status is ErrorStatus.NONE:
        raise ValueError("ErrorStatus.NONE is not an error")
    return _BY_STATUS[status](message)


def require_known(what: str, name: str, known: Collection[str]) -> None:
    """Check that ``name`` is one of those ``known``; ``what`` says of what.

    :raises InvalidArgumentError: if it is not.
    """
    if name not in known:
        raise InvalidArgumentError(
            f"there is no {what} {name!r}"[:200], hint=f"known: {', '.join(known)}"
        )


def too_many(
    what: str, limit: str, most: int, *, hint: str = ""
) -> ResourceExhaustedTransientError:
    """Return the error for more of ``what`` than the setting ``limit`` allows."""
    return ResourceExhaustedTransientError(
        f"too many {what}: {limit} is {most}", hint=hint
    )


_SPACE = "free some of the disk, or of the user's share of it"
_REMEDIES = {
    errno.EMFILE: "close what is not used, or raise the limit of files (ulimit -n)",
    errno.ENFILE: "raise the limit of files of the whole system (sysctl fs.file-max)",
    errno.ENOMEM: "free memory, or raise the limit of it (ulimit -v, cgroups)",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
}
"""What to do about what has run out, and may be there again, by the system's number."""

_OF_MEMORY = (resource.RLIMIT_AS, resource.RLIMIT_DATA)


def shortage_of(error: BaseException) -> int | None:
    """Return the system's number for what has run out, if that is what was raised."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _REMEDIES else None
    if isinstance(error, ImportError | OSError):  # the linker's errors are words alone
        words = str(error)
        return next((each for each in _REMEDIES if os.strerror(each) in words), None)
    return None


def failure_of(
    error: BaseException, what: str = "", wanted_bytes: int = 0
) -> AsyncnnError:
    """Return the member of the family that any exception amounts to.

    If the system has run out of something, it is RESOURCE_EXHAUSTED_TRANSIENT, or
    RESOURCE_EXHAUSTED_PERSISTENT for more memory than there can be. What nobody
    expected is GENERAL_FAILURE. ``what`` has failed, if the message is to begin so, and
    has wanted so many bytes, if that is known.
    """
    if isinstance(error, AsyncnnError):
        return error
    start = f"{what}: " if what else ""
    code = shortage_of(error)
    if code is not None:
        kind: type[AsyncnnError] = ResourceExhaustedTransientError
        words = getattr(error, "strerror", None) or str(error) or os.strerror(code)
        wanted_bytes = wanted_bytes or getattr(error, "_total_size", 0)  # NumPy's
        if code == errno.ENOMEM and wanted_bytes > all_memory_bytes():
            kind = ResourceExhaustedPersistentError
        return kind(f"{start}{words}", hint=_REMEDIES[code])
    try:
        reason = str(error)
    except Exception:  # it is a stranger's
        reason = "it cannot be described"
    return GeneralFailureError(f"{start}{type(error).__name__}: {reason}")


def all_memory_bytes(most_bytes: int | None = None) -> int:
    """Return ``most_bytes``, or what a process can have, however long it waits."""
    if most_bytes:
        return most_bytes
    limits = [resource.getrlimit(kind)[0] for kind in _OF_MEMORY]
    given = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(*given, machine_bytes, group_memory_bytes()))


@cache
def group_memory_bytes(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float:
    """Return how many bytes the control groups of a process leave it; inf if all.

    A container is such a group, and sees those above its own at ``root`` only.
    """
    limits = [inf]
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in ("", "memory"):
                continue
            top = root / controllers
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            own = top / path.strip("/")
            for group in (own, *own.parents):
                with suppress(OSError, ValueError):  # "max", or another's
                    limits.append(int((group / name).read_text()))
                if group == top:
                    break
    return min(limits)


def check_memory(needed_bytes: int, most_bytes: int | None) -> None:
    """Check that a run may have ``needed_bytes`` of memory of its own at a time.

    ``most_bytes`` are `DeviceSettings.max_run_bytes`.

    :raises ResourceExhaustedPersistentError: if not.
    """
    most = needed_bytes and all_memory_bytes(most_bytes)
    if needed_bytes > most:
        limit = (
            "DeviceSettings.max_run_bytes is" if most_bytes else "a process can have"
        )
        raise ResourceExhaustedPersistentError(
            f"temporaries take {needed_bytes} bytes at a time: {limit} {most}"
        )


_WAITED_IN_VAIN = "what it waited for failed: "


def closed_error() -> DeviceClosedError:
    """Return the error for a device that this application has closed."""
    return DeviceClosedError("the device is closed")


def waited_in_vain(reason: str) -> GeneralFailureError:
    """Return the error of an execution that waited for what failed for ``reason``.

    The root of a chain's failure is named once, however long the chain.
    """
    if not reason.startswith(_WAITED_IN_VAIN):
        reason = _WAITED_IN_VAIN + reason
    return GeneralFailureError(reason)


def check_least(settings: object, least: float, *names: str) -> None:
    """Check attributes of settings, of which those that are None are left open.

    :raises InvalidArgumentError: if one is less than ``least``.
    :raises WrongTypeError: if one is no number.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not isinstance(value, int | float):
            raise WrongTypeError(
                f"{type(settings).__name__}.{name} is a {type(value).__name__}",
                hint="it is a number",
            )
        if value is not None and not value >= least:
            raise InvalidArgumentError(
                f"{type(settings).__name__}.{name} is {value}",
                hint=f"it is {least:g} at least",
            )
