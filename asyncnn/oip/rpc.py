"""The protocol by gRPC: the service ``inference.GRPCInferenceService``.

A call that its client cancels stops computing at the next boundary. Its deadline, which
the header ``grpc-timeout`` has, is the run's.
"""

import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from asyncnn.execution import Outputs
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, failure_of
from asyncnn.hal.operations.bound import Array
from asyncnn.offload import offload
from asyncnn.oip import describing
from asyncnn.oip.admission import (
    AS_USUAL,
    MAX_CALL_BYTES,
    RUN_PARAMETERS,
    Tokens,
    TooLargeError,
    UnauthorizedError,
    asked_run,
    codes_of,
    refuse_parameters,
)
from asyncnn.oip.client_regions import PLACE_PARAMETERS, Placement
from asyncnn.oip.datatypes import datatype_of, declared, from_bytes, from_numbers
from asyncnn.oip.messages import METHODS, SERVICE, Method, message_class, pool_of
from asyncnn.oip.repository import ServedModel
from asyncnn.oip.under_way import Admitted, Door, stopping

# They have no types, and type checkers no need to have them installed.
health: Any = import_module("grpc_health.v1.health")
health_pb2: Any = import_module("grpc_health.v1.health_pb2")
health_pb2_grpc: Any = import_module("grpc_health.v1.health_pb2_grpc")
reflection: Any = import_module("grpc_reflection.v1alpha.reflection")
reflection_pb2: Any = import_module("grpc_reflection.v1alpha.reflection_pb2")

logger = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Fields: TypeAlias = Mapping[str, Any]

_SHORT_BYTES, _MANY_BYTES = 1 << 15, 1 << 20
"""Elements, and bytes, of which so many are read or written in a moment."""

_MOST_TOLD = 1000
"""Characters of an error: with too long metadata, clients see another one instead."""

STATUS_KEY = "asyncnn-status"
"""Metadata behind an answer that is an error: the HAL's status."""

_MORE_CALLS = 64
"""Beside those for runs: for health, and streams that wait for requests."""

_OPEN_METHODS = frozenset(
    {
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        f"/{SERVICE}/ServerLive",
        f"/{SERVICE}/ServerReady",
    }
)
"""What a client without a token may call."""

_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{f"{kind}64": f"{kind.lower()}64_contents" for kind in ("INT", "UINT", "FP")},
    "FP32": "fp32_contents",
}
"""The field that has elements of a datatype, where they are not bytes."""

_MESSAGES: Mapping[str, Any] = {
    name: message_class(name)
    for method in METHODS
    for name in (method.request, method.response)
}
_REQUEST: Any = _MESSAGES["ModelInferRequest"]
_ANSWER: Any = _MESSAGES["ModelInferResponse"]
_PART: Any = _MESSAGES["ModelStreamInferResponse"]


