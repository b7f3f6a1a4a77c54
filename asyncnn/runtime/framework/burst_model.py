"""A prepared model of the framework as one burst of this process has it.

If one device has all of the model, the burst is between the application and that; the
application's end then asks the framework to make up for what has failed. Otherwise the
framework serves the burst.
"""

from typing import ClassVar

from asyncnn.callbacks import (
    IBurstCallback,
    IExecutionCallback,
    SynchronousByCallback,
)
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.interfaces import IBurstContext, cause_of_death
from asyncnn.hal.refusals import NoFencesNorBursts
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    ErrorStatus,
    Handle,
    MeasureTiming,
    OutputShape,
    Request,
    Timing,
)
from asyncnn.runtime.framework.steps import Partitioned


class BurstModel(SynchronousByCallback, NoFencesNorBursts):
    """A model as one burst of this process has it; see `IRecovering`.

    If one device has all of the model, the burst is between the application and that.
    ``last_route`` is that of the last execution; None if it is the usual one.
    """

    def __init__(self, model: Partitioned) -> None:
        self._model = model
        self.last_route: Route | None = None

    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution; see `IPreparedModel.execute_1_3`."""
        self.last_route = None
        if callback is not None:
            callback = _Noting(self, callback)
        return self._model.execute_1_3(
            request, measure, deadline, loop_timeout_duration, callback
        )

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Serve a burst; see `IPreparedModel.configure_execution_burst`."""
        model, channels = self._model, (request_channel, result_channel)
        if model.direct is not None and not model.health.has_failed:
            status, context = await model.direct.configure_execution_burst(
                callback, *channels
            )
            if status is ErrorStatus.NONE:
                return status, context
        return model.host.bursts.configure(self, callback, *channels)

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why nothing is executed any more; see `IMortal`."""
        return cause_of_death(self._model)


class _Noting(IExecutionCallback):
    """Notes the route of an execution in a burst, whose packets have no room for it."""

    takes_early_results: ClassVar[bool] = True

    __slots__ = ("_burst", "_callback")

    def __init__(self, burst: BurstModel, callback: IExecutionCallback) -> None:
        super().__init__()
        self._burst = burst
        self._callback = callback
        callback.link_to_death(self.die)

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self._callback.unlink_to_death()
        self._callback.reason = self.reason
        self._callback.notify_1_3(status, output_shapes, timing)

    def took(self, route: Route) -> None:
        self._burst.last_route = route
        self._callback.took(route)
