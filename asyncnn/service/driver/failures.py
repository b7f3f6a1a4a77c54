"""What a client is told of a device's errors, and what it is not."""

import logging

from asyncnn.callbacks import CallbackObject
from asyncnn.errors import AsyncnnError, GeneralFailureError

logger = logging.getLogger(__name__)


def explained(error: Exception) -> AsyncnnError:
    """Return the error to tell a client of; what nobody expected is logged."""
    if isinstance(error, AsyncnnError):
        return error
    logger.error("a call failed", exc_info=error)
    return GeneralFailureError(f"{type(error).__name__}: {error}")


def kill(callback: CallbackObject) -> None:
    """Let a callback die, whatever a device makes of it."""
    try:
        callback.die()
    except Exception:
        logger.exception("a call could not be cancelled")
