"""Calls of `execute_fenced`, and what they have to return."""

import asyncio
from collections.abc import Sequence

import numpy as np

from asyncnn.callbacks import IFencedExecutionCallback
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IPreparedModel, ISyncFence
from asyncnn.hal.types import NO_TIMING, ErrorStatus, MeasureTiming, Model, Request
from asyncnn.runtime.model import NamedModel
from tests.devices.test_execution import X, Y, request_for

NO, YES = MeasureTiming.NO, MeasureTiming.YES
MISSED = (ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT)
UNFINISHED = (ErrorStatus.GENERAL_FAILURE, NO_TIMING, NO_TIMING)


class Launched:
    """What a call that succeeded has returned."""

    def __init__(
        self,
        prepared: IPreparedModel,
        request: Request,
        wait_for: Sequence[ISyncFence] = (),
        measure: MeasureTiming = NO,
        deadline: int | None = None,
        loop_timeout: int | None = None,
        duration: int | None = None,
    ) -> None:
        status, self.fence, callback = prepared.execute_fenced(
            request, wait_for, measure, deadline, loop_timeout, duration
        )
        assert status is ErrorStatus.NONE
        assert callback is not None
        self.callback: IFencedExecutionCallback = callback

    @property
    def info(self) -> tuple:
        return self.callback.get_execution_info()

    async def end(self) -> ErrorStatus:
        """Wait for the end and return the status, which fence and callback share."""
        status = ErrorStatus.NONE
        if self.fence is not None:
            try:
                await asyncio.wait_for(_await(self.fence), 20)
            except AsyncnnError as error:
                status = error.status
        assert self.info[0] is status
        return status


def numbered(model: Model) -> NamedModel:
    main = model.main
    return NamedModel.of(
        model,
        [str(index) for index in main.input_indexes],
        [str(index) for index in main.output_indexes],
    )


async def _await(fence: ISyncFence) -> None:
    await fence


def refused(
    prepared: IPreparedModel,
    request: Request,
    wait_for: Sequence[ISyncFence] = (),
    measure: MeasureTiming = NO,
    deadline: int | None = None,
) -> ErrorStatus:
    """Return the status of a launch that fails, and so returns nothing else."""
    status, fence, callback = prepared.execute_fenced(
        request, wait_for, measure, deadline, None, None
    )
    assert fence is None
    assert callback is None
    return status


def sum_request() -> tuple[Request, np.ndarray]:
    z = np.zeros(4, np.float32)
    return request_for([X, Y], [z]), z


def counting_request(x: np.ndarray) -> Request:
    """Return a request for a run of `counting_up`."""
    return request_for([x], [np.empty_like(x)])


async def accustom(prepared: IPreparedModel) -> None:
    """Execute until an inline device has learnt that executions are short."""
    for _ in range(3):
        await Launched(prepared, sum_request()[0]).end()
