"""Requests in the shape of each version (1.0/types.hal, 1.3/types.hal)."""

from typing import TypeAlias

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import HalVersion, Memory, Request
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.versions import v1_0

AnyRequest: TypeAlias = Request | v1_0.Request


def is_compliant_request(request: AnyRequest, version: HalVersion) -> bool:
    """Tell whether ``version`` can express a valid request: its pools decide."""
    if version >= HalVersion.V1_3:
        return True
    try:
        for pool in request.pools:
            if not isinstance(pool, Memory):
                return False
            validate_memory(pool, version)
    except InvalidArgumentError:
        return False
    return True


def canonical_request(request: AnyRequest) -> Request:
    """Return the request in the newest shape."""
    if isinstance(request, Request):
        return request
    return Request(request.inputs, request.outputs, request.pools)


def convert_request(request: AnyRequest, version: HalVersion) -> AnyRequest:
    """Return the request in the shape of ``version``.

    :raises InvalidArgumentError: if it names a buffer of the device, for which no
        memory can stand in.
    """
    newest = canonical_request(request)
    if version >= HalVersion.V1_3:
        return newest
    pools = tuple(pool for pool in newest.pools if isinstance(pool, Memory))
    if len(pools) < len(newest.pools):
        raise InvalidArgumentError(f"{version.name} has no buffers of the device")
    return v1_0.Request(newest.inputs, newest.outputs, pools)
