"""What a client and its replicas exchange: models, orders to run, and answers.

All are tuples of numbers and arrays, which Ray passes without copying where they are
large. An order has either whole arrays of the model's dtypes and shapes, or bytes with
the dimensions of each argument, as requests of the HAL have them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExecutionOptions
from asyncnn.memory.mapping import Mapper

PackedModel: TypeAlias = tuple[hal.Model, tuple[Array, ...]]
"""A model without its pools, and their bytes."""

Sent: TypeAlias = tuple[Array | None, ...]
"""Inputs of a run; None where one is omitted."""


def packed(model: hal.Model) -> PackedModel:
    """Return a model as it is sent. May read files.

    :raises AsyncnnError: if a pool cannot be mapped.
    """
    with Mapper() as mapper:
        pools = [mapper.map(pool) for pool in model.pools]
        found = tuple(np.frombuffer(p.buffer or b"", np.uint8, p.size) for p in pools)
    return replace(model, pools=()), found


def unpacked(sent: PackedModel) -> hal.Model:
    """Return the model that was sent; it works on the bytes where they are."""
    model, pools = sent
    return replace(model, pools=tuple(map(_pool, pools)))


class RunOrder(NamedTuple):
    """A run as it is sent: of which model, and what is asked for.

    ``deadline`` is on the clock of who gets it. ``space`` has the bytes of each output
    and what its dimensions are to be, None where it is omitted; it is itself None where
    inputs are whole arrays. ``dimensions`` are the inputs' then.
    """

    key: int
    number: int
    measure: bool = False
    deadline: int | None = None
    loop_timeout: int | None = None
    dimensions: tuple[hal.Dimensions, ...] = ()
    space: "tuple[tuple[int, hal.Dimensions] | None, ...] | None" = None

    @property
    def options(self) -> ExecutionOptions:
        """What the HAL's calls take."""
        measure = hal.MeasureTiming.YES if self.measure else hal.MeasureTiming.NO
        return ExecutionOptions(measure, self.deadline, self.loop_timeout)

    def spread(self, inputs: Sent, outputs: Sequence[Array]) -> "RunOrder":
        """Return an order of whole arrays as one of bytes."""
        return self._replace(
            dimensions=tuple(() if each is None else each.shape for each in inputs),
            space=tuple((each.nbytes, each.shape) for each in outputs),
        )

    def request(self, inputs: Sent) -> tuple[hal.Request, list[Array]]:
        """Return the request of an order with ``space``, and what outputs are put in.

        The arrays are bytes, one for each output that is not omitted.
        """
        pools: list[hal.Memory] = []
        outputs: list[Array] = []

        def placed(array: Array | None, shape: hal.Dimensions) -> hal.RequestArgument:
            if array is None:
                return hal.RequestArgument(has_no_value=True)
            pools.append(_pool(array))
            location = hal.DataLocation(len(pools) - 1, 0, array.nbytes)
            return hal.RequestArgument(location=location, dimensions=shape)

        def made(space: tuple[int, hal.Dimensions] | None) -> hal.RequestArgument:
            if space is None:
                return placed(None, ())
            outputs.append(np.empty(space[0], np.uint8))
            return placed(outputs[-1], space[1])

        taken = tuple(map(placed, inputs, self.dimensions))
        given = tuple(map(made, self.space or ()))
        return hal.Request(taken, given, tuple(pools)), outputs


class Answer(NamedTuple):
    """How a call has ended; ``begun`` is False if nothing was done for it."""

    status: int
    reason: str = ""
    begun: bool = True
    shapes: tuple[tuple[hal.Dimensions, bool], ...] = ()
    timing: tuple[int, int] | None = None
    outputs: tuple[Array, ...] = ()

    @property
    def result(self) -> ExecutionResult:
        """The same, as the awaitable face has it."""
        timing = hal.NO_TIMING if self.timing is None else hal.Timing(*self.timing)
        shapes = tuple(hal.OutputShape(*each) for each in self.shapes)
        return ExecutionResult(
            hal.ErrorStatus(self.status), shapes, timing, self.reason
        )


def answer_of(result: ExecutionResult, outputs: Iterable[Array] = ()) -> Answer:
    """Return the answer that stands for a result; outputs go with success alone."""
    timing = result.timing
    is_done = result.status is hal.ErrorStatus.NONE
    return Answer(
        int(result.status),
        result.reason,
        True,
        tuple((s.dimensions, s.is_sufficient) for s in result.output_shapes),
        None
        if timing == hal.NO_TIMING
        else (timing.time_on_device, timing.time_in_driver),
        tuple(outputs) if is_done else (),
    )


def size_bytes(arrays: Sequence[Array | None]) -> int:
    """Return how many bytes are sent."""
    return sum([0 if each is None else each.nbytes for each in arrays])


def _pool(array: Array) -> hal.Memory:
    data = array.reshape(-1).view(np.uint8).data  # arrays without elements have no cast
    return hal.Memory("ashmem", array.nbytes, buffer=data)