def plain(parameters: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those parameters of a message that have names, as JSON would have them."""
    found = {}
    for name in names:
        if name in parameters:
            kind = parameters[name].WhichOneof("parameter_choice")
            found[name] = None if kind is None else getattr(parameters[name], kind)
    return found


def read_inputs(
    served: ServedModel, request: Any, placement: Placement
) -> dict[str, Array]:
    """Return the arrays of a request, which has them as bytes or as elements.

    :raises InvalidArgumentError: if they do not fit the model, or are both.
    """
    raw = request.raw_input_contents
    blobs = iter(raw)
    arrays: dict[str, Array] = {}
    for tensor in request.inputs:
        name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
        dtype = declared(served.inputs, name, datatype, shape)
        if name in arrays or name in placement.inputs:
            raise InvalidArgumentError(f"input {name!r} is given twice")
        if tensor.parameters:
            place = plain(tensor.parameters, PLACE_PARAMETERS)
            if placement.input(place, name, dtype, shape):
                continue
        if not raw:
            field = _CONTENTS.get(datatype)
            if field is None:
                raise InvalidArgumentError(
                    f"input {name!r}: {datatype} is sent in raw_input_contents"
                )
            elements = np.array(getattr(tensor.contents, field))
            arrays[name] = from_numbers(name, dtype, shape, elements)
        elif tensor.HasField("contents"):
            raise InvalidArgumentError(f"input {name!r} has data both ways")
        else:
            blob = next(blobs, None)
            if blob is None:
                raise InvalidArgumentError(f"input {name!r} has no raw_input_contents")
            arrays[name] = from_bytes(name, dtype, shape, blob)
    if next(blobs, None) is not None:
        raise InvalidArgumentError(
            f"{len(raw)} raw_input_contents are more than there are inputs for"
        )
    served.check_outputs(output.name for output in request.outputs)
    for output in request.outputs:
        if output.parameters:
            place = plain(output.parameters, PLACE_PARAMETERS)
            placement.output(place, output.name)
    return arrays


def write_outputs(
    served: ServedModel, request: Any, outputs: Outputs, placement: Placement
) -> Any:
    """Return the answer to a request; outputs are bytes, in the order asked for."""
    names = [output.name for output in request.outputs] or outputs
    answer = _ANSWER(
        model_name=served.name, model_version=served.version, id=request.id
    )
    for name in names:
        array = outputs[name]
        datatype = datatype_of(array)
        told = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
        span = placement.outputs.get(name)
        if span is None:
            answer.raw_output_contents.append(array.tobytes())
            continue
        for key, value in span.parameters.items():
            kind = "string_param" if isinstance(value, str) else "int64_param"
            setattr(told.parameters[key], kind, value)
    return answer


class RpcFace:
    """The methods of the service, for the models of a repository.

    Each returns its answer, or the fields of it.
    """

    def __init__(self, door: Door) -> None:
        self._door, self._repository = door, door.repository

    async def server_live(self, _: Any, __: Context) -> _Fields:
        """Answer that the server is there."""
        return {"live": True}

    async def server_ready(self, _: Any, __: Context) -> _Fields:
        """Answer whether the device can be reached."""
        return {"ready": self._door.is_ready}

    async def model_ready(self, request: Any, _: Context) -> _Fields:
        """Answer whether a model can be run."""
        served = self._repository.find(request.name, request.version)
        return {"ready": served.ready and self._door.is_ready}

    async def server_metadata(self, _: Any, __: Context) -> _Fields:
        """Answer what the server is."""
        return describing.server_metadata(has_regions=self._repository.regions.is_open)

    async def model_metadata(self, request: Any, _: Context) -> _Fields:
        """Answer what a model takes and returns."""
        served = self._repository.usable(request.name, request.version)
        return describing.model_metadata(self._repository, served)

    async def model_statistics(self, request: Any, _: Context) -> _Fields:
        """Answer how often models were run."""
        named = request.name, request.version
        return describing.statistics(self._repository, *named)

    async def repository_index(self, request: Any, _: Context) -> _Fields:
        """Answer which models there are."""
        return {"models": describing.index(self._repository, ready=request.ready)}

    async def repository_model_load(self, request: Any, _: Context) -> _Fields:
        """Load a model from the file that the server was started with."""
        refuse_parameters(request.parameters)
        name = request.model_name or request.repository_name
        await self._repository.load(name)
        return {"model_name": name, "isLoaded": True}

    async def repository_model_unload(self, request: Any, _: Context) -> _Fields:
        """Let go of a model."""
        name = request.model_name or request.repository_name
        self._repository.unload(name)
        return {"model_name": name, "isUnloaded": True}

    async def system_shared_memory_status(self, request: Any, _: Context) -> _Fields:
        """Answer which regions there are."""
        records = self._repository.regions.records(request.name)
        return {"regions": {each["name"]: each for each in records}}

    async def system_shared_memory_register(self, request: Any, _: Context) -> _Fields:
        """Know a region of shared memory."""
        span = request.key, request.offset, request.byte_size
        self._repository.regions.register(request.name, *span)
        return {}

    async def system_shared_memory_unregister(
        self, request: Any, _: Context
    ) -> _Fields:
        """Forget a region of shared memory, or all."""
        self._repository.regions.unregister(request.name)
        return {}

    async def model_infer(self, data: bytes, context: Context) -> Any:
        """Run a model, and answer with its outputs."""
        repository, size = self._repository, len(data)
        with Admitted(self._door, size) as under_way:
            request = _parsed(_REQUEST, data)
            named = request.model_name, request.model_version
            served = under_way.served = repository.usable(*named)
            placement = Placement(repository.regions)
            if size <= _SHORT_BYTES or request.raw_input_contents:
                arrays = read_inputs(served, request, placement)
            else:
                arrays = await offload(read_inputs, served, request, placement)
            wanted, left = AS_USUAL, context.time_remaining()
            if request.parameters or left is not None:
                wanted = asked_run(plain(request.parameters, RUN_PARAMETERS), left)
            running = arrays, placement, wanted, request.outputs
            outputs = await under_way.run(*running)
            answering = served, request, outputs, placement
            if sum([each.nbytes for each in outputs.values()]) <= _MANY_BYTES:
                return write_outputs(*answering)
            return await offload(write_outputs, *answering)

    async def model_stream_infer(
        self, requests: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[Any]:
        """Run what comes, one after the other; an error does not end the stream."""
        async for data in requests:
            try:
                yield _PART(infer_response=await self.model_infer(data, context))
            except Exception as error:
                if not isinstance(error, AsyncnnError):
                    logger.exception("a request of a stream failed")
                told, named = str(failure_of(error)), {}
                with suppress(InvalidArgumentError):
                    named["id"] = _parsed(_REQUEST, data).id
                yield _PART(error_message=told, infer_response=named)
            if self._door.is_closing:
                await _refuse(context, stopping())


async def _refuse(context: Context, error: AsyncnnError) -> NoReturn:
    code = getattr(grpc.StatusCode, codes_of(error).grpc)
    status = ((STATUS_KEY, error.status.name),)
    told = str(error)[:_MOST_TOLD]
    await context.abort(code, told, trailing_metadata=status)
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


def _answering(
    method: Callable[[Any, Context], Awaitable[Any]], takes: Any, kind: Any
) -> Callable[[bytes, Context], Awaitable[Any]]:
    """Return a method that answers by messages of a kind, errors by their codes.

    It takes bytes: gRPC would log those that are no message, and tell UNKNOWN.
    """

    async def answer(data: bytes, context: Context) -> Any:
        try:
            request: Any = data
            if takes is not _REQUEST:
                if len(data) > MAX_CALL_BYTES:
                    raise TooLargeError(
                        f"the request has more than {MAX_CALL_BYTES} bytes"
                    )
                request = _parsed(takes, data)
            told = await method(request, context)
            return told if isinstance(told, kind) else kind(**told)
        except AsyncnnError as error:
            refusal = error
        except Exception as error:
            logger.exception("%s failed", kind.__name__)
            refusal = failure_of(error)
        return await _refuse(context, refusal)

    return answer


def _handler(face: RpcFace, method: Method) -> "grpc.RpcMethodHandler[Any, Any]":
    request, response = _MESSAGES[method.request], _MESSAGES[method.response]
    call = getattr(face, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower())
    write = response.SerializeToString
    if method.is_stream:
        return grpc.stream_stream_rpc_method_handler(call, response_serializer=write)
    answer = _answering(call, request, response)
    return grpc.unary_unary_rpc_method_handler(answer, response_serializer=write)


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
    handlers = {method.name: _handler(face, method) for method in METHODS}
    server = grpc.aio.server(
        interceptors=(_TokenInterceptor(tokens),) if tokens else (),
        maximum_concurrent_rpcs=limits.max_requests + _MORE_CALLS,
        options=(
            ("grpc.max_receive_message_length", limits.max_request_bytes),
            ("grpc.max_send_message_length", -1),
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
    door.tell = servicer.enter_graceful_shutdown
    return server
