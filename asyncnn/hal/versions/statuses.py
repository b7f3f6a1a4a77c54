"""Statuses for callers that do not know those of HAL 1.3."""

from asyncnn.hal.types import ErrorStatus, HalVersion

_LAST_OF_1_0 = ErrorStatus.INVALID_ARGUMENT


def is_compliant_status(status: ErrorStatus, version: HalVersion) -> bool:
    """Tell whether ``version`` has this status."""
    return version >= HalVersion.V1_3 or status <= _LAST_OF_1_0


def convert_status(status: ErrorStatus, version: HalVersion) -> ErrorStatus:
    """Return the status that stands for ``status`` in ``version``.

    Before HAL 1.3 missed deadlines and exhausted resources are GENERAL_FAILURE.
    """
    if is_compliant_status(status, version):
        return status
    return ErrorStatus.GENERAL_FAILURE
