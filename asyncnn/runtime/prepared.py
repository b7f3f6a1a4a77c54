"""The awaitable face of a prepared model: arrays in, arrays out."""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike

from asyncnn.callbacks import executed_synchronously, launched
from asyncnn.deadlines import DEADLINE_GRACE_S
from asyncnn.execution import IInProcess, Outputs, binding_of, timing_of
from asyncnn.fenced_run import FencedRun, execute_fenced, launched_for, launcher_of
from asyncnn.fences import SyncFence
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.routes import Route
from asyncnn.hal.types import DEFAULT_OPTIONS, ErrorStatus, Model, Subgraph
from asyncnn.memory.pages import os_errors
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.buffers import MakeArray, Slot
from asyncnn.runtime.burst import Burst, IRecovering, IRoutedElsewhere, open_burst
from asyncnn.runtime.execution_options import (
    AnyPath,
    InFlight,
    Path,
    check_path,
    options_for,
)
from asyncnn.runtime.home import Home, get_ident, running_loop
from asyncnn.runtime.model import NamedModel, TensorInfo, has_fixed_shape, position_of
from asyncnn.runtime.opening import Opening
from asyncnn.runtime.requests import (
    InputCheck,
    Inputs,
    OutputSpace,
    RequestBuilder,
    Results,
    Tensor,
)
from asyncnn.runtime.reusable import Carry, ReusableExecution, Target
from asyncnn.runtime.states import Kept, StatefulRequests, no_state, slots_of
from asyncnn.tracing import Layer, Phase, active, begin

if TYPE_CHECKING:
    from asyncnn.runtime.session import Session
    from asyncnn.runtime.session_steps import SessionModel
    from asyncnn.runtime.signatures import SignatureRuns

# Kept by name, since looking up a member of an enum takes as long as a call.
_NO_MODEL = Model(Subgraph((), (), (), ()))
_NONE = ErrorStatus.NONE
_INSUFFICIENT_SIZE = ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


