"""Batches: waiting runs of one model, of any client, that run as one.

`BatchPreparations` prepares a model for a few sizes ahead, and checks for each that its
members get what they get alone. `Batching` is what the models of all clients that
prepared the same share; `asyncnn.qos.batches` decides who goes with whom.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any, ClassVar, cast
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.devices.batch_axis import batched_model
from asyncnn.devices.cache_format import Compiled
from asyncnn.devices.executable import Executable
from asyncnn.devices.run import Run
from asyncnn.engine import Program
from asyncnn.engine.plan import Plan
from asyncnn.engine.plan_execution import run_bound
from asyncnn.execution import Execution
from asyncnn.hal.errors import GeneralFailureError, failure_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import DEFAULT_OPTIONS, Model, Priority
from asyncnn.memory.pools import view
from asyncnn.pacing import Steps
from asyncnn.qos import Work
from asyncnn.qos.batches import gathered

TOLERANCE = 1e-5
"""Of floats, relative to the largest of an output; all else has to be the same."""

_TRIALS = 5
_MARGIN = 1.25
"""What a batch may take beyond what any has lately taken."""

_FORGETTING = 16
"""One such part of the difference to a shorter batch is forgotten with each."""


class Batching:
    """What all models of one content share: programs by size, and what they take.

    ``why_not`` says why there are none. Belongs to who has the scheduler's lock, but
    for `observe`, which is the loop's.
    """

    def __init__(
        self, programs: dict[int, Program], taken_ns: dict[int, int], why_not: str = ""
    ) -> None:
        self.why_not = why_not
        self.is_exact = True
        self._programs = programs
        self._usual_ns = taken_ns
        self._most_ns = dict(taken_ns)
        self._executables: dict[int, Executable] = {}
        self._idle: dict[int, deque[list[Array]]] = {size: deque() for size in programs}

    @property
    def kind(self) -> "type[BatchedRun]":
        """The class of runs that go in batches."""
        return BatchedRun

    @property
    def words(self) -> str:
        """How many runs are one batch at most, and how equal; or why none are."""
        if self.why_not:
            return f"no: {self.why_not}"
        how = "bit-equal" if self.is_exact else f"within {TOLERANCE:g}"
        return f"up to {max(self._programs)}, {how}"

    def use(self, make: Callable[[Program], Executable]) -> None:
        """Have ``make`` say how each size is executed."""
        if not self._executables:
            self._executables = {k: make(each) for k, each in self._programs.items()}

    def sizes(self, most_ns: int) -> Sequence[int]:
        """Return the sizes that take ``most_ns``; see `IBatching`."""
        found = []
        for size in self._programs:
            if self.cost_ns(size) <= most_ns:
                found.append(size)
            else:  # once it was slow, which need not last
                self._forget(size, self._usual_ns[size])
        return found

    def cost_ns(self, size: int) -> int:
        """Return what a batch takes at most; see `IBatching`."""
        if size == 1:
            return self._usual_ns[1]
        return int(self._most_ns[size] * _MARGIN)

    def observe(self, size: int, run_ns: int) -> None:
        """Learn from a batch."""
        self._most_ns[size] = max(run_ns, self._most_ns[size])
        self._forget(size, run_ns)

    def _forget(self, size: int, run_ns: int) -> None:
        most_ns = self._most_ns[size]
        self._most_ns[size] = most_ns - (most_ns - run_ns) // _FORGETTING

    def batch(self, members: Sequence[Run]) -> "Batch":
        """Return what runs in place of ``members``; see `IBatching`."""
        size = len(members)
        executable = self._executables[size]
        plan = executable.program.fixed_plan
        assert plan is not None
        try:
            arrays = self._idle[size].pop()
        except IndexError:
            arrays = _empty(plan)
        return Batch(self, executable, plan, arrays, members)

    def put_back(self, size: int, arrays: list[Array]) -> None:
        """Keep arrays for another batch."""
        self._idle[size].append(arrays)

    def trim(self) -> None:
        """Free what no batch uses."""
        for idle in self._idle.values():
            idle.clear()
        for program in self._programs.values():
            program.trim()


class BatchedRun(Run):
    """A run of a model that is batched: by itself on an idle lane, or a member."""

    goes_in_batches: ClassVar[bool] = True

    def batching(self) -> Batching | None:
        """Return what makes batches of it; None once it has begun by itself."""
        if self.is_alone or self._started_ns or self._control is not None:
            return None
        if self._arrays is None or self.use is not None or self.ends_anywhere:
            return None
        is_fixed = self._plan is self._executable.program.fixed_plan
        return cast("Batching", self._executable.batching) if is_fixed else None

    def gathered(self, run_queue: Any, now_ns: int) -> Work:
        """Return a batch that it begins, or itself; see `Work`."""
        found: Work = gathered(run_queue, self, now_ns)
        return found

    def end_as(self, batch: "Batch") -> None:
        """Have ended with a batch: outputs are in place."""
        self._shapes = self._plan.known_outputs
        self._started_ns, self._ended_ns = batch._started_ns, batch._ended_ns
        self._lessons = []  # it says nothing of what one takes by itself


class Batch(Run):
    """Members stacked along the first axes of one larger run."""

    def __init__(
        self,
        batching: Batching,
        executable: Executable,
        plan: Plan,
        arrays: list[Array],
        members: Sequence[Run],
    ) -> None:
        leader = members[0]
        execution = Execution((), (), (), executable, plan, arrays)
        super().__init__(executable, execution, DEFAULT_OPTIONS, leader.client)
        self.priority, self.cost = leader.priority, leader.cost
        self.members = members
        self._batching = batching
        inputs = len(plan.inputs)
        for place, whole in enumerate(arrays[:inputs]):
            for part, member in zip(_parts(whole, len(members)), members, strict=True):
                assert member._arrays is not None
                part[...] = member._arrays[place]

    def settle(self, members: Sequence[Any]) -> bool:
        """Copy outputs to ``members``; False if it has failed; see `Work`."""
        if self._error is not None or self._shapes is None:
            return False
        size, arrays, self._arrays = len(self.members), self._arrays, None
        if arrays is None:
            return True
        self._batching.observe(size, self.computed_ns)
        wholes = arrays[len(self._plan.inputs) :]
        split = len(self._plan.inputs)
        parted = [_parts(whole, size) for whole in wholes]
        waiting = set(members)
        for number, member in enumerate(self.members):
            if member in waiting:
                for parts, output in zip(parted, member._arrays[split:], strict=True):
                    output[...] = parts[number]
                member.end_as(self)
        self._batching.put_back(size, list(arrays))
        return True


def _parts(whole: Array, size: int) -> Array:
    """Return what is of each member, by a first axis more."""
    return whole.reshape(size, whole.shape[0] // size, *whole.shape[1:])


def _empty(plan: Plan) -> list[Array]:
    return [np.empty(port.shape or (), port.dtype) for port in plan.ports]


class BatchPreparations:
    """Prepares models for batches of up to ``most`` runs; once for all that are alike.

    ``most_ns`` is what a batch may take, ``most_bytes`` its memory; ``computing``
    limits threads as runs do.
    """

    def __init__(
        self,
        most: int,
        most_ns: int,
        most_bytes: int | None,
        computing: AbstractContextManager[object],
    ) -> None:
        self._sizes = [1 << bit for bit in range(1, most.bit_length())]
        self._most_ns = most_ns
        self._most_bytes = most_bytes
        self._computing = computing
        self._known = WeakValueDictionary[bytes, Batching]()

    def preparing(self, prepare: Callable[[], Steps[Compiled]]) -> Steps[Compiled]:
        """Prepare a model, and what its runs have in common as batches."""
        compiled = yield from prepare()
        is_low = compiled.priority is Priority.LOW
        key = _digest(compiled.program.source) + bytes([compiled.preference, is_low])
        yield
        known = self._known.get(key)
        if known is None:
            made = yield from self._made(compiled.program, makes_way=is_low)
            # Others may have made it between the steps: all are to have one.
            known = self._known.setdefault(key, made)
        return replace(compiled, batching=known)

    def _made(self, program: Program, *, makes_way: bool) -> Steps[Batching]:
        programs: dict[int, Program] = {}
        taken_ns: dict[int, int] = {}
        is_exact, why_not = True, "a batch takes longer than its members one by one"
        try:
            for size in self._sizes:
                model = batched_model(program, size)
                if not taken_ns:
                    taken_ns[1] = yield from self._timing(program)
                # A batch takes no less than a shorter one.
                if max(taken_ns.values()) * _MARGIN > self._most_ns:
                    why_not = "a batch takes longer than a time slice"
                    break
                given = model, None, program.extensions, program.delegate
                stacked = Program(*given, makes_way=makes_way, is_built=False)
                yield from stacked.building(self._most_bytes)
                is_same = yield from self._agreeing(program, stacked, size)
                taken_ns[size] = yield from self._timing(stacked)
                most_ns = min(size * taken_ns[1], self._most_ns / _MARGIN)
                if taken_ns[size] <= most_ns:
                    programs[size] = stacked
                    is_exact &= is_same
        except Exception as error:
            return Batching({}, {}, failure_of(error).message)
        batching = Batching(programs, taken_ns, "" if programs else why_not)
        batching.is_exact = is_exact
        return batching

    def _timing(self, program: Program) -> Steps[int]:
        """Return the least nanoseconds of some runs on zeros."""
        plan = program.fixed_plan
        assert plan is not None
        arrays = [np.zeros(port.shape or (), port.dtype) for port in plan.ports]
        taken_ns: list[int] = []
        # Two of whatever is too slow for a batch: the first one finds cold caches.
        while len(taken_ns) < 2 or (
            len(taken_ns) < _TRIALS and sum(taken_ns) < _TRIALS * self._most_ns
        ):
            yield
            with self._computing:
                begun_ns = perf_counter_ns()
                run_bound(program, plan, arrays)
                taken_ns.append(perf_counter_ns() - begun_ns)
        return min(taken_ns)

    def _agreeing(self, alone: Program, stacked: Program, size: int) -> Steps[bool]:
        """Compare outputs of unlike members with what each gets alone; if they agree.

        :raises GeneralFailureError: if one differs by more than `TOLERANCE`.
        """
        plan, whole = alone.fixed_plan, stacked.fixed_plan
        if plan is None or whole is None or len(plan.ports) != len(whole.ports):
            raise GeneralFailureError("the shapes of a batch are not always the same")
        for one, all_ in zip(plan.ports, whole.ports, strict=True):
            first, *rest = one.shape or (0,)
            if all_.shape != (size * first, *rest):
                raise GeneralFailureError("an output does not grow with the batch")
        split, chance = len(plan.inputs), np.random.default_rng(size)
        arrays = _empty(whole)
        for array in arrays[:split]:
            for member, part in enumerate(_parts(array, size)):
                part[...] = _random(chance, part, 4.0 ** (member % 7 - 3))
        yield
        with self._computing:
            run_bound(stacked, whole, arrays)
        is_same = True
        for member in range(size):
            own = [_parts(array, size)[member].copy() for array in arrays[:split]]
            made = [np.empty(port.shape or (), port.dtype) for port in plan.outputs]
            yield
            with self._computing:
                run_bound(alone, plan, [*own, *made])
            for expected, array in zip(made, arrays[split:], strict=True):
                got = _parts(array, size)[member]
                if got.tobytes() != expected.tobytes():
                    is_same = False
                    _check_close(got, expected)
        return is_same


def _digest(model: Model) -> bytes:
    digest = hashlib.sha256(msgspec.msgpack.encode(replace(model, pools=())))
    for pool in model.pools:
        digest.update(view(pool))
    return digest.digest()


def _random(chance: np.random.Generator, like: Array, scale: float) -> Array:
    if like.dtype.kind == "f":
        return chance.normal(0, scale, like.shape)
    if like.dtype.itemsize == 1:  # quantised numbers, all of which may come
        return np.frombuffer(chance.bytes(like.nbytes), like.dtype).reshape(like.shape)
    return chance.integers(0, 2, like.shape)


def _check_close(got: Array, expected: Array) -> None:
    if expected.dtype.kind == "f":
        largest = float(np.max(np.abs(expected), initial=0.0))
        bound = TOLERANCE * max(largest, TOLERANCE)
        if np.all(np.abs(got - expected) <= bound):  # not of NaN
            return
    raise GeneralFailureError("outputs of a batch differ from those of single runs")
