"""Requests for runs and their answers, as JSON with tensors as bytes behind it."""

from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from starlette.responses import Response

from asyncnn.execution import Outputs
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.oip.client_regions import Placement
from asyncnn.oip.datatypes import datatype_of, declared, from_bytes, from_json
from asyncnn.oip.repository import ServedModel

HEADER_LENGTH = "Inference-Header-Content-Length"

_MOST_OF_SHAPE = 1 << 10
"""Characters, of which no shape of any array has as many."""

_MOST_QUOTES = 1 << 16
"""In JSON, whose data are numbers: names and texts take many times their bytes."""

T = TypeVar("T")

_Parameters: TypeAlias = dict[str, str | int | float | bool | None]
_Shape: TypeAlias = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "integer"}}),
]


class InputTensor(msgspec.Struct):
    """An input of a request; its data are numbers, or bytes that come later."""

    name: str
    shape: _Shape
    datatype: str
    parameters: _Parameters = {}
    data: msgspec.Raw = msgspec.field(default_factory=partial(msgspec.Raw, b"null"))


class AskedOutput(msgspec.Struct):
    """An output that a request asks for."""

    name: str
    parameters: _Parameters = {}


class InferRequest(msgspec.Struct):
    """A request for a run; without ``outputs`` it asks for all."""

    inputs: list[InputTensor]
    id: str = ""
    parameters: _Parameters = {}
    outputs: list[AskedOutput] = []


class Read(NamedTuple):
    """A request for a run, read: arrays by input, and what is to come back."""

    asked: InferRequest
    arrays: dict[str, Array]


_infer_decoder = msgspec.json.Decoder(InferRequest)
_shape_decoder = msgspec.json.Decoder(list[int])
encode = msgspec.json.Encoder().encode


def read_request(
    body: bytes, header_length: str | None, served: ServedModel, placement: Placement
) -> Read:
    """Return what the body of a request for a model says.

    :raises InvalidArgumentError: if it is none, or does not fit the model.
    """
    length = len(body)
    if header_length is not None:
        if not 0 <= (given := number_of(header_length)) <= length:
            raise InvalidArgumentError(
                f"{HEADER_LENGTH} is {header_length[:20]!r} of {length} bytes"
            )
        length = given
    if body.count(b'"', 0, length) > _MOST_QUOTES:
        raise InvalidArgumentError(
            f"the request's JSON has more than {_MOST_QUOTES // 2} names and texts"
        )
    view = memoryview(body)
    asked = decoded(_infer_decoder, view[:length])
    arrays: dict[str, Array] = {}
    for tensor in asked.inputs:
        name, shape_text = tensor.name, memoryview(tensor.shape)
        if len(shape_text) > _MOST_OF_SHAPE:
            raise InvalidArgumentError(f"input {name!r} cannot have that shape"[:200])
        shape = decoded(_shape_decoder, shape_text)
        dtype = declared(served.inputs, name, tensor.datatype, shape)
        if name in arrays or name in placement.inputs:
            raise InvalidArgumentError(f"input {name!r} is given twice")
        if placement.input(tensor.parameters, name, dtype, shape):
            continue
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            arrays[name] = from_json(
                served.inputs[name], dtype, shape, bytes(tensor.data)
            )
            continue
        if type(size) is not int or not 0 <= size <= len(body) - length:
            raise InvalidArgumentError(
                f"input {name!r} has binary_data_size {size!r}"[:200],
                hint=f"{len(body) - length} bytes follow",
            )
        if bytes(tensor.data) != b"null":
            raise InvalidArgumentError(f"input {name!r} has data both ways")
        arrays[name] = from_bytes(name, dtype, shape, view[length : length + size])
        length += size
    if length < len(body):
        raise InvalidArgumentError(
            f"{len(body) - length} bytes follow that are of no input",
            hint=f"{HEADER_LENGTH} and binary_data_size say whose they are",
        )
    served.check_outputs(output.name for output in asked.outputs)
    for output in asked.outputs:
        placement.output(output.parameters, output.name)
    return Read(asked, arrays)


def number_of(header: str) -> int:
    """Return the length that a header says; -1 if it is none."""
    is_number = header.isascii() and header.isdecimal() and len(header) < 20
    return int(header) if is_number else -1


def decoded(decoder: "msgspec.json.Decoder[T]", body: bytes | memoryview) -> T:
    """Return what JSON says.

    :raises InvalidArgumentError: if it says anything else.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"the request is not the protocol's JSON: {error}"
        ) from None


def write_answer(
    served: ServedModel, asked: InferRequest, outputs: Outputs, placement: Placement
) -> Response:
    """Return the answer to a request; outputs are numbers, or bytes if it asks so."""
    is_binary = asked.parameters.get("binary_data_output") is True
    wanted = asked.outputs or [AskedOutput(name) for name in outputs]
    tensors, blobs = [], []
    for output in wanted:
        array = outputs[output.name]
        tensor: dict[str, Any] = {
            "name": output.name,
            "datatype": datatype_of(array),
            "shape": array.shape,
        }
        if output.name in placement.outputs:
            tensor["parameters"] = placement.outputs[output.name].parameters
        elif output.parameters.get("binary_data", is_binary) is True:
            tensor["parameters"] = {"binary_data_size": array.nbytes}
            blobs.append(array.tobytes())
        else:
            tensor["data"] = array.ravel().tolist()
        tensors.append(tensor)
    told = {"model_name": served.name, "model_version": served.version}
    if asked.id:
        told["id"] = asked.id
    header = encode({**told, "outputs": tensors})
    if not blobs:
        return json_answer(header)
    return Response(
        b"".join([header, *blobs]),
        headers={HEADER_LENGTH: str(len(header))},
        media_type="application/octet-stream",
    )


def json_answer(body: bytes, status: int = 200) -> Response:
    """Return an answer of JSON."""
    return Response(body, status, media_type="application/json")
