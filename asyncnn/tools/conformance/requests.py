"""Requests for cases: inputs in one pool, outputs in another, as the suite has them."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.tools.conformance.vectors import Case

ALIGNMENT_BYTES = 64


class CaseRequest(msgspec.Struct, frozen=True, eq=False):
    """A request and the memory that its outputs go to."""

    request: Request
    memory: Array

    def outputs(self, case: Case, shapes: Sequence[OutputShape]) -> list[Array]:
        """Return the outputs with the shapes that were reported.

        Where none were, the model fixes them and they are the expected ones.
        """
        arrays = []
        for position, argument in enumerate(self.request.outputs):
            expected = case.outputs[position].value
            shape = shapes[position].dimensions if shapes else expected.shape
            start = argument.location.offset
            size = math.prod(shape) * expected.dtype.itemsize
            data = self.memory[start : start + size]
            arrays.append(data.view(expected.dtype).reshape(shape))
        return arrays


def build_request(case: Case, *, short_by: int = 0) -> CaseRequest:
    """Return a request for ``case``; the first output lacks ``short_by`` bytes.

    An empty output still gets one byte.
    """
    sizes = [0 if array is None else array.nbytes for array in case.inputs]
    offsets, total = _places(sizes)
    memory = np.zeros(max(total, 1), np.uint8)
    arguments = []
    for array, size, offset in zip(case.inputs, sizes, offsets, strict=True):
        if array is None:
            arguments.append(RequestArgument(has_no_value=True))
            continue
        memory[offset : offset + size] = np.frombuffer(array.tobytes(), np.uint8)
        arguments.append(RequestArgument(location=DataLocation(0, offset, size)))
    capacities = [max(output.value.nbytes, 1) for output in case.outputs]
    places, total = _places(capacities)
    capacities[0] -= short_by
    results = np.zeros(total, np.uint8)
    request = Request(
        tuple(arguments),
        tuple(
            RequestArgument(location=DataLocation(1, offset, size))
            for offset, size in zip(places, capacities, strict=True)
        ),
        (from_buffer(memory), from_buffer(results)),
    )
    return CaseRequest(request, results)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return aligned offsets of consecutive spans, and the end of the last."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return offsets, end
