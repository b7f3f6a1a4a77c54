"""The awaitable face of bursts: arrays in shared memory, run again and again."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np

from asyncnn.burst import BurstController, BurstStatistics
from asyncnn.callbacks import ExecutionResult
from asyncnn.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Request
from asyncnn.memory.arrays import shared_array
from asyncnn.runtime.model import TensorInfo, position_of
from asyncnn.runtime.outputs import Outputs
from asyncnn.runtime.requests import (
    MAX_SPACE_ATTEMPTS,
    InputCheck,
    OutputSpace,
    RequestBuilder,
    has_fixed_shape,
)

if TYPE_CHECKING:
    from asyncnn.runtime.prepared import Inputs


class Burst:
    """A series of runs, one at a time; made by `PreparedModel.burst`.

    Inputs and outputs lie in memory that is shared with the driver. `run` copies arrays
    in and out. Without copies: write to the arrays of `input`, await `run_in_place`,
    read those of `output`.
    """

    def __init__(
        self,
        check: InputCheck,
        build_request: RequestBuilder,
        outputs: Sequence[TensorInfo],
        controller: BurstController,
    ) -> None:
        self._controller = controller
        self._check = check
        self._build_request = build_request
        self._space = OutputSpace(outputs)
        self._inputs = [
            shared_array(info.dimensions, info.dtype) if has_fixed_shape(info) else None
            for info in check.infos
        ]
        self._outputs: Sequence[Array] = self._space.allocate(shared_array)
        self._infos = (check.infos, outputs)
        self._request: Request | None = None
        self._result: ExecutionResult | None = None
        self._views = Outputs()
        if all(map(has_fixed_shape, outputs)):
            self._views.update(self._space.named(self._outputs))
        self._is_running = False

    def input(self, which: str | int = 0) -> Array:
        """Return the array that an input is read from, by name or position.

        It stays the same for as long as the model fixes its shape.

        :raises InvalidArgumentError: if there is no such input, or its shape is open
            and none was given yet.
        """
        position = position_of("input", self._infos[0], which)
        array = self._inputs[position]
        if array is None:
            raise InvalidArgumentError(
                f"input {self._infos[0][position].name} has no fixed shape",
                hint="give it to run first",
            )
        return array

    def output(self, which: str | int = 0) -> Array:
        """Return the array that an output was last written to, by name or position.

        It is the same in every run if the model fixes the shapes of all its outputs.

        :raises InvalidArgumentError: if there is no such output, or the model leaves
            shapes open and nothing was run yet.
        """
        name = self._infos[1][position_of("output", self._infos[1], which)].name
        try:
            return self._views[name]
        except KeyError:
            raise InvalidArgumentError(
                "the model leaves shapes of outputs open", hint="run first"
            ) from None

    async def run(self, inputs: "Inputs", *, measure: bool = False) -> Outputs:
        """Copy inputs in, execute, and return copies of the outputs.

        Cancelling the call stops the execution at its next boundary.

        :param measure: fill in ``outputs.timing``.
        :raises InvalidArgumentError: if an input is missing, unknown, or of the wrong
            dtype or shape.
        :raises GeneralFailureError: if another run has not returned, or the driver
            fails or has missed a limit.
        :raises AsyncnnError: for any other status of the driver.
        """
        arrays = self._check(inputs)
        self._check_free()
        self._place(arrays)
        views = await self.run_in_place(measure=measure)
        outputs = Outputs((name, array.copy()) for name, array in views.items())
        outputs.timing = views.timing
        return outputs

    async def run_in_place(self, *, measure: bool = False) -> Outputs:
        """Execute on what the inputs hold, and return the outputs as they lie there.

        The next run writes to the same arrays.

        :raises AsyncnnError: as `run`.
        """
        self._check_free()
        self._is_running = True
        try:
            result = await self._execute(
                MeasureTiming.YES if measure else MeasureTiming.NO
            )
        finally:
            self._is_running = False
        if result is not self._result:
            result.raise_for_status()
            shaped = self._space.shaped(self._outputs, result.output_shapes)
            self._views = Outputs(shaped)
            self._views.timing = result.timing
            self._result = result
        return self._views

    def statistics(self) -> BurstStatistics:
        """Return how many runs went through the queues, and how many did not."""
        return self._controller.statistics()

    async def _execute(self, measure: MeasureTiming) -> ExecutionResult:
        for _ in range(MAX_SPACE_ATTEMPTS):
            request = self._request
            if request is None:
                request = self._build_request(self._inputs, self._outputs)
                self._request = request
            result = await self._controller.execute(request, measure)
            if result.status is not ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                break
            self._space.learn(result.output_shapes)
            self._outputs = self._space.allocate(shared_array)
            self._request = None
        return result

    def _place(self, arrays: Sequence[Array | None]) -> None:
        """Copy inputs to where they are read from, making room where it is missing."""
        for position, array in enumerate(arrays):
            place = self._inputs[position]
            if array is None:
                if place is not None:
                    self._inputs[position] = self._request = None
                continue
            if place is None or place.shape != array.shape:
                place = shared_array(array.shape, array.dtype)
                self._inputs[position] = place
                self._request = None
            np.copyto(place, array)

    def _check_free(self) -> None:
        if self._is_running:
            raise GeneralFailureError(
                "another run of this burst has not returned",
                hint="await it first, or open another burst",
            )

    def __repr__(self) -> str:
        inputs, outputs = self._infos
        names = [info.name for info in outputs]
        return f"<Burst {', '.join(info.name for info in inputs)} -> {names}>"


@asynccontextmanager
async def open_burst(
    hal: IPreparedModel,
    check: InputCheck,
    build_request: RequestBuilder,
    outputs: Sequence[TensorInfo],
    *,
    spins: bool,
) -> AsyncIterator[Burst]:
    """Open a burst for the length of an ``async with`` block.

    :raises AsyncnnError: if the driver refuses it.
    """
    with await BurstController.open(hal, spins=spins) as controller:
        yield Burst(check, build_request, outputs, controller)
