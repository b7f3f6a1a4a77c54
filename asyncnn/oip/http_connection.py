"""Connections of clients by HTTP, which are bounded, as is their patience."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_PACKET_BYTES, _FLUSH_S = 1 << 16, 0.001


class _OneWrite:
    """A transport that sends an answer's head with its body.

    Uvicorn writes them apart, and a client would wake up for each.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._parts = transport, bytearray()
        self._flushing: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        if len(data) > _PACKET_BYTES:  # a copy would take longer
            self.flush()
            self._transport.write(data)
            return
        if data and self._flushing is None:  # more may be long in coming
            loop = asyncio.get_running_loop()
            self._flushing = loop.call_later(_FLUSH_S, self.flush)
        self._parts += data

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
            self._transport.write(self._parts)
            self._parts = bytearray()  # the transport may keep what it was given

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class HttpConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """One of so many connections, who takes an answer within ``patience_s`` seconds.

    Where there are too many, one ends that has been without a request for longest.
    """

    _hanging_up: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, patience_s: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self._patience_s, self.since = patience_s, self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Have it be one of those there are, or end another."""
        super().connection_made(_OneWrite(transport))
        transport.set_write_buffer_limits(1)  # what is not taken counts, however little
        if len(self.connections) >= self.limit_concurrency:
            idle = (each for each in self.connections if each.is_idle)
            min(idle, key=lambda each: each.since).transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether no request has come, or the last one was answered."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return not (is_answering or self.transport.is_closing())

    def shutdown(self) -> None:
        """Answer what is under way, but for a request whose body has yet to come."""
        if not self.is_idle and self.cycle.more_body:
            self.transport.abort()
        super().shutdown()

    def pause_writing(self) -> None:
        """Give its client some time to take what is written."""
        super().pause_writing()
        self._hanging_up = self.loop.call_later(self._patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that its client has taken all."""
        super().resume_writing()
        self._stay()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for its client no more."""
        super().connection_lost(exc)
        self._stay()

    def _stay(self) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()

    def on_response_complete(self) -> None:
        """Send what there is of an answer."""
        self.transport.flush()
        super().on_response_complete()
