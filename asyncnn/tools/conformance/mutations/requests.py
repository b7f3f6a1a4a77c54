"""Mutations of requests.

VR1, VR2 and VR5 are those of the public suite; R2 to R7 break the validation rules of
these numbers. Every other mutant asks for timing, of which none may be reported.
"""

from collections.abc import Iterator
from itertools import cycle

import msgspec
from msgspec.structs import replace

from asyncnn.fences import SyncFence
from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.hal.types import (
    DataLocation,
    Dimensions,
    MeasureTiming,
    Model,
    Operand,
    Request,
    RequestArgument,
)
from asyncnn.tools.conformance.mutations.editing import removed, replaced
from asyncnn.tools.conformance.mutations.mutant import RequestMutant, RequestRow

_UINT32_MAX = 0xFFFF_FFFF

_Mutants = Iterator[RequestMutant]


def _missing_inputs(request: Request, model: Model) -> _Mutants:
    for position in range(len(request.inputs)):
        changed = replace(request, inputs=removed(request.inputs, position))
        yield RequestMutant(f"without input {position}", changed)


def _missing_outputs(request: Request, model: Model) -> _Mutants:
    for position in range(len(request.outputs)):
        changed = replace(request, outputs=removed(request.outputs, position))
        yield RequestMutant(f"without output {position}", changed)


def _omitted_with_location(request: Request, model: Model) -> _Mutants:
    for place in _places(request, model):
        changed = replace(place.argument, has_no_value=True)
        yield place.with_argument("is omitted, but lies somewhere", changed)


def _outside_of_pools(request: Request, model: Model) -> _Mutants:
    for place in _places(request, model):
        location = place.argument.location
        size = request.pools[location.pool_index].size  # type: ignore[union-attr]
        for words, wrong in (
            ("lies in no pool", replace(location, pool_index=len(request.pools))),
            (
                "ends beyond its pool",
                replace(location, offset=size - location.length + 1),
            ),
            ("starts beyond its pool", replace(location, offset=_UINT32_MAX)),
        ):
            changed = replace(place.argument, location=wrong)
            yield place.with_argument(words, changed)


def _other_dimensions(request: Request, model: Model) -> _Mutants:
    for place in _places(request, model):
        for dimensions in _conflicting(place.operand):
            changed = replace(place.argument, dimensions=dimensions)
            yield place.with_argument(f"has dimensions {dimensions}", changed)


def _short_inputs(request: Request, model: Model) -> _Mutants:
    for place in _places(request, model):
        if place.kind == "input":
            location = place.argument.location
            shorter = DataLocation(
                location.pool_index, location.offset, location.length - 1
            )
            changed = replace(place.argument, location=shorter)
            yield place.with_argument("is one byte short", changed)


def _empty_fences(request: Request, model: Model) -> _Mutants:
    yield RequestMutant("waits for an empty fence", request, wait_for=(None,))
    both = (SyncFence.signalled(), None)
    yield RequestMutant("waits for an empty fence, too", request, wait_for=both)


ROWS = (
    RequestRow("VR1", "an input is missing", _missing_inputs),
    RequestRow("VR2", "an output is missing", _missing_outputs),
    RequestRow("VR5", "a fence to wait for is empty", _empty_fences, by_burst=False),
    # Packets are written without the location of what is omitted.
    RequestRow(
        "R2",
        "an omitted argument has a location",
        _omitted_with_location,
        by_burst=False,
    ),
    RequestRow("R3", "an argument lies outside of its pool", _outside_of_pools),
    RequestRow("R4", "an argument has other dimensions", _other_dimensions),
    RequestRow("R7", "an input is too short", _short_inputs),
)


def with_timing(mutants: _Mutants) -> _Mutants:
    """Ask every other mutant to measure."""
    for mutant, measure in zip(mutants, cycle(MeasureTiming), strict=False):
        yield replace(mutant, measure=measure)


class _Place(msgspec.Struct, frozen=True):
    """An argument of a request that has a value, and its operand in the model."""

    request: Request
    kind: str
    position: int
    argument: RequestArgument
    operand: Operand

    def with_argument(self, words: str, argument: RequestArgument) -> RequestMutant:
        """Return the mutant whose request has another argument in this place."""
        label = f"{self.kind} {self.position} {words}"
        request = self.request
        if self.kind == "input":
            inputs = replaced(request.inputs, self.position, argument)
            return RequestMutant(label, replace(request, inputs=inputs))
        outputs = replaced(request.outputs, self.position, argument)
        return RequestMutant(label, replace(request, outputs=outputs))


def _places(request: Request, model: Model) -> Iterator[_Place]:
    main = model.main
    for kind, arguments, indexes in (
        ("input", request.inputs, main.input_indexes),
        ("output", request.outputs, main.output_indexes),
    ):
        pairs = zip(arguments, indexes, strict=True)
        for position, (argument, index) in enumerate(pairs):
            if not argument.has_no_value:
                yield _Place(request, kind, position, argument, main.operands[index])


def _conflicting(operand: Operand) -> Iterator[Dimensions]:
    """Yield dimensions that contradict those that the model states."""
    declared = operand.dimensions
    if declared or operand.type in SCALAR_TYPES:
        yield (1,) * (len(declared) + 1)
    for axis, length in enumerate(declared):
        if length:
            yield replaced(declared, axis, length + 1)
