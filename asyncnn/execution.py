"""Executions: what is bound to arrays once, for one prepared model, and then launched.

Source: aidl/android/hardware/neuralnetworks/IExecution.aidl.
"""

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.interfaces import IExecutionCallback
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ErrorStatus, ExecutionOptions, MeasureTiming, Request

if TYPE_CHECKING:  # who talks to a driver has no engine
    from asyncnn.engine.plan import Plan


class Execution(Request, frozen=True, eq=False):
    """A request with ``arrays`` for all ports of ``plan``, inputs first.

    They have the dtypes and shapes of the ports, are C-contiguous and aligned, and
    those of outputs are writable: nothing is left to check or to look up. Its pools are
    those of the arrays if it may reach another process, and left out otherwise.
    """

    plan: "Plan"
    arrays: Sequence[Array]


@runtime_checkable
class IBinding(Protocol):
    """A prepared model that executes what is bound to arrays. Not in the HAL.

    What it binds is the application's: checked before, for this model alone, and each
    launched once at a time.
    """

    def bind(self, tensors: Sequence[object]) -> object | None:
        """Return an execution on arrays for all inputs and outputs, in this order.

        The caller has seen to it that they are C-contiguous and of the model's dtypes
        and shapes, and those of outputs writable. None if the model or one of
        ``tensors``, which may be no arrays, needs more than that.
        """

    def launch(
        self, execution: Any, options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch what was bound, or any request, and return its end, to be awaited."""


@runtime_checkable
class IInProcess(IBinding, Protocol):
    """A prepared model of a device in this process. Not in the HAL.

    What it binds is a request, which goes all ways that requests do.
    """

    def bind(
        self, tensors: Sequence[object], request: Request | None = None
    ) -> Request | None:
        """Return a request on arrays; it may be launched any number of times at once.

        With the arguments and pools of ``request``, it may reach other processes.
        """

    def execute_threadsafe(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback,
    ) -> ErrorStatus:
        """Launch an execution as `IPreparedModel.execute_1_3` does, on any thread.

        ``callback`` is told on the thread that ends it: no event loop has a part in
        that. It may be told to die on any thread. A request that names device-managed
        buffers is INVALID_ARGUMENT: these belong to the loop.
        """


def binding_of(prepared: object) -> IBinding | None:
    """Return what binds the executions of a prepared model; None if it does not.

    What wraps another one, and has all else of that, is to see the executions.
    """
    is_own = hasattr(type(prepared), "bind")
    return prepared if is_own and isinstance(prepared, IBinding) else None
