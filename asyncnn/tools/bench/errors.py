"""What keeps a peer from being measured."""

from asyncnn.hal.errors import AsyncnnError


class PeerMissingError(AsyncnnError):
    """A library that a benchmark compares with is not installed."""


class PeerRefusedError(AsyncnnError):
    """A peer cannot load or run a model."""
