"""Listens for clients of the protocol, for as long as a context lasts."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc  # type: ignore[import-untyped]
import uvicorn

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.memory.pages import os_errors
from asyncnn.oip.admission import Tokens
from asyncnn.oip.http_connection import HttpConnection
from asyncnn.oip.openapi import openapi_document
from asyncnn.oip.repository import Repository
from asyncnn.oip.rest import rest_application
from asyncnn.oip.rpc import MORE_CALLS, rpc_server
from asyncnn.oip.under_way import END_S, Door


class Address(NamedTuple):
    """Where to listen; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> "Address":
        """Return what ``HOST:PORT`` stands for; ``:PORT`` is of this machine alone.

        :raises InvalidArgumentError: if it is none.
        """
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise InvalidArgumentError(
                f"{text!r} is no address", hint="write it as :8000 or 0.0.0.0:8000"
            )
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Security(NamedTuple):
    """Files of a certificate with its chain, and its key; and the tokens to ask for."""

    certificate: Path | None = None
    key: Path | None = None
    tokens: Tokens = Tokens()

    def context(self) -> ssl.SSLContext | None:
        """Return what speaks TLS by both files, if it is to be spoken.

        :raises InvalidArgumentError: if it cannot.
        """
        if self.certificate is None and self.key is None:
            return None
        if self.certificate is None or self.key is None:
            raise InvalidArgumentError(
                "TLS needs a certificate and its key", hint="--tls-cert and --tls-key"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:  # without a password OpenSSL would ask for it at the terminal
            context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:
            raise InvalidArgumentError(
                f"no TLS can be had from {self.certificate} and {self.key}: {error}",
                hint="they are a chain of certificates and its key, without a password",
            ) from None
        return context


OPEN = Security()
_ACCEPT_AGAIN_S = 0.1


@asynccontextmanager
async def rest_served(
    repository: Repository, address: Address, security: Security = OPEN
) -> AsyncIterator[Address]:
    """Serve the models of a repository by HTTP; yield where.

    :raises InvalidArgumentError: if TLS cannot be had from the files.
    :raises GeneralFailureError: if the address is taken, or none of this machine.
    """
    context, limits = security.context(), repository.limits
    most = limits.max_requests + MORE_CALLS
    door, tokens = Door(repository), security.tokens
    document = openapi_document(has_tokens=bool(tokens))
    config = uvicorn.Config(
        rest_application(door, tokens, document),
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=most + 1,
        timeout_graceful_shutdown=END_S,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan, server.servers = config.lifespan_class(config), []
    made = partial(
        HttpConnection, config, server.server_state, {}, patience_s=limits.body_s
    )
    own: dict[str, Any] = {}
    if context is not None:
        own = {"ssl": context, "ssl_handshake_timeout": limits.body_s}

    async def shake(connection: socket.socket) -> None:
        with suppress(OSError):  # its peer speaks otherwise, or has gone
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(made, connection, **own)

    with closing(_bound(address, most)) as listener:
        # Not by its `serve`, which handles signals, and looks ten times a second
        # whether one has come; nor by its `startup`: nothing bounds handshakes there.
        await server.on_tick(0)
        ticking = asyncio.create_task(_ticking(server))
        accepting = asyncio.create_task(_accepting(listener, most, shake))
        try:
            yield Address(address.host, listener.getsockname()[1])
        finally:
            await door.close()
            ticking.cancel()
            accepting.cancel()
            await server.shutdown([listener])
            for each in tuple(server.server_state.connections):
                each.transport.abort()  # its client has not taken its answer


async def _ticking(server: uvicorn.Server) -> None:
    """Have the header Date be right."""
    while True:
        await asyncio.sleep(1)
        await server.on_tick(0)


async def _accepting(
    listener: socket.socket,
    most: int,
    shake: Callable[[socket.socket], Coroutine[Any, Any, None]],
) -> None:
    """Accept connections, of which the newest ``most`` may be shaking hands."""
    loop, shaking = asyncio.get_running_loop(), dict[asyncio.Task[None], None]()
    try:
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # most often there is no descriptor left
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            task = loop.create_task(shake(connection))
            shaking[task] = None
            task.add_done_callback(lambda ended: shaking.pop(ended, None))
            if len(shaking) > most:
                oldest = next(iter(shaking))
                del shaking[oldest]
                oldest.cancel()
            await asyncio.sleep(0)  # it begins, or its socket would be nobody's
    finally:
        for task in shaking:
            task.cancel()


@asynccontextmanager
async def rpc_served(
    repository: Repository, address: Address, security: Security = OPEN
) -> AsyncIterator[Address]:
    """Serve the models of a repository by gRPC; yield where.

    :raises InvalidArgumentError: if TLS cannot be had from the files.
    :raises GeneralFailureError: if the address is taken, or none of this machine.
    """
    security.context()
    door = Door(repository)
    server = await rpc_server(door, security.tokens)
    with os_errors(f"listening at {address}"):
        try:
            if security.certificate is None or security.key is None:
                port = server.add_insecure_port(str(address))
            else:
                pair = security.key.read_bytes(), security.certificate.read_bytes()
                credentials = grpc.ssl_server_credentials((pair,))
                port = server.add_secure_port(str(address), credentials)
        except RuntimeError as error:
            raise OSError(str(error)) from None
    await server.start()
    try:
        yield Address(address.host, port)
    finally:
        await door.close()
        await server.stop(END_S)


def _bound(address: Address, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with os_errors(f"listening at {address}"):
        listener = socket.create_server(address, family=family, backlog=backlog)
        # Connections inherit it; asyncio does not see to it for such a listener. A
        # body that is sent behind its head would wait for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setblocking(False)
        return listener
