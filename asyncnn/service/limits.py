"""What one client may use of a driver."""

import msgspec


class ServiceLimits(msgspec.Struct, frozen=True):
    """Bounds for each connection; beyond them a call gets RESOURCE_EXHAUSTED.

    Each pool costs a file descriptor, and so does each fence of another owner. A client
    that breaks the protocol, sends a larger message, or lets more than
    ``max_unread_bytes`` of answers pile up is disconnected.
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
    max_unread_bytes: int = 4 * 2**20
