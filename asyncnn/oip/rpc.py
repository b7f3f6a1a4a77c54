"""The protocol by gRPC: the service ``inference.GRPCInferenceService``.

A call that its client cancels stops computing at the next boundary. Its deadline, which
the header ``grpc-timeout`` has, is the run's.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NoReturn, TypeAlias

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, failure_of
from asyncnn.oip import calls
from asyncnn.oip.admission import (
    MAX_CALL_BYTES,
    Tokens,
    TooLargeError,
    UnauthorizedError,
    codes_of,
)
from asyncnn.oip.message_tensors import MessageRequest
from asyncnn.oip.messages import METHODS, SERVICE, message_class, pool_of
from asyncnn.oip.under_way import Admitted, Door, stopping

# They have no types, and type checkers no need to have them installed.
health: Any = import_module("grpc_health.v1.health")
health_pb2: Any = import_module("grpc_health.v1.health_pb2")
health_pb2_grpc: Any = import_module("grpc_health.v1.health_pb2_grpc")
reflection: Any = import_module("grpc_reflection.v1alpha.reflection")
reflection_pb2: Any = import_module("grpc_reflection.v1alpha.reflection_pb2")

logger = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Call: TypeAlias = Callable[[Door, Any], Awaitable[Mapping[str, Any]]]

_MOST_WORDS = 1000
"""Characters of an error: with too long metadata, clients see another one instead."""

STATUS_KEY = "asyncnn-status"
"""Metadata behind an answer that is an error: the HAL's status."""

MORE_CALLS = 64
"""Beside those for runs: for health, and streams that wait for requests.

So many more connections are there as well.
"""

_OPEN_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        f"/{SERVICE}/ServerLive",
        f"/{SERVICE}/ServerReady",
    }
)
"""What a client without a token may call."""

_REQUEST: Any = message_class("ModelInferRequest")
_PART: Any = message_class("ModelStreamInferResponse")


def _of_model(call: _Call, done: str) -> _Call:
    """Return a call of loading by the names that messages have for what it takes."""

    async def answer(door: Door, request: Any) -> Mapping[str, Any]:
        name = request.model_name or request.repository_name
        asked = SimpleNamespace(name=name, parameters=request.parameters)
        await call(door, asked)
        return {"model_name": name, done: True}

    return answer


_CALLS: Mapping[str, _Call] = {
    "ServerLive": calls.live,
    "ServerReady": calls.ready,
    "ModelReady": calls.model_ready,
    "ServerMetadata": calls.server,
    "ModelMetadata": calls.model,
    "ModelStatistics": calls.statistics,
    "RepositoryIndex": calls.index,
    "RepositoryModelLoad": _of_model(calls.load, "isLoaded"),
    "RepositoryModelUnload": _of_model(calls.unload, "isUnloaded"),
    "SystemSharedMemoryStatus": calls.regions,
    "SystemSharedMemoryRegister": calls.register,
    "SystemSharedMemoryUnregister": calls.unregister,
}