class PreparedModel:
    """A model that runs; made by `Device.prepare`. ``hal`` is the HAL's object.

    Any number of runs may be awaited at once. ``sync_exec_hal`` forces one of the HAL's
    calls, see `open_device`.

    A run of a model with state begins with its first values, and what it would keep is
    thrown away: `session` keeps it. ``states`` names it, ``inputs`` and ``outputs`` do
    not, but for state that is paired: runs are given it, and return it as an output.
    ``device`` is what has prepared the model, and ``owner`` what must stay for it.
    """

    def __init__(
        self,
        model: NamedModel,
        hal: IPreparedModel,
        *,
        max_in_flight: int,
        make_array: MakeArray = np.empty,
        sync_exec_hal: bool | None = None,
        deadline_grace: float = DEADLINE_GRACE_S,
        route: Route | None = None,
        device: IDevice | None = None,
        owner: object = None,
    ) -> None:
        self.hal = hal
        self._forced: Path | None = None
        if sync_exec_hal is not None:
            self._forced = "sync" if sync_exec_hal else "async"
        self.inputs: tuple[TensorInfo, ...] = model.inputs
        self.outputs: tuple[TensorInfo, ...] = model.outputs
        self.states: tuple[TensorInfo, ...] = tuple(s.info for s in model.kept)
        self._make_array = make_array
        binding = binding_of(hal)
        self._direct = None if self._forced else binding
        is_local = hasattr(type(hal), "launch_fenced_on")
        self._local = cast("IInProcess", binding) if is_local else None
        # What is given is all that the model takes, unless it has state.
        tensors = (*model.inputs, *model.outputs)
        is_whole = not model.states and all(map(has_fixed_shape, tensors))
        # A device of this process also binds what leaves lengths open, or has state.
        direct = self._direct if is_whole or is_local else None
        self._stateful = StatefulRequests(model, make_array) if model.states else None
        self._launch_on = None if direct is None else direct.launch_on
        self._device = device
        # Without its graph and constants: the device has what it needs of those.
        self._model = replace(model, model=_NO_MODEL)
        self._sessions: SessionModel | None = None
        self._target = Target(
            hal,
            InputCheck(model.inputs),
            OutputSpace(model.outputs),
            self._stateful or RequestBuilder(model.inputs, model.outputs),
            elsewhere=make_array is not np.empty,
            make_shared=shared_array if make_array is np.empty else make_array,
            deadline_grace=deadline_grace,
            route=route,
            home=Home(),
            owner=owner,
            loop=running_loop(),
            local=self._local if is_whole else None,
            launch=launcher_of(hal),
        )
        self._take = self._target.space.taker(self._target.check)
        # Those whose lengths only a run shows are made by a device of this process.
        is_open = not self._target.space.is_fixed
        self._makes_outputs = direct is not None and is_local and is_open
        self._in_flight = InFlight(max_in_flight)

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
        """Execute once and return new arrays, or ``out``'s own.

        Inputs must have the dtype and shape that the model declares; they are read in
        place, so leave them alone until this returns. Cancelling the call cancels the
        execution at the next boundary between two operations; until then it goes on
        reading its inputs and writing to ``out``. At its deadline the call ends
        whatever is computed: from then on nothing is written to ``out``, but inputs may
        still be read.

        A driver in another process works on arrays of `shared_array` where they are;
        others are copied for it.

        Inputs and outputs may be device-managed buffers, which were made for them by
        `Device.buffer_for`. Outputs that go there are not among the results.

        :param out: arrays to write to, of the outputs' dtypes and shapes, which the
            model must fix; they must not overlap each other or the inputs. None stands
            for a new array.
        :param path: ``async`` launches and is called back, ``sync`` uses the HAL's
            synchronous call, ``fenced`` waits for a fence, which takes outputs of fixed
            shapes; results are the same.
        :param timeout: seconds from now until the deadline.
        :param loop_timeout: seconds that each WHILE operation may take.
        :param measure: fill in ``outputs.timing``.
        :raises InvalidArgumentError: if an input or an array of ``out`` is missing,
            unknown, or of the wrong dtype or shape.
        :raises AsyncnnError: for any other status of the driver.
        """
        target = self._target
        if get_ident() != target.home.loop._thread_id:
            target.home.refuse("the model")
        space = target.space
        in_flight, take, taken = self._in_flight, self._take, None
        # What waits for others has no arrays of its own.
        if take is not None and out is None and in_flight.room:
            taken = take(inputs)
        usual = target.check.usual(inputs) if taken is None else None
        given = None if out is None else space.given(out)
        options = DEFAULT_OPTIONS
        if measure or timeout is not None or loop_timeout is not None:
            options = options_for(
                timeout=timeout, loop_timeout=loop_timeout, measure=measure
            )
        trace = None if active.recorder is None else begin()
        if in_flight.room:
            in_flight.room -= 1
        else:
            await in_flight.wait(options.deadline)
        try:
            outputs: Outputs | None
            tensors: Any
            if taken is not None:
                tensors, outputs = taken
            else:
                arrays = await target.converted(inputs) if usual is None else usual
                outputs = space.allocate() if given is None and space.is_fixed else None
                if given is None and self._makes_outputs and path == "async":
                    tensors = [*arrays, *[None] * len(self.outputs)]
                else:
                    made = target.spaces(given) if outputs is None else outputs.values()
                    tensors = [*arrays, *made]
            is_usual = taken is not None or not (usual is None or outputs is None)
            launch_on, end, split = self._launch_on, None, len(self.inputs)
            if launch_on is not None and path == "async":
                stateful = self._stateful
                whole = stateful.completed(tensors, split) if stateful else tensors
                end = launch_on(whole, options, is_usual)
            if end is None:
                if tensors[-1] is None:
                    tensors[split:] = target.spaces(None)
                request = target.build_request(tensors[:split], tensors[split:])
                end = self._carry(path)(request, options)
            result = await end
            spaces: Sequence[Tensor] = () if outputs is not None else tensors[split:]
            if result.status is _INSUFFICIENT_SIZE:
                outputs, carry = None, self._carry(path)
                arrays, spaces = tensors[:split], tensors[split:]
                _, spaces, result = await target.with_more_space(
                    arrays, given, spaces, np.empty, carry, options, result
                )
        finally:
            if in_flight.waiters:
                in_flight.leave()
            else:
                in_flight.room += 1
            if trace is not None:
                trace.end("run", Layer.RUNTIME, Phase.EXECUTION)
        if result.status is not _NONE:
            target.check_result(result)
        if outputs is None:
            outputs = space.shaped(spaces, result.output_shapes)
        outputs.timing = timing_of(result.timing) if measure else None
        outputs.route = result.route or target.route
        return outputs

    def run_fenced(
        self,
        inputs: Inputs,
        *,
        wait_for: Iterable[SyncFence | FencedRun] = (),
        out: Results | None = None,
        timeout: float | None = None,
        duration: float | None = None,
        loop_timeout: float | None = None,
        measure: bool = False,
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled, and return it.

        Inputs may be the ``outputs`` of runs that it waits for. They are read when it
        begins, so leave them alone until it has ended. A driver in another process so
        reads arrays of `shared_array`, and outputs that its own runs have made; all
        others it gets as they are now. A model that leaves the shape of an output open
        cannot be run so.

        If what it waits for fails, so does this run, and its error names the cause.

        :param wait_for: runs and fences, of any device.
        :param out: as of `run`.
        :param timeout: seconds from now until the deadline; waiting counts.
        :param duration: seconds that it may take once all fences have signalled.
        :param loop_timeout: seconds that each WHILE operation may take.
        :param measure: fill in the run's ``timing``.
        :raises InvalidArgumentError: if an input or an array of ``out`` is missing,
            unknown, or of the wrong dtype or shape, or the model leaves a shape open.
        :raises AsyncnnError: if the driver does not take it, for any other reason.
        """
        target = self._target
        if get_ident() != target.home.loop._thread_id:
            target.home.refuse("the model")
        space = target.space
        if not space.is_fixed:
            space.check_fixed()
        make, split = self._make_array, len(self.inputs)
        is_usual, take = out is None, self._take
        taken = take(inputs) if is_usual and take and make is np.empty else None
        if taken is None:
            usual = target.check.usual(inputs)
            arrays = target.check.with_buffers(inputs) if usual is None else usual
            if out is None:
                outputs = space.allocate(make)
                spaces: Iterable[Tensor] = outputs.values()
            else:
                spaces = target.spaces(space.given(out), make)
                outputs = space.named(spaces)
            taken = (*arrays, *spaces), outputs
            is_usual = is_usual and usual is not None
        tensors, outputs = taken
        options = DEFAULT_OPTIONS
        if measure or not (timeout is duration is loop_timeout is None):
            options = options_for(
                timeout=timeout,
                duration=duration,
                loop_timeout=loop_timeout,
                measure=measure,
            )
        sources = target.sources(wait_for, tensors[:split]) if wait_for else ()
        outputs.route = target.route
        launch, hal, local, run = target.launch, self.hal, target.local, None
        if local is not None and not sources:
            run = local.launch_fenced_on(tensors, options, is_usual)
        if run is None:
            request = None if local is None else local.bind(tensors, is_usual)
            if request is None:
                request = target.build_request(tensors[:split], tensors[split:])
            if sources:
                return launched_for(hal, launch, request, sources, options, outputs)
            run = launch(request, (), options)
        run.outputs, run.prepared = outputs, hal
        return run

    def reusable(
        self,
        inputs: Inputs | None = None,
        *,
        out: Results | None = None,
        path: Path = "async",
        loop_timeout: float | None = None,
    ) -> ReusableExecution:
        """Build a request once, to be executed on the same arrays again and again.

        Inputs that are given are read in place, so write to what `input` of the result
        returns. All that is not given is made, in memory that drivers share.

        `Burst.reusable` makes one that goes by burst.

        :param out: as of `run`.
        :param path: which HAL call carries its runs; any of its runs may be fenced.
        :param loop_timeout: seconds that each WHILE operation may take.
        :raises InvalidArgumentError: if an input or an array of ``out`` is missing,
            unknown, or of the wrong dtype or shape, no inputs are given and the model
            leaves the shape of one open, or there is no such path.
        """
        carry = self._carry(path)
        return ReusableExecution(
            self._target,
            self._target.settled_inputs(inputs),
            self._target.settled_outputs(out),
            carry,
            options_for(loop_timeout=loop_timeout),
            threadsafe=self._local if path != "fenced" else None,
        )

    def check_usable_here(self) -> None:
        """Check that the running event loop is the one the model was prepared on.

        :raises ForkedError: if this is a fork of that process.
        :raises WrongLoopError: if it is not.
        """
        self._target.home.check("the model")

    def input(self, which: str | int = 0) -> Slot:
        """Return what stands for an input in `Device.buffer_for`.

        :raises InvalidArgumentError: if there is no such input.
        """
        position = position_of("input", self.inputs, which)
        return Slot(self.hal, self.inputs[position], position, False, self._device)

    def output(self, which: str | int = 0) -> Slot:
        """Return what stands for an output in `Device.buffer_for`.

        :raises InvalidArgumentError: if there is no such output.
        """
        position = position_of("output", self.outputs, which)
        return Slot(self.hal, self.outputs[position], position, True, self._device)

    def burst(self, *, spins: bool = True) -> Opening[Burst]:
        """Open a burst, the way to the least latency: ``async with``, or ``await``.

        Its runs follow one another through queues in memory that is shared with the
        driver, and its arrays lie there too. The HAL's bursts have no deadlines: that
        of a run is kept here, by cancelling it.

        :param spins: look for a result for some tens of microseconds before sleeping;
            leave it out for models known to take longer.
        :raises AsyncnnError: if the driver refuses it.
        """
        return open_burst(self._target, spins=spins)

    def session(
        self,
        *,
        state: Mapping[str, ArrayLike] | None = None,
        path: AnyPath = "async",
        checkpoint: int | None = None,
    ) -> "Opening[Session]":
        """Open a session, which keeps the model's state: ``async with``, or ``await``.

        Its state stays in the driver. It is lost with that unless there are
        checkpoints, each of which copies it here.

        :param state: what it begins with, by name; the model's first values by default.
        :param path: of its steps; a burst is opened for ``burst``.
        :param checkpoint: steps after which the state is copied, for a supervised
            driver that dies: the session then goes on from the last copy.
        :raises InvalidArgumentError: if the model keeps no state, ``state`` is not that
            of the model, there is no such path, or ``checkpoint`` is less than 1.
        :raises AsyncnnError: if the driver is gone, or has too many buffers or bursts.
        """
        with os_errors("sessions cannot be imported"):
            from asyncnn.runtime.session import OpeningSession, Session

        if not self.states:
            raise no_state(self._model)
        model = self._sessions or self._shared_by_sessions()
        given = model.kept.first if state is None else model.kept.checked(state)
        session = Session(model, self._carry, given, path, checkpoint)
        return Opening("session", OpeningSession(session))

    def with_open_states(
        self,
    ) -> tuple["PreparedModel", dict[str, str], dict[str, Array]]:
        """Return this model with states as inputs and outputs, for a `Pipeline`, say.

        After it the outputs that are state, each with its input, and first values.
        """
        opened, model = copy(self), self._model.with_open_states()
        opened.inputs, opened.outputs, opened.states = model.inputs, model.outputs, ()
        opened._model, opened._sessions = replace(model, pairs=()), None
        opened._target = self._target._replace(
            check=InputCheck(model.inputs),
            space=OutputSpace(model.outputs),
            build_request=RequestBuilder(model.inputs, model.outputs),
            local=None,
        )
        opened._launch_on = opened._take = opened._stateful = None
        kept = [each for each in self._model.kept if has_fixed_shape(each.info)]
        first = {state.info.name: state.first_value() for state in kept}
        return opened, {after: before for before, after in model.pairs}, first

    def _shared_by_sessions(self) -> "SessionModel":
        with os_errors("sessions cannot be imported"):
            from asyncnn.runtime.session_steps import SessionModel

        kept = Kept(self._model, self._make_array)
        opened, _, _ = self.with_open_states()
        self._sessions = SessionModel(
            opened._target,
            kept,
            InputCheck(kept.inputs),
            slots_of(self.hal, kept),
            self._device,
            self._make_array,
        )
        return self._sessions

    def signature(self, name: str) -> "SignatureRuns":
        """Return what runs the model by the names of a signature of its file.

        :raises InvalidArgumentError: if the model has no such signature.
        """
        with os_errors("signatures cannot be imported"):
            from asyncnn.runtime.model_description import find_signature
            from asyncnn.runtime.signatures import SignatureRuns

        signature = find_signature(self._model.signatures, name)
        return SignatureRuns(signature, self.run, self.session)

    @asynccontextmanager
    async def runner(
        self,
        path: AnyPath,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - a HAL deadline, in the driver
    ) -> AsyncIterator[Callable[[Inputs], Awaitable[Outputs]]]:
        """Yield what runs inputs on a path, with a burst of its own if it is that.

        :param timeout: seconds that each run may take.
        :raises InvalidArgumentError: if there is no such path.
        """
        if path != "burst":
            yield partial(self.run, path=path, timeout=timeout)
            return
        async with self.burst() as burst:
            yield partial(burst.run, timeout=timeout)

    @cached_property
    def _has_one_call(self) -> bool:
        """Whether one call is made of the other, so that only that has the route."""
        is_routed = self._target.route is not None
        elsewhere = is_routed and isinstance(self.hal, IRoutedElsewhere)
        return elsewhere or isinstance(self.hal, IRecovering)

    def _carry(self, path: Path) -> Carry:
        if path in ("async", "sync"):
            path = self._forced or path
        if path == "async" or (path == "sync" and self._has_one_call):
            return self._direct.launch if self._direct else partial(launched, self.hal)
        if path == "sync":
            return partial(executed_synchronously, self.hal)
        check_path(path)
        return partial(execute_fenced, self._target.launch)

    def __repr__(self) -> str:
        names, outputs = ([i.name for i in s] for s in (self.inputs, self.outputs))
        return f"<PreparedModel {', '.join(names)} -> {outputs}>"
