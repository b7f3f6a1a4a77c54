"""Why a device in another process takes no work any more.

A cause makes a new error for each call: one that is raised again keeps the frames of
all calls that it was raised by.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from asyncnn.hal.errors import (
    DeviceClosedError,
    DeviceUnavailableError,
    DriverDiedError,
    NoDriverError,
)
from asyncnn.interpreter import inherited

Cause: TypeAlias = Callable[[], DeviceUnavailableError]

DEAD_OBJECT = "the driver has died (DEAD_OBJECT)"


def closed() -> DeviceUnavailableError:
    """Return the error for what this application has closed."""
    return DeviceClosedError("the device is closed")


def forked() -> DeviceUnavailableError:
    """Return the error for a device that a parent process has opened."""
    return inherited("the device")


def died(reason: str) -> Cause:
    """Return the cause of a driver's being lost, known in words."""
    return partial(DriverDiedError, f"{DEAD_OBJECT}: {reason}")


def given_up(reason: str) -> Cause:
    """Return the cause of there being no driver, and no hope for one."""
    return partial(NoDriverError, reason)
