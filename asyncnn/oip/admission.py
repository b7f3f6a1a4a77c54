"""What is let in: limits, tokens, parameters of requests; and codes of errors."""

import codecs
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
    too_many,
)
from asyncnn.hal.types import ErrorStatus, Priority


class OipLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What clients of the Open Inference Protocol may have.

    ``max_requests`` and ``max_bytes`` are of all requests under way, on both ports;
    more are refused, not queued, and one by HTTP has ``body_s`` seconds to come, as has
    its answer to be taken. Answers by gRPC that are not taken have ``max_bytes``, too.
    Each port has 64 connections more than requests.
    ``max_sequences`` are open at a time, and one that is idle for ``sequence_idle_s``
    seconds ends. ``max_regions`` of shared memory are known at a time.
    """

    max_requests: int = 256
    max_request_bytes: int = 64 << 20
    max_bytes: int = 512 << 20
    body_s: float = 30.0
    max_sequences: int = 256
    sequence_idle_s: float = 60.0
    max_regions: int = 256
    grace_s: float = 5.0


class UnknownNameError(InvalidArgumentError):
    """A request names a model, version or region that is not there."""


class UnauthorizedError(InvalidArgumentError):
    """A request brings no token that is known."""


class TooLargeError(ResourceExhaustedPersistentError):
    """A request has more bytes than any may have."""


class TooSlowError(InvalidArgumentError):
    """A request takes its room for longer than any may until it has come."""


class Codes(NamedTuple):
    """How an error is reported: the status of HTTP, and the name of gRPC's."""

    http: int
    grpc: str


_BY_CLASS = {
    UnknownNameError: Codes(404, "NOT_FOUND"),
    UnauthorizedError: Codes(401, "UNAUTHENTICATED"),
    TooLargeError: Codes(413, "RESOURCE_EXHAUSTED"),
    TooSlowError: Codes(408, "DEADLINE_EXCEEDED"),
}
_INTERNAL = Codes(500, "INTERNAL")
_BY_STATUS = {
    ErrorStatus.DEVICE_UNAVAILABLE: Codes(503, "UNAVAILABLE"),
    ErrorStatus.INVALID_ARGUMENT: Codes(400, "INVALID_ARGUMENT"),
    ErrorStatus.MISSED_DEADLINE_TRANSIENT: Codes(504, "DEADLINE_EXCEEDED"),
    ErrorStatus.MISSED_DEADLINE_PERSISTENT: Codes(504, "DEADLINE_EXCEEDED"),
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT: Codes(429, "RESOURCE_EXHAUSTED"),
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT: Codes(507, "RESOURCE_EXHAUSTED"),
}


def codes_of(error: AsyncnnError) -> Codes:
    """Return how an error is reported; GENERAL_FAILURE is an internal error."""
    own = _BY_CLASS.get(type(error))
    return own or _BY_STATUS.get(error.status, _INTERNAL)


class Admission:
    """Counts what is under way, and refuses what would be too much."""

    def __init__(self, limits: OipLimits) -> None:
        self.limits = limits
        self.requests = self.bytes = self.answer_bytes = 0

    def enter(self, size: int) -> None:
        """Let a request of so many bytes in, until `leave`.

        :raises TooLargeError: if none may have so many.
        :raises ResourceExhaustedTransientError: if too much is under way.
        """
        most = self.limits.max_requests
        if self.requests >= most:
            raise too_many("requests under way", "OipLimits.max_requests", most)
        self.grow(0, size)
        self.requests += 1

    def grow(self, before: int, size: int) -> None:
        """Let a request that has some bytes have so many more.

        :raises TooLargeError: if none may have so many.
        :raises ResourceExhaustedTransientError: if too much is under way.
        """
        limits = self.limits
        if before + size > limits.max_request_bytes:
            raise TooLargeError(
                f"the request has {before + size} bytes, and "
                f"OipLimits.max_request_bytes is {limits.max_request_bytes}"
            )
        if self.bytes + size > limits.max_bytes:
            most = limits.max_bytes
            raise too_many("bytes under way", "OipLimits.max_bytes", most)
        self.bytes += size

    def hold(self, size: int) -> None:
        """Let an answer have so many bytes until `release`.

        :raises ResourceExhaustedTransientError: if too many are on their way.
        """
        most = self.limits.max_bytes
        if self.answer_bytes + size > most:
            raise too_many("bytes of answers to take", "OipLimits.max_bytes", most)
        self.answer_bytes += size

    def release(self, size: int) -> None:
        """Give back what `hold` took."""
        self.answer_bytes -= size

    def leave(self, size: int) -> None:
        """Give back what `enter` took."""
        self.requests -= 1
        self.bytes -= size


