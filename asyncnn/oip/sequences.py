"""Sequences of requests: each is a session of a model with state."""

import asyncio
from functools import partial
from typing import TypeAlias

from asyncnn.execution import Outputs
from asyncnn.hal.errors import InvalidArgumentError, too_many
from asyncnn.oip.admission import AskedRun, OipLimits
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.requests import Inputs
from asyncnn.runtime.session import Session

_Key: TypeAlias = tuple[object, int | str]


class _Sequence:
    """An open session; ``idle`` ends it, unless a request comes before."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.idle: asyncio.TimerHandle | None = None
        self.steps_under_way = 0

    def close(self) -> None:
        self.rest()
        if self.session is not None:
            self.session.close()

    def rest(self) -> None:
        if self.idle is not None:
            self.idle.cancel()


class Sequences:
    """Sessions by model and id, from the request that starts one to that which ends it.

    One whose client has gone ends when it has been idle. Whoever knows an id of a model
    takes part in its sequence.
    """

    def __init__(self, limits: OipLimits) -> None:
        self._limits = limits
        self._open: dict[_Key, _Sequence] = {}

    async def step(
        self, owner: object, prepared: PreparedModel, inputs: Inputs, wanted: AskedRun
    ) -> Outputs:
        """Run one step of a sequence; it is started and ended as the request says.

        A sequence that starts again begins with the first values of its state.

        :raises InvalidArgumentError: if it has not started, or the model has no state.
        :raises ResourceExhaustedTransientError: if too many are open.
        :raises AsyncnnError: as `Session.run`.
        """
        key = owner, wanted.sequence
        if wanted.starts:
            sequence = await self._start(key, prepared)
        else:
            found = self._open.get(key)
            if found is None or found.session is None:
                raise InvalidArgumentError(
                    f"no sequence {wanted.sequence!r} of this model has started",
                    hint="its first request has sequence_start",
                )
            sequence = found
        sequence.rest()
        sequence.steps_under_way += 1
        assert sequence.session is not None
        try:
            return await sequence.session.run(inputs, timeout=wanted.timeout)
        finally:
            sequence.steps_under_way -= 1
            if wanted.ends:
                self._end(key, sequence)
            elif not sequence.steps_under_way:
                ending = partial(self._end, key, sequence)
                after_s = self._limits.sequence_idle_s
                loop = asyncio.get_running_loop()
                if self._open.get(key) is sequence:
                    sequence.idle = loop.call_later(after_s, ending)

    async def _start(self, key: _Key, prepared: PreparedModel) -> _Sequence:
        before = self._open.pop(key, None)
        if before is not None:
            before.close()
        most = self._limits.max_sequences
        if len(self._open) >= most:
            raise too_many("sequences", "OipLimits.max_sequences", most)
        sequence = self._open[key] = _Sequence()  # it counts from here on
        try:
            session = await prepared.session()
        except BaseException:
            self._end(key, sequence)
            raise
        sequence.session = session
        if self._open.get(key) is not sequence:
            session.close()  # another request has started it again meanwhile
        return sequence

    def _end(self, key: _Key, sequence: _Sequence) -> None:
        sequence.close()
        if self._open.get(key) is sequence:
            del self._open[key]

    def close(self, owner: object = None) -> None:
        """End all sequences, or all of one owner."""
        for key, sequence in list(self._open.items()):
            if owner is None or key[0] is owner:
                self._end(key, sequence)
