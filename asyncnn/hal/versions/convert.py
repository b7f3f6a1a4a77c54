"""Whatever has a version, in that of another."""

import logging
from typing import TypeAlias, overload

from asyncnn.hal.types import Capabilities, ErrorStatus, HalVersion, Model, Request
from asyncnn.hal.versions import v1_0, v1_1, v1_2
from asyncnn.hal.versions.capabilities import (
    AnyCapabilities,
    convert_capabilities,
    is_compliant_capabilities,
)
from asyncnn.hal.versions.models import AnyModel, convert_model, is_compliant_model
from asyncnn.hal.versions.requests import (
    AnyRequest,
    convert_request,
    is_compliant_request,
)
from asyncnn.hal.versions.statuses import convert_status, is_compliant_status

logger = logging.getLogger(__name__)

Versioned: TypeAlias = AnyModel | AnyRequest | AnyCapabilities | ErrorStatus
"""What differs between versions. Everything else is the same wherever it exists."""

_MODELS = (Model, v1_2.Model, v1_1.Model, v1_0.Model)
_REQUESTS = (Request, v1_0.Request)
_CAPABILITIES = (
    Capabilities,
    v1_2.Capabilities,
    v1_1.Capabilities,
    v1_0.Capabilities,
)


def compliant_with(value: Versioned, version: HalVersion) -> bool:
    """Tell whether ``version`` can express a valid ``value`` without loss."""
    if isinstance(value, ErrorStatus):
        return is_compliant_status(value, version)
    if isinstance(value, _MODELS):
        return is_compliant_model(value, version)
    if isinstance(value, _REQUESTS):
        return is_compliant_request(value, version)
    return is_compliant_capabilities(value, version)


@overload
def convert_to(value: ErrorStatus, version: HalVersion) -> ErrorStatus: ...
@overload
def convert_to(value: AnyModel, version: HalVersion) -> AnyModel: ...
@overload
def convert_to(value: AnyRequest, version: HalVersion) -> AnyRequest: ...
@overload
def convert_to(value: AnyCapabilities, version: HalVersion) -> AnyCapabilities: ...
def convert_to(value: Versioned, version: HalVersion) -> Versioned:
    """Return ``value`` in the shape of ``version``; what gets lost is logged.

    :raises InvalidArgumentError: for a request to an older version that names a buffer
        of the device.
    """
    if not compliant_with(value, version):
        logger.warning(
            "%s loses something on its way to %s", type(value).__name__, version.name
        )
    if isinstance(value, ErrorStatus):
        return convert_status(value, version)
    if isinstance(value, _MODELS):
        return convert_model(value, version)
    if isinstance(value, _REQUESTS):
        return convert_request(value, version)
    return convert_capabilities(value, version)