class Tokens:
    """Bearer tokens, one of which a request has to bring; none if all are let in."""

    def __init__(self, tokens: tuple[bytes, ...] = ()) -> None:
        self._tokens = tokens

    @classmethod
    def read(cls, path: Path | None) -> "Tokens":
        """Return the tokens of a file, one a line; lines that begin with # are none.

        :raises InvalidArgumentError: if it has none.
        :raises OSError: if it cannot be read.
        """
        if path is None:
            return cls()
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        lines = map(bytes.strip, text.splitlines())
        tokens = tuple(line for line in lines if line and not line.startswith(b"#"))
        if not tokens:
            raise InvalidArgumentError(f"{path} has no token", hint="write one a line")
        return cls(tokens)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def check(self, authorization: bytes) -> None:
        """Check the header of a request; it takes as long whichever token it has.

        :raises UnauthorizedError: if it has none of these.
        """
        scheme, _, token = authorization.partition(b" ")
        matches = [hmac.compare_digest(token.strip(), each) for each in self._tokens]
        if scheme.lower() != b"bearer" or not any(matches):
            raise UnauthorizedError(
                "the request has no token that is known",
                hint="send the header 'Authorization: Bearer TOKEN'",
            )


class AskedRun(NamedTuple):
    """How a request is to be run: ``timeout`` in seconds, ``sequence`` by its id."""

    priority: Priority = Priority.MEDIUM
    timeout: float | None = None
    sequence: int | str = 0
    starts: bool = False
    ends: bool = False


AS_USUAL = AskedRun()
MAX_CHARACTERS = 256
"""Of what is kept: the id of a sequence, and the name of a region."""

MAX_CALL_BYTES = 1 << 16
"""Of requests that are not for a run."""

RUN_PARAMETERS = (
    *("priority", "timeout"),
    *("sequence_id", "sequence_start", "sequence_end"),
)
"""What `asked_run` looks for."""

_PRIORITIES: Mapping[int | str, Priority] = {
    **dict(enumerate((Priority.MEDIUM, Priority.HIGH, Priority.MEDIUM, Priority.LOW))),
    **{each.name: each for each in Priority},
}
"""By the protocol's numbers, of which 1 is the highest and 0 leaves it open."""


def asked_run(parameters: Mapping[str, Any], left: float | None = None) -> AskedRun:
    """Return what parameters of a request ask for; unknown ones are ignored.

    :param left: seconds until the client gives up, if it has said so.
    :raises InvalidArgumentError: if one has a value that it cannot have.
    """
    if not parameters and left is None:
        return AS_USUAL
    given = parameters.get("priority", 0)
    priority = None
    if isinstance(given, int | str) and not isinstance(given, bool):
        key = given.upper() if isinstance(given, str) else given
        priority = _PRIORITIES.get(key)
    if priority is None:
        raise _no_value("priority", given, "1 (HIGH), 2 (MEDIUM) or 3 (LOW)")
    timeout_us = parameters.get("timeout", 0)
    if type(timeout_us) not in (int, float) or not 0 <= timeout_us < 1 << 64:
        raise _no_value("timeout", timeout_us, "microseconds")
    sequence = parameters.get("sequence_id", 0)
    if type(sequence) not in (int, str) or len(str(sequence)) > MAX_CHARACTERS:
        raise _no_value("sequence_id", sequence, "a number or a short text")
    flags = [parameters.get(f"sequence_{name}", False) for name in ("start", "end")]
    if not all(isinstance(flag, bool) for flag in flags):
        raise _no_value("sequence_start or sequence_end", flags, "true or false")
    if timeout_us:
        seconds = timeout_us / 1e6
        left = seconds if left is None else min(left, seconds)
    return AskedRun(priority, left, sequence, *flags)


def _no_value(name: str, value: object, take: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the parameter {name} is {value!r}"[:200], hint=f"it is {take}"
    )
