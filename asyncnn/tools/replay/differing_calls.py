"""Whether calls that were repeated have ended as they did, and what differs."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from asyncnn.hal.errors import MISSED, AsyncnnError, InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.operands import dtype_of, size_of_data_bytes
from asyncnn.hal.routes import IRouting
from asyncnn.hal.types import Dimensions, ErrorStatus, Model, OutputShapes
from asyncnn.service.recorded_memory import CallKind
from asyncnn.service.recording import CallRecord, RecordedCall, RecordedRequest
from asyncnn.tools.replay.repeating import CallOutcome, Repetition, is_complete
from asyncnn.tools.samples import Tolerance, compare


class CallDifference(msgspec.Struct, frozen=True):
    """What of call number ``call`` differs, in words."""

    call: int
    kind: str
    what: str
    recorded: str
    repeated: str


class KindTimes(msgspec.Struct, frozen=True):
    """Calls of a kind, and medians in microseconds of how long they took."""

    kind: str
    calls: int
    recorded_us: float
    replayed_us: float


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a repetition went.

    Of ``calls``, ``repeated`` were made again, and of ``compared`` of these the outputs
    were compared, too. ``by_time`` may have ended otherwise. ``refusals`` say why
    others were not made, and how many.
    """

    device: str
    calls: int
    repeated: int
    compared: int
    by_time: int
    refusals: dict[str, int]
    differences: tuple[CallDifference, ...]
    times: tuple[KindTimes, ...] = ()
    cut_calls: int | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def status_name(status: int | None) -> str:
    """Return the name of a status."""
    if status is None:
        return "no end"
    try:
        return ErrorStatus(status).name
    except ValueError:
        return f"status {status}"


def differing_status(call: RecordedCall, outcome: CallOutcome) -> bool:
    """Return whether a call that ended has ended with another status."""
    if call.status is None or call.status == outcome.status:
        return False
    return not (call.status in MISSED and outcome.status in MISSED)


def differing_output(
    call: RecordedCall,
    outcome: CallOutcome,
    request: RecordedRequest,
    model: Model,
    allowed: Tolerance | None,
) -> tuple[int, str] | None:
    """Return the first output that differs, and how; None if none does."""
    for place, (old, new) in enumerate(
        zip(call.outputs, outcome.outputs, strict=False)
    ):
        if old is None or new is None:
            continue
        size = written_bytes(model, place, request, outcome.shapes)
        old, new = old[:size], new[:size]
        if old == new:
            continue
        if allowed is not None and len(old) == len(new):
            dtype = dtype_of(model.main.operands[model.main.output_indexes[place]].type)
            then, now = np.frombuffer(old, dtype), np.frombuffer(new, dtype)
            found = compare(f"output {place}", now, then, allowed)
            if not found.passed:
                elements = f"{found.differing} of {found.elements} elements"
                return place, f"{elements}, by up to {found.worst:.6g},"
            continue
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


def differing_routes(
    record: CallRecord, repetition: Repetition, device: IDevice
) -> Iterator[CallDifference]:
    """Yield which models are divided among devices in another way than they were."""
    for each in record.routes:
        prepared = repetition.prepared.get(each.model)
        if isinstance(device, IRouting) and prepared is not None:
            route = device.usual_route(prepared)
            if route is not None and route != each.route:
                what = f"the route of model {each.model}"
                yield CallDifference(0, "prepare", what, str(each.route), str(route))


def death_of(
    record: CallRecord, repetition: Repetition, cause: AsyncnnError
) -> CallDifference:
    """Return that the driver died, at the first call that it did not end."""
    lost = ErrorStatus.DEVICE_UNAVAILABLE
    places = [
        n for n, each in sorted(repetition.outcomes.items()) if each.status == lost
    ]
    place = places[0] if places else len(record.calls) - 1
    kind, then = "driver", "no end"
    if places:
        call = record.calls[place]
        kind, then = call.kind.name.lower(), status_name(call.status)
    return CallDifference(place, kind, "the driver died", then, str(cause))


def judged(
    record: CallRecord,
    repetition: Repetition,
    device: str,
    differences: list[CallDifference],
    allowed: Tolerance | None = None,
) -> ReplayReport:
    """Return how a repetition went, whose ``differences`` are those found so far.

    Outputs may be off by as much as is ``allowed``, or by no bit.
    """
    compared = by_time = 0
    for place, outcome in sorted(repetition.outcomes.items()):
        call = record.calls[place]
        name = call.kind.name.lower()
        if repetition.needs.by_time[place]:
            by_time += 1
            continue
        if differing_status(call, outcome):
            ending = status_name(outcome.status)
            ending = f"{ending}: {outcome.reason}" if outcome.reason else ending
            differences.append(
                CallDifference(place, name, "status", status_name(call.status), ending)
            )
            continue
        request, model = record.requests.get(call.subject), repetition.model_of(call)
        if outcome.status != ErrorStatus.NONE or not repetition.needs.is_known[place]:
            continue
        if call.kind is CallKind.COPY_TO:
            compared += 1
            if call.outputs[:1] != outcome.outputs[:1] and call.outputs:
                text = "other bytes"
                differences.append(CallDifference(place, name, "buffer", "", text))
        elif request is not None and model is not None and call.outputs:
            if not outcome.outputs or not is_complete(call, request):
                continue
            compared += 1
            found = differing_output(call, outcome, request, model, allowed)
            if found is not None:
                what, how = f"output {found[0]}", f"{found[1]} differ"
                differences.append(CallDifference(place, name, what, "", how))
    return ReplayReport(
        device=device,
        calls=len(record.calls),
        repeated=len(repetition.outcomes),
        compared=compared,
        by_time=by_time,
        refusals=dict(Counter(repetition.refusals.values())),
        differences=tuple(differences),
    )


def times_of(
    record: CallRecord, repetitions: Sequence[Repetition]
) -> tuple[KindTimes, ...]:
    """Return how long calls of each kind took, then and now."""
    found = []
    for kind in CallKind:
        places = [n for n, call in enumerate(record.calls) if call.kind is kind]
        then = [
            (ended - call.began_ns) / 1000
            for call in (record.calls[n] for n in places)
            if (ended := call.ended_ns) is not None
        ]
        now = [
            each.outcomes[n].took_ns / 1000
            for each in repetitions
            for n in places
            if n in each.outcomes
        ]
        if then and now:
            medians = statistics.median(then), statistics.median(now)
            found.append(KindTimes(kind.name.lower(), len(places), *medians))
    return tuple(found)
