"""The awaitable face of a prepared model: arrays in, arrays out."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Literal, TypeAlias

from numpy.typing import ArrayLike

from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    ErrorStatus,
    MeasureTiming,
    Request,
    Timing,
)
from asyncnn.runtime.deadlines import deadline_after
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.requests import InputCheck, OutputSpace, RequestBuilder

Path: TypeAlias = Literal["async", "sync"]
"""Which HAL call carries an execution."""

Inputs: TypeAlias = Mapping[str, ArrayLike | None] | Sequence[ArrayLike] | Array
"""Arrays by input name, in the model's order, or the only input itself."""

Results: TypeAlias = Mapping[str, Array] | Sequence[Array] | Array
"""Arrays to write to by output name, in the model's order, or for the only output."""

MAX_SPACE_ATTEMPTS = 4
"""Executions tried until outputs of unknown size have found enough space."""


class Outputs(dict[str, Array]):
    """Output arrays by name, in the model's order; ``timing`` if it was measured."""

    __slots__ = ("timing",)

    timing: Timing


class PreparedModel:
    """A model that runs; made by `Device.prepare`. ``hal`` is the HAL's object.

    Any number of runs may be awaited at once.
    """

    def __init__(
        self, model: NamedModel, hal: IPreparedModel, *, max_in_flight: int
    ) -> None:
        self.hal = hal
        self.inputs: tuple[TensorInfo, ...] = model.inputs
        self.outputs: tuple[TensorInfo, ...] = model.outputs
        self._input_check = InputCheck(model)
        self._space = OutputSpace(model.outputs)
        self._build_request = RequestBuilder(model.inputs, model.outputs)
        self._slots = asyncio.Semaphore(max_in_flight)

    async def run(
        self,
        inputs: Inputs,
        *,
        out: Results | None = None,
        path: Path = "async",
        timeout: float | None = None,  # noqa: ASYNC109 - a HAL deadline, in the driver
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> Outputs:
        """Execute once and return new arrays, or those of ``out``.

        Inputs must have the dtype and shape that the model declares; they are read in
        place, so leave them alone until this returns. Cancelling the call cancels the
        execution at the next boundary between two operations; until then it goes on
        reading its inputs and writing to ``out``.

        A driver in another process works on arrays of `shared_array` where they are;
        others are copied for it.

        :param out: arrays to write to, of the outputs' dtypes and shapes, which the
            model must fix; they must not overlap each other or the inputs.
        :param path: ``async`` launches and is called back, ``sync`` uses the HAL's
            synchronous call; results are the same.
        :param timeout: seconds from now until the deadline.
        :param loop_timeout: seconds that each WHILE operation may take.
        :param measure: fill in ``outputs.timing``.
        :raises InvalidArgumentError: if an input or an array of ``out`` is missing,
            unknown, or of the wrong dtype or shape.
        :raises AsyncnnError: for any other status of the driver.
        """
        arrays = self._input_check(inputs)
        given = None if out is None else self._space.given(out)
        deadline = deadline_after(timeout)
        loop_ns = None if loop_timeout is None else round(loop_timeout * 1e9)
        timing = MeasureTiming.YES if measure else MeasureTiming.NO
        await self._slots.acquire()
        try:
            for _ in range(MAX_SPACE_ATTEMPTS):
                spaces = self._space.allocate() if given is None else given
                request = self._build_request(arrays, spaces)
                result = await self._launch(path, request, timing, deadline, loop_ns)
                if result.status is not ErrorStatus.OUTPUT_INSUFFICIENT_SIZE:
                    break
                self._space.learn(result.output_shapes)
        finally:
            self._slots.release()
        result.raise_for_status()
        outputs = Outputs(self._space.shaped(spaces, result.output_shapes))
        outputs.timing = result.timing
        return outputs

    def _launch(
        self,
        path: Path,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout: int | None,
    ) -> Awaitable[ExecutionResult]:
        if path == "async":
            callback = ExecutionFuture()
            self.hal.execute_1_3(request, measure, deadline, loop_timeout, callback)
            return callback
        if path == "sync":
            return self._synchronously(request, measure, deadline, loop_timeout)
        raise InvalidArgumentError(f"there is no path {path!r}", hint="async or sync")

    async def _synchronously(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout: int | None,
    ) -> ExecutionResult:
        return ExecutionResult(
            *await self.hal.execute_synchronously_1_3(
                request, measure, deadline, loop_timeout
            )
        )

    def __repr__(self) -> str:
        names = [info.name for info in self.inputs]
        return f"<PreparedModel {', '.join(names)} -> {[i.name for i in self.outputs]}>"
