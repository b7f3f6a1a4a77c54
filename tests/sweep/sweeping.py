"""The cancellation sweep: a scenario is cancelled here, there and everywhere.

A scenario is a coroutine function of a `Stage`, listed by `scenario` in one of the
modules ``scenarios_*``: it uses a part of asyncnn and asserts that the results are
right. It runs again and again, cancelled at its first suspension, its second, until it
runs through; where it suspends again to clean up, it is also cancelled twice. After
each attempt

* the task was cancelled, in bounded time;
* every callback was notified exactly once, and no device has work any more;
* there is no descriptor, mapping, name in /dev/shm, thread, task or timer more than
  before, in this process and in a driver's;
* nothing was logged as an error by asyncnn or asyncio;
* what must be true of the scenario's own (`Witness.notice`) is;
* the device still runs a model, and the scenario runs through.

Each scenario is swept in its homes (`stages`), in every `Order` of cancellation, on
every kind of event loop. To add one, write the function; a new module of scenarios is
imported by ``test_sweep``. Keep to a few dozen suspensions, and let nothing depend on
time. What takes long because it starts processes is ``slow``: it is cancelled once in
each place, on one kind of loop and in one order.

A failure names scenario, home, loop, order and suspension, with the frames that were
suspended there. One case alone runs by

    pytest tests/sweep -k "burst-running-remote-uvloop-when-done"
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from tests.sweep.cutting import Cut, Order, suspended_in
from tests.sweep.witness import Witness

LIMIT_S = 10.0
"""How long an attempt may take."""

MAX_SUSPENSIONS = 150

ENDED, CANCELLED = "ended", "cancelled"

Play = Callable[[], Coroutine[Any, Any, object]]
Check = Callable[[], Awaitable[None]]


class Totals(msgspec.Struct):
    """What all sweeps of a session have done."""

    scenarios: set[str] = set()
    cancellations: int = 0

    def __str__(self) -> str:
        return f"{len(self.scenarios)} scenarios, {self.cancellations} cancellations"


class Swept(msgspec.Struct):
    """How often a scenario was cancelled, and what was wrong then."""

    cancellations: int = 0
    faults: list[str] = []


class HungError(Exception):
    """A scenario neither ends nor goes on; what follows would say nothing."""


async def sweep(
    play: Play, order: Order, witness: Witness, check: Check, *, is_slow: bool = False
) -> Swept:
    """Cancel what ``play`` returns at each of its suspensions.

    ``check`` raises if what remains is not usable. After each cancellation the scenario
    has to run through, unless it ``is_slow``; then it is cancelled once in each place.
    """
    swept = Swept()
    try:
        for _ in range(1 if is_slow else 2):  # then all that is kept for good is there
            await check()
            outcome = await _ended(Cut(play()))
            if outcome != ENDED:
                swept.faults.append(f"left alone: {outcome}")
                return swept
        await check()
        await witness.remember()
        for at in range(1, MAX_SUSPENSIONS):
            for again in (False, True):
                cut = Cut(play(), at, order, again=again, once_each=is_slow)
                outcome = await _ended(cut)
                if not cut.was_made:
                    faults = [outcome] * (outcome != ENDED) + await witness.settled()
                    swept.faults += [f"left alone: {fault}" for fault in faults]
                    return swept
                faults = [f"was not cancelled, but {outcome}"] * (outcome != CANCELLED)
                faults += await _faults_after(witness, check, None if is_slow else play)
                which = (
                    f"suspension {at} and at the next" if again else f"suspension {at}"
                )
                swept.faults += [_at(cut, which, fault) for fault in faults]
                swept.cancellations += 1
                if not cut.cleans_up:
                    break
    except HungError as hung:
        swept.faults.append(str(hung))
        return swept
    swept.faults.append(f"did not run through within {MAX_SUSPENSIONS} suspensions")
    return swept


async def _faults_after(witness: Witness, check: Check, play: Play | None) -> list[str]:
    """Return what is wrong after a cancellation.

    Last of all ``check`` is played, as before each count of what is held: what is kept
    of the latest execution, and only of that, is the same each time.
    """
    faults = []
    await witness.quiet()
    if play is not None:
        outcome = await _ended(Cut(play()))
        faults += [f"does not run through afterwards: {outcome}"] * (outcome != ENDED)
    try:
        await check()
    except Exception:
        faults.append(f"not usable afterwards: {traceback.format_exc()}")
    return faults + await witness.settled()


async def _ended(cut: Cut) -> str:
    """Run a scenario to its end; return what became of it.

    :raises HungError: if it has no end.
    """
    task = asyncio.create_task(cut.run())
    await asyncio.wait({task}, timeout=LIMIT_S)
    if not task.done():
        where = "\n    ".join(suspended_in(cut.coroutine))
        task.cancel()
        await asyncio.wait({task}, timeout=1)
        raise HungError(_at(cut, "some suspension", f"hangs in\n    {where}"))
    if task.cancelled():
        return CANCELLED
    error = task.exception()
    return ENDED if error is None else "".join(traceback.format_exception(error))


def _at(cut: Cut, which: str, fault: str) -> str:
    if not cut.was_made:
        return f"left alone: {fault}"
    where = "".join(f"\n    {frame}" for frame in cut.place)
    return f"cancelled at {which}: {fault}\n  when suspended in{where}"


totals = Totals()
