"""Prepared models of drivers of HAL 1.0 to 1.2, offered as models of HAL 1.3.

`OlderPreparedModel` checks requests, lays memory in place of buffers, and gives the
driver requests of its version. A fenced execution waits for its fences here, and is an
ordinary one then.

Source: the HAL's runtime (executeFenced of drivers without fences).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from asyncnn.callbacks import ExecutionResult
from asyncnn.hal.errors import DeviceUnavailableError, GeneralFailureError
from asyncnn.hal.interfaces import IBurstContext, cause_of_death
from asyncnn.hal.operands import combine_dimensions, size_of_data_bytes
from asyncnn.hal.refusals import BurstArguments
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionOptions,
    Model,
    OutputShape,
    OutputShapes,
    Request,
)
from asyncnn.hal.validate import RequestRules, signature_of
from asyncnn.hal.versions import compliant_with, v1_0
from asyncnn.hal.versions.convert import convert_request, convert_status
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.older_executions import (
    OlderExecution,
    OlderHost,
    ServedBurst,
)
from asyncnn.runtime.framework.waiting_run import StartingModel

_NONE = ErrorStatus.NONE
_FAILED = ErrorStatus.GENERAL_FAILURE


class OlderPreparedModel(StartingModel):
    """An `IPreparedModel` of a driver's ``prepared`` one.

    Without a ``model``, which came from a cache, the driver alone checks requests. No
    version of the driver's has loops, whose timeout therefore has no effect.
    """

    def __init__(self, host: OlderHost, prepared: Any, model: Model | None) -> None:
        self.host = host
        self.waiting_runs = host.fenced
        self.prepared = prepared
        self._rules: RequestRules | None = None
        self._signature: Model | None = None
        model = model or getattr(prepared, "signature", None)
        if model is not None:
            self._rules = RequestRules(model)
            self._signature = self.signature = signature_of(model)
            self.buffers = host.buffers.of(self._signature)

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why it takes no work any more; see `IMortal`."""
        return self.host.cause_of_death() or cause_of_death(self.prepared)

    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Have the driver serve a burst, if it can; see `IPreparedModel`.

        It cannot before HAL 1.2, nor if a request may have a buffer.
        """
        if self.host.tells_shapes and not self.has_buffers:
            cause = self.cause_of_death()
            if cause is not None:
                return cause.status, None
            status, context = await self.prepared.configure_execution_burst(*asked)
            cause = self.cause_of_death()
            if cause is not None:  # it was closed meanwhile
                if context is not None:
                    context.close()
                return cause.status, None
            burst = None if context is None else ServedBurst(self.host, context)
            return convert_status(status, self.host.version), burst
        return self.host.bursts.configure(self, *asked)

    def checked(self, request: Request, *, is_fenced: bool) -> BuffersInUse | None:
        """Check a request; return its use of buffers, which is not begun, if any.

        :raises AsyncnnError: if it is not taken.
        """
        self.host.check(is_fenced=is_fenced)
        if self._rules is not None:
            allows_open = self.host.tells_shapes and not is_fenced
            self._rules.check(request, allow_unspecified_output=allows_open)
        return self.in_use(request)

    def start(
        self,
        request: Request,
        options: ExecutionOptions,
        use: BuffersInUse | None,
        notify: Callable[[ExecutionResult], None],
    ) -> "OlderExecution":
        """Give a checked request to the driver; ``notify`` gets the result, once.

        :raises AsyncnnError: if the driver does not take it; ``use`` is the caller's to
            end then.
        """
        if use is not None:
            request = use.begin(request)
        if not compliant_with(request, self.host.version):
            title = self.host.version.title
            raise GeneralFailureError(f"{title} does not have the request's pools")
        old = cast("v1_0.Request", convert_request(request, self.host.version))
        completed = partial(self.completed, request)
        execution = OlderExecution(self.host, options, completed, use, notify)
        execution.launch(self.prepared, old)
        return execution

    def completed(
        self, request: Request, status: ErrorStatus, shapes: OutputShapes
    ) -> OutputShapes:
        """Return the shapes of outputs that a driver reported, with what is known.

        If it reported none, they are what model and request say.

        :raises GeneralFailureError: if they are none of these outputs, or do not fit.
        """
        outputs = request.outputs
        if status not in (_NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
            return ()
        if shapes and len(shapes) != len(outputs):
            raise GeneralFailureError(f"{len(shapes)} shapes of {len(outputs)} outputs")
        if self._signature is None:
            return shapes
        main = self._signature.main
        operands = [main.operands[index] for index in main.output_indexes]
        declared = [
            combine_dimensions(operand.dimensions, argument.dimensions)
            for operand, argument in zip(operands, outputs, strict=True)
        ]
        if not shapes:
            if status is not _NONE:
                return ()
            given = zip(declared, outputs, strict=True)
            if any(0 in known and not each.has_no_value for known, each in given):
                raise GeneralFailureError("no shapes, of which some are open")
            return tuple(OutputShape(shape, True) for shape in declared)
        found = []
        for known, shape, operand, argument in zip(
            declared, shapes, operands, outputs, strict=True
        ):
            if not all(isinstance(n, int) and 0 <= n < 2**32 for n in shape.dimensions):
                raise GeneralFailureError(f"a shape of {shape.dimensions}")
            sizes = combine_dimensions(known, shape.dimensions)
            if status is _NONE and not argument.has_no_value:
                size = 0 if sizes == known else size_of_data_bytes(operand.type, sizes)
                if not shape.is_sufficient or size > argument.location.length:
                    raise GeneralFailureError(f"there was no room for {list(sizes)}")
            found.append(OutputShape(sizes, shape.is_sufficient))
        return tuple(found)