class RpcFace:
    """The methods of the service, which take bytes, for the door of a server.

    gRPC would log bytes that are no message, and answer UNKNOWN.
    """

    def __init__(self, door: Door) -> None:
        self._door = door
        self._idle: set[Context] = set()

    async def end_idle(self) -> None:
        """End the streams that wait for a request, which may never come."""
        for context in tuple(self._idle):
            with suppress(grpc.aio.BaseError):  # its client may have gone
                await _refuse(context, stopping())

    async def infer(
        self, data: bytes, context: Context, once_sent: Callable[..., object]
    ) -> Any:
        """Run a model, and return its outputs, whose bytes count until they are sent.

        :raises AsyncnnError: if that fails.
        """
        size = len(data)
        with Admitted(self._door, size) as under_way:
            message = _parsed(_REQUEST, data)
            asking = MessageRequest(message, size, context.time_remaining)
            named = message.model_name, message.model_version
            return await under_way.answer(*named, asking, once_sent)

    async def stream(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[Any]:
        """Run what comes, one after the other; an error does not end the stream."""
        self._idle.add(context)
        try:
            async for data in requests:
                self._idle.remove(context)
                with ExitStack() as sent:
                    try:
                        answer = await self.infer(data, context, sent.callback)
                        part = _PART(infer_response=answer)
                    except Exception as error:
                        part = _error_part(error, data)
                    yield part
                if self._door.is_closing:
                    await _refuse(context, stopping())
                self._idle.add(context)
        finally:
            self._idle.discard(context)

    def handler(self, name: str) -> "grpc.RpcMethodHandler[Any, Any]":
        """Return what answers calls of a method; errors by their codes."""
        takes, gives = map(message_class, METHODS[name])
        write, call = gives.SerializeToString, _CALLS.get(name)
        if gives is _PART:
            return grpc.stream_stream_rpc_method_handler(
                self.stream, response_serializer=write
            )

        async def answer(data: bytes, context: Context) -> Any:
            try:
                if call is None:
                    return await self.infer(data, context, context.add_done_callback)
                if len(data) > MAX_CALL_BYTES:
                    raise TooLargeError(
                        f"the request has more than {MAX_CALL_BYTES} bytes"
                    )
                found = await call(self._door, _parsed(takes, data))
                fields = gives.DESCRIPTOR.fields_by_name
                return gives(**{key: found[key] for key in found if key in fields})
            except AsyncnnError as error:
                refusal = error
            except Exception as error:
                logger.exception("%s failed", name)
                refusal = failure_of(error)
            return await _refuse(context, refusal)

        return grpc.unary_unary_rpc_method_handler(answer, response_serializer=write)


def _error_part(error: Exception, data: bytes) -> Any:
    """Return the part of a stream that reports an error of a request."""
    if not isinstance(error, AsyncnnError):
        logger.error("a request of a stream failed", exc_info=error)
    named = {}
    with suppress(InvalidArgumentError):
        named["id"] = _parsed(_REQUEST, data).id
    return _PART(error_message=str(failure_of(error)), infer_response=named)


async def _refuse(context: Context, error: AsyncnnError) -> NoReturn:
    code = getattr(grpc.StatusCode, codes_of(error).grpc)
    status = ((STATUS_KEY, error.status.name),)
    words = str(error)[:_MOST_WORDS]
    await context.abort(code, words, trailing_metadata=status)
    raise AssertionError("an aborted call raises")


def _parsed(kind: Any, data: bytes) -> Any:
    """Return the message of a kind that bytes are.

    :raises InvalidArgumentError: if they are none.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidArgumentError(
            f"the request is no {kind.DESCRIPTOR.name}"
        ) from None


class _TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets only calls with a token pass, but for those that ask for health."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if details.method not in _OPEN_METHODS:
            given = dict(details.invocation_metadata).get("authorization", "")
            try:
                self._tokens.check(os.fsencode(given))
            except UnauthorizedError as error:
                refusal = error

                async def refuse(_: Any, context: Context) -> None:
                    await _refuse(context, refusal)

                # Of a call without streams gRPC would receive the message first.
                return grpc.stream_stream_rpc_method_handler(refuse)
        return await continuation(details)


async def rpc_server(door: Door, tokens: Tokens) -> "grpc.aio.Server":
    """Return a server of the service, of health and of reflection."""
    face, limits = RpcFace(door), door.repository.limits
    handlers = {name: face.handler(name) for name in METHODS}
    most = limits.max_requests + MORE_CALLS
    server = grpc.aio.server(
        interceptors=(_TokenInterceptor(tokens),) if tokens else (),
        maximum_concurrent_rpcs=most,
        options=(
            ("grpc.max_allowed_incoming_connections", most),
            ("grpc.max_receive_message_length", limits.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.server_handshake_timeout_ms", int(limits.body_s * 1000)),
            # Another server at the same port would get some of the calls.
            ("grpc.so_reuseport", 0),
        ),
    )
    service = grpc.method_handlers_generic_handler(SERVICE, handlers)
    server.add_generic_rpc_handlers((service,))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    names = SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    known = [health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR]
    pool = pool_of(each.serialized_pb for each in known)
    reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server, pool)
    for name in ("", SERVICE):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop() -> None:
        await servicer.enter_graceful_shutdown()
        await face.end_idle()

    door.stop = stop
    return server
