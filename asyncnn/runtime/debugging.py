"""What the HAL's runtime has as properties for debugging."""

import os

from asyncnn.errors import InvalidArgumentError

SYNC_EXEC_VARIABLE = "ASYNCNN_SYNCEXEC_HAL"
"""Stands for the property ``debug.nn.syncexec-hal``."""


def sync_exec_hal(setting: bool | None) -> bool | None:
    """Return which HAL call is forced: the synchronous one, that with a callback, none.

    Without a setting the environment decides: any number but 0 forces the synchronous
    call, 0 the other.

    Source: DeviceManager of the HAL's runtime (setSyncExecHal and the property).

    :raises InvalidArgumentError: if the variable is set to anything but a number.
    """
    if setting is not None:
        return setting
    text = os.environ.get(SYNC_EXEC_VARIABLE, "").strip()
    if not text:
        return None
    try:
        return int(text) != 0
    except ValueError:
        raise InvalidArgumentError(
            f"{SYNC_EXEC_VARIABLE} is {text!r}",
            hint="1 forces synchronous execution, 0 execution with a callback",
        ) from None
