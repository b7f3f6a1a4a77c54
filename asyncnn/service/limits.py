"""What one connection, and one user, may use of a driver."""

import msgspec
from msgspec.structs import asdict

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Model


class ServiceLimits(msgspec.Struct, frozen=True):
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
    max_buffers: int = 1024
    max_pools: int = 1024
    max_pool_bytes: int = 4 * 2**30
    max_copied_bytes: int = 256 * 2**20
    max_descriptors: int = 2048
    max_mappings: int = 4096
    max_unread_bytes: int = 4 * 2**20
    max_greeting_s: float = 10.0

    def __post_init__(self) -> None:
        _check_limits(self)


class UserLimits(msgspec.Struct, frozen=True):
    """Bounds for all connections of one user together, whatever its processes.

    Beyond them a call gets RESOURCE_EXHAUSTED as beyond those of a connection; the
    names are the same.

    :raises InvalidArgumentError: if one is negative.
    """

    max_prepared_models: int = 1024
    max_executions: int = 2048
    max_fenced_executions: int = 65536
    max_bursts: int = 512
    max_buffers: int = 4096
    max_pools: int = 4096
    max_pool_bytes: int = 16 * 2**30

    def __post_init__(self) -> None:
        _check_limits(self)


def _check_limits(limits: ServiceLimits | UserLimits) -> None:
    for name, value in asdict(limits).items():
        if not value >= 0:
            raise InvalidArgumentError(f"{type(limits).__name__}.{name} is {value}")


LARGE_OPERATIONS = 50
"""Operations of a model that is worth a thread: fewer take less than a millisecond."""


def is_large(model: Model) -> bool:
    """Tell whether sending or checking ``model`` would keep an event loop for long."""
    return model.operation_count > LARGE_OPERATIONS
