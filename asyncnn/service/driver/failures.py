"""What a client is told of errors, what it is not, and what the operator reads."""

import logging
import re
import traceback
from collections.abc import Hashable

from asyncnn.callbacks import CallbackObject
from asyncnn.errors import (
    AsyncnnError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
    error_for,
    failure_of,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import calling_client
from asyncnn.sparse_log import SparseLogger

logger = logging.getLogger(__name__)
log = SparseLogger(logger)  # one for all clients, who come and go

_SETTING = re.compile(r"\b\w+\.max_\w+|ulimit -n")
NO_DESCRIPTOR = "the driver has no descriptor left: its limit of open files (ulimit -n)"

_REFUSALS = ResourceExhaustedTransientError, ResourceExhaustedPersistentError


def explained(error: Exception) -> AsyncnnError:
    """Return the error to tell the calling client of.

    What it was refused for want of room is logged, and what nobody expected.
    """
    if isinstance(error, _REFUSALS):
        warn_of_refusal(calling_client.get().name, error)
    if isinstance(error, AsyncnnError):
        return error
    name = calling_client.get().name
    log.log(
        logging.ERROR, "a call of %s failed", name, error=error, kind=_place_of(error)
    )
    return failure_of(error)


def warn_of_refusal(client: str, error: AsyncnnError) -> None:
    """Log that ``client`` is refused for want of room; the error says which."""
    found = _SETTING.search(str(error))
    setting = found and found.group()
    log.log(
        logging.WARNING,
        "a call of %s is refused: %s",
        client,
        str(error),  # its traceback would keep what frames refer to
        kind=(_place_of(error), setting),  # one for each limit
        client=client,
        setting=setting,
    )


def warn_if_refused(client: str, callback: CallbackObject, status: ErrorStatus) -> None:
    """Log if a device has refused a call of ``client`` for want of room."""
    is_refusal = status in (refusal.status for refusal in _REFUSALS)
    if is_refusal and not callback.is_dead:  # one that was cancelled ends likewise
        warn_of_refusal(client, error_for(status, callback.reason))


def kill(callback: CallbackObject) -> None:
    """Let a callback die, whatever a device makes of it."""
    try:
        callback.die()
    except Exception as error:
        log.log(logging.ERROR, "a call could not be cancelled", error=error)


def _place_of(error: Exception) -> Hashable:
    """Return where an error was raised."""
    place: Hashable = type(error).__name__
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = frame.f_code, line
    return place
