"""Requests for runs and their answers, as JSON with tensors as bytes behind it."""

from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from starlette.responses import Response

from asyncnn.execution import Outputs
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.oip.admission import AskedRun, asked_run
from asyncnn.oip.client_regions import Placement
from asyncnn.oip.datatypes import WRITTEN_BYTES, datatype_of, from_bytes, from_json
from asyncnn.oip.repository import ServedModel
from asyncnn.oip.under_way import ModelRequest

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


_infer_decoder = msgspec.json.Decoder(InferRequest)
_shape_decoder = msgspec.json.Decoder(tuple[int, ...])
encode = msgspec.json.Encoder().encode


class JsonRequest(ModelRequest[Response]):
    """A request of JSON, of which a header may say how long it is."""

    short_answer = WRITTEN_BYTES

    def __init__(self, body: bytes, header_length: str | None) -> None:
        self._body, self._given = body, header_length
        self._length = len(body) if header_length is None else number_of(header_length)

    @property
    def is_short(self) -> bool:
        """Whether there are few numbers in it."""
        return self._length <= WRITTEN_BYTES

    def read(self, placement: Placement) -> None:
        """Find its tensors in JSON, and in the bytes behind it."""
        body, length = self._body, self._length
        if not 0 <= length <= len(body):
            raise InvalidArgumentError(
                f"{HEADER_LENGTH} is {(self._given or '')[:20]!r} of {len(body)} bytes"
            )
        if body.count(b'"', 0, length) > _MOST_QUOTES:
            raise InvalidArgumentError(
                f"the request's JSON has more than {_MOST_QUOTES // 2} names and texts"
            )
        view = memoryview(body)
        self._asked = decoded(_infer_decoder, view[:length])
        for tensor in self._asked.inputs:
            length += self._take(tensor, placement, view[length:])
        if length < len(body):
            raise InvalidArgumentError(
                f"{len(body) - length} bytes follow that are of no input",
                hint=f"{HEADER_LENGTH} and binary_data_size say whose they are",
            )
        for output in self._asked.outputs:
            placement.ask(output.name, output.parameters)

    def _take(self, tensor: InputTensor, placement: Placement, rest: memoryview) -> int:
        """Find one input, and return how many bytes of the rest it is."""
        name, text = tensor.name, memoryview(tensor.shape)
        if len(text) > _MOST_OF_SHAPE:
            raise InvalidArgumentError(f"input {name!r} cannot have that shape"[:200])
        shape = decoded(_shape_decoder, text)
        dtype = placement.declare(name, tensor.datatype, shape, tensor.parameters)
        if dtype is None:
            return 0
        size, data = tensor.parameters.get("binary_data_size"), bytes(tensor.data)
        if size is None:
            info = placement.takes[name]
            placement.arrays[name] = from_json(info, dtype, shape, data)
            return 0
        if type(size) is not int or not 0 <= size <= len(rest):
            raise InvalidArgumentError(
                f"input {name!r} has binary_data_size {size!r}"[:200],
                hint=f"{len(rest)} bytes follow",
            )
        if data != b"null":
            raise InvalidArgumentError(f"input {name!r} has data both ways")
        placement.arrays[name] = from_bytes(name, dtype, shape, rest[:size])
        return size

    def wanted(self) -> AskedRun:
        """Return how its parameters want it to be run."""
        return asked_run(self._asked.parameters)

    def write(
        self, served: ServedModel, outputs: Outputs, placement: Placement
    ) -> Response:
        """Return the answer; outputs are numbers, or bytes if it asks so."""
        is_binary = self._asked.parameters.get("binary_data_output") is True
        tensors, blobs = [], []
        for name in placement.asked or outputs:
            array, parameters = outputs[name], placement.asked.get(name, {})
            tensor: dict[str, Any] = {
                "name": name,
                "datatype": datatype_of(array),
                "shape": array.shape,
            }
            if name in placement.outputs:
                tensor["parameters"] = placement.outputs[name].parameters
            elif parameters.get("binary_data", is_binary) is True:
                tensor["parameters"] = {"binary_data_size": array.nbytes}
                blobs.append(array.tobytes())
            else:
                tensor["data"] = array.ravel().tolist()
            tensors.append(tensor)
        fields = {"model_name": served.name, "model_version": served.version}
        if self._asked.id:
            fields["id"] = self._asked.id
        header = encode({**fields, "outputs": tensors})
        if not blobs:
            return json_answer(header)
        return Response(
            b"".join([header, *blobs]),
            headers={HEADER_LENGTH: str(len(header))},
            media_type="application/octet-stream",
        )


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


def json_answer(body: bytes, status: int = 200) -> Response:
    """Return an answer of JSON."""
    return Response(body, status, media_type="application/json")
