"""Requests for runs and their answers, as messages of gRPC."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from asyncnn.execution import Outputs
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.oip.admission import RUN_PARAMETERS, AskedRun, asked_run
from asyncnn.oip.client_regions import PLACE_PARAMETERS, Placement
from asyncnn.oip.datatypes import (
    COPIED_BYTES,
    WRITTEN_BYTES,
    datatype_of,
    from_bytes,
    from_numbers,
)
from asyncnn.oip.messages import message_class
from asyncnn.oip.repository import ServedModel
from asyncnn.oip.under_way import ModelRequest

_CONTENTS: Mapping[str, str] = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{f"{kind}64": f"{kind.lower()}64_contents" for kind in ("INT", "UINT", "FP")},
    "FP32": "fp32_contents",
}
"""The field that has elements of a datatype, where they are not bytes."""

_ANSWER: Any = message_class("ModelInferResponse")


def plain(parameters: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those parameters of a message that have names, as JSON would have them."""
    found: dict[str, Any] = {}
    if not parameters:
        return found
    for name in names:
        if name in parameters:
            kind = parameters[name].WhichOneof("parameter_choice")
            found[name] = None if kind is None else getattr(parameters[name], kind)
    return found


class MessageRequest(ModelRequest[Any]):
    """A message of so many bytes; ``left`` gives the seconds that its client waits."""

    short_answer = COPIED_BYTES

    def __init__(
        self, message: Any, size: int, left: Callable[[], float | None]
    ) -> None:
        self._message, self._size, self._left = message, size, left

    @property
    def is_short(self) -> bool:
        """Whether there are few numbers in it: bytes are not copied."""
        return self._size <= WRITTEN_BYTES or bool(self._message.raw_input_contents)

    def read(self, placement: Placement) -> None:
        """Find its tensors, which it has as bytes or as elements."""
        raw = self._message.raw_input_contents
        blobs = iter(raw)
        for tensor in self._message.inputs:
            name, shape = tensor.name, tuple(tensor.shape)
            dtype = placement.declare(
                name, tensor.datatype, shape, plain(tensor.parameters, PLACE_PARAMETERS)
            )
            if dtype is None:
                continue
            if not raw:
                array = from_numbers(name, dtype, shape, _elements(tensor))
            elif tensor.HasField("contents"):
                raise InvalidArgumentError(f"input {name!r} has data both ways")
            else:
                blob = next(blobs, None)
                if blob is None:
                    raise InvalidArgumentError(
                        f"input {name!r} has no raw_input_contents"
                    )
                array = from_bytes(name, dtype, shape, blob)
            placement.arrays[name] = array
        if next(blobs, None) is not None:
            raise InvalidArgumentError(
                f"{len(raw)} raw_input_contents are more than there are inputs for"
            )
        for output in self._message.outputs:
            placement.ask(output.name, plain(output.parameters, PLACE_PARAMETERS))

    def wanted(self) -> AskedRun:
        """Return how its parameters, and the client's time, want it to be run."""
        parameters = plain(self._message.parameters, RUN_PARAMETERS)
        return asked_run(parameters, self._left())

    def write(self, served: ServedModel, outputs: Outputs, placement: Placement) -> Any:
        """Return the answer; outputs are bytes, in the order asked for."""
        answer = _ANSWER(
            model_name=served.name, model_version=served.version, id=self._message.id
        )
        for name in placement.asked or outputs:
            array = outputs[name]
            datatype = datatype_of(array)
            output = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
            span = placement.outputs.get(name)
            if span is None:
                answer.raw_output_contents.append(array.tobytes())
                continue
            for key, value in span.parameters.items():
                kind = "string_param" if isinstance(value, str) else "int64_param"
                setattr(output.parameters[key], kind, value)
        return answer


def _elements(tensor: Any) -> "np.ndarray[Any, Any]":
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidArgumentError(
            f"input {tensor.name!r}: {tensor.datatype} is sent in raw_input_contents"
        )
    return np.array(getattr(tensor.contents, field))
