"""The file that keeps what was measured until the library is installed anew."""

import logging
from pathlib import Path

import msgspec

from asyncnn.devices.capabilities.measurement import Measurement, Surroundings
from asyncnn.devices.capabilities.table import capabilities_of, reference_capabilities
from asyncnn.devices.state import private_draft, read_private, state_folder
from asyncnn.errors import GeneralFailureError
from asyncnn.hal.types import Capabilities

logger = logging.getLogger(__name__)

_MOST_BYTES = 2**14
_UNUSABLE = (OSError, RuntimeError, msgspec.DecodeError, UnicodeDecodeError)


def default_path() -> Path:
    """Return where the file lies unless it is configured.

    :raises RuntimeError: if there is no home.
    """
    return state_folder() / "capabilities.json"


def known_capabilities(path: str = "") -> Capabilities:
    """Return the capabilities that the file tells, or those of the CPU."""
    try:
        measurement = load_measurement(path)
    except GeneralFailureError as error:
        logger.warning("%s", error)
        measurement = None
    if measurement is None:
        return reference_capabilities()
    return capabilities_of(measurement.exec_times)


def load_measurement(path: str = "") -> Measurement | None:
    """Return what was measured here, None if nothing ever was.

    :raises GeneralFailureError: if the file cannot be used, and why.
    """
    try:
        file = _path(path)
        content = read_private(file, _MOST_BYTES)
        measurement = msgspec.json.decode(content, type=Measurement)
    except FileNotFoundError:
        return None
    except _UNUSABLE as error:
        raise GeneralFailureError(
            f"measured capabilities are not used: {error}"
        ) from error
    if measurement.surroundings != Surroundings.present():
        raise GeneralFailureError(
            f"capabilities measured with {measurement.surroundings} are not used",
            hint="measure again: asyncnn capabilities --measure",
        )
    return measurement


def store_measurement(measurement: Measurement, path: str = "") -> Path:
    """Keep a measurement for all devices that are opened from now on; say where.

    :raises GeneralFailureError: if the file cannot be written, or could not be used.
    """
    content = msgspec.json.format(msgspec.json.encode(measurement))
    try:
        msgspec.json.decode(content, type=Measurement)
        file = _path(path)
        with private_draft(file, content + b"\n") as draft:
            draft.replace(file)
    except (OSError, RuntimeError, msgspec.DecodeError) as error:
        raise GeneralFailureError(
            f"measured capabilities are not kept: {error}"
        ) from error
    return file


def _path(given: str) -> Path:
    return Path(given) if given else default_path()
