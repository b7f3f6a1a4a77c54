"""Whether a call that was repeated has ended as it did, and what differs."""

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import size_of_data_bytes
from asyncnn.hal.types import Dimensions, ErrorStatus, Model, OutputShapes
from asyncnn.service.recording import RecordedCall, RecordedRequest
from asyncnn.tools.replay.pinning import MISSED


class CallOutcome(msgspec.Struct, frozen=True):
    """How a repeated call ended, in ns from its launch on.

    ``outputs`` are bytes of the arguments that lie in pools, None of others; those of
    a call are cut to what is written.
    """

    status: int
    took_ns: int
    reason: str = ""
    outputs: tuple[bytes | None, ...] = ()
    shapes: OutputShapes = ()


class CallDifference(msgspec.Struct, frozen=True):
    """What of call number ``call`` differs, in words."""

    call: int
    kind: str
    what: str
    recorded: str
    repeated: str


def status_name(status: int | None) -> str:
    """Return the name of a status."""
    if status is None:
        return "no end"
    try:
        return ErrorStatus(status).name
    except ValueError:
        return f"status {status}"


def differing_status(call: RecordedCall, outcome: CallOutcome) -> bool:
    """Tell whether a call that ended has ended with another status."""
    if call.status is None or call.status == outcome.status:
        return False
    return not (call.status in MISSED and outcome.status in MISSED)


def differing_output(
    call: RecordedCall, outcome: CallOutcome, request: RecordedRequest, model: Model
) -> tuple[int, str] | None:
    """Return the first output that differs, and how; None if none does."""
    for place, (old, new) in enumerate(
        zip(call.outputs, outcome.outputs, strict=False)
    ):
        if old is None or new is None:
            continue
        size = written_bytes(model, place, request, outcome.shapes)
        old, new = old[:size], new[:size]
        if old != new:
            count = sum(a != b for a, b in zip(old, new, strict=False))
            count += abs(len(old) - len(new))
            return place, f"{count} of {len(old)} bytes"
    return None


def written_bytes(
    model: Model, place: int, request: RecordedRequest, shapes: OutputShapes
) -> int:
    """Return how many bytes of an output an execution writes; 0 if that is unknown."""
    main = model.main
    if place >= len(main.output_indexes):
        return 0
    operand = main.operands[main.output_indexes[place]]
    dimensions: Dimensions = operand.dimensions
    if place < len(shapes):
        dimensions = shapes[place].dimensions
    elif place < len(request.outputs) and request.outputs[place].dimensions:
        dimensions = request.outputs[place].dimensions
    try:
        return size_of_data_bytes(operand.type, dimensions)
    except InvalidArgumentError:
        return 0
