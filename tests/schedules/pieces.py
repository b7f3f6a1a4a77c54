"""Schedules of the scheduler and of fences: work whose steps only pass time."""

import asyncio
import threading
from functools import partial
from typing import Any

from asyncnn.fences.core import Gate
from asyncnn.fences.fence import FenceSource, SyncFence
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Client, Pause, Policy, Scheduler, Work
from asyncnn.qos.work import JobState
from tests.schedules.native import DONE, SteppingPort
from tests.schedules.world import World

NONE, MISSED = ErrorStatus.NONE, ErrorStatus.MISSED_DEADLINE_TRANSIENT
CANCELLED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
POLICY = Policy(starvation_limit_ns=10**12)
"""Nothing starves, so that an order of priorities holds without exception."""

LONGEST_STEP_NS = 2_000_000
MOST_TURNS_LATE = 8
"""Turns of the loop after its deadline in which work ends that has not begun.

It is one, but for a lane that is stopped with what it has found to be late.
"""


class Piece(Work):
    """Work in steps; it notes what must not happen."""

    def __init__(self, world: World, pieces: "list[Piece]", client: Client) -> None:
        chance = world.chance
        deadline_ns = None
        if chance.random() < 0.3:
            deadline_ns = world.now_ns + chance.randrange(1, 30_000_000)
        priority = chance.choice(tuple(Priority))
        super().__init__(priority, deadline_ns, client=client)
        self.world = world
        self.pieces = pieces
        count = chance.randint(1, 5)
        self.steps = [chance.randrange(1, LONGEST_STEP_NS) for _ in range(count)]
        self.should_inline = chance.random() < 0.1
        self.raises = chance.random() < 0.05
        self.goes_native = chance.random() < 0.5
        if chance.random() < 0.3:
            self.decision = threading.Lock()
        self.aborted = NONE
        self.ends: list[ErrorStatus] = []
        self.is_running = self.has_begun = False
        self.due_turn: int | None = None
        self.faults: list[str] = []
        pieces.append(self)

    def offer(self, idle: list[Any]) -> bool:
        """Have a native lane take the steps, as a rule."""
        if self.world.chance.random() < 0.1:
            return False
        lane = idle.pop()
        lane.work = self
        lane.thread.give(lane, self)
        return True

    def come_back(self, outcome: Any, *_: int) -> bool:
        """Return whether it has come to its end on a native lane."""
        return bool(outcome == DONE)

    def advance(self, pause: Pause) -> bool:
        """Take steps until the end, or to a pause."""
        if self.raises:
            raise ValueError("as it is meant to")
        return self.take_steps(pause)

    def take_steps(self, pause: Pause) -> bool:
        """Take them on any lane."""
        if self.is_running:
            self.faults.append("is run twice at a time")
        if self.ends and not self.is_left:
            self.faults.append("is run after its end")
        if not self.has_begun:
            self.has_begun = True
            self._check_order()
        self.is_running = True
        try:
            return self._advance(pause)
        finally:
            self.is_running = False

    def _advance(self, pause: Pause) -> bool:
        while self.steps and self.aborted is NONE:
            if self.deadline_ns is not None and self.world.now_ns >= self.deadline_ns:
                self.aborted = MISSED
                break
            if self.ends and not self.is_left:
                self.faults.append("goes on after its end")
            self.world.spend(self.steps.pop())
            if self.steps and pause.requested:
                return False
        if self.decision is not None and self.aborted is NONE:
            self.decides()
        return True

    def _check_order(self) -> None:
        for other in self.pieces:
            waits = other.state is JobState.WAITING and other.aborted is NONE
            is_of_it = other.client is self.client and not self.should_inline
            is_urgent = waits and is_of_it and other.priority > self.priority
            if is_urgent and other.added_ns < self.resumed_ns:
                self.faults.append(f"begins before one of {other.priority.name}")

    def abort(self, status: ErrorStatus) -> None:
        """Have it stop."""
        if self.aborted is NONE:
            self.aborted = status

    def finish(self) -> ErrorStatus:
        """Note the end."""
        self.ends.append(self.aborted)
        if len(self.ends) > 1:
            self.faults.append("ends twice")
        if self.is_running and not self.is_left:
            self.faults.append("ends while it runs")
        if self.due_turn is not None and not self.has_begun:
            late = self.world.turns - self.due_turn
            if late > MOST_TURNS_LATE:
                self.faults.append(f"ends {late} turns after its deadline")
        return self.aborted

    def note_due(self) -> None:
        """Note that its deadline has passed while it waits, in this turn."""
        if self.state is JobState.WAITING:  # else a lane is about to report it
            self.due_turn = self.world.turns


async def scheduler(world: World) -> list[str]:
    """Submit work, cancel some, close in the end or in the middle."""
    chance, pieces = world.chance, list[Piece]()
    clients = [Client(f"client {n}") for n in range(chance.randint(1, 3))]
    runs = Scheduler(
        "lane",
        max_pending=chance.choice((4, 64)),
        lanes=chance.randint(1, 3),
        policy=POLICY,
        stuck_after_s=chance.choice((0.0, 30.0)),
        make_port=chance.choice((None, partial(SteppingPort, world))),
    )
    accepted: list[Piece] = []
    loop = asyncio.get_running_loop()

    def submit(by_thread: bool) -> Piece | None:
        piece = Piece(world, pieces, chance.choice(clients))
        try:
            (runs.submit_threadsafe if by_thread else runs.submit)(piece)
        except AsyncnnError:
            if piece.ends or piece.has_begun:
                piece.faults.append("is refused, and runs")
            return None
        accepted.append(piece)
        if piece.deadline_ns is not None and not by_thread:
            loop.call_at(piece.deadline_ns / 1e9, piece.note_due)
        return piece

    async def use() -> None:
        await asyncio.sleep(chance.random() * 0.01)
        piece = submit(False)
        if piece is not None and chance.random() < 0.4:
            await asyncio.sleep(chance.random() * 0.01)
            runs.cancel(piece, CANCELLED)

    def use_threadsafe() -> None:
        piece = submit(True)
        if piece is not None and chance.random() < 0.4:
            world.spend(chance.randrange(10_000_000))
            runs.cancel_threadsafe(piece, CANCELLED)

    def on_a_thread() -> None:
        threading.Thread(target=use_threadsafe).start()

    for _ in range(chance.randint(0, 4)):
        loop.call_later(chance.random() * 0.01, on_a_thread)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(chance.randint(3, 12)):
            tasks.create_task(use())
    if chance.random() < 0.7:
        async with asyncio.timeout(10):
            while not all(piece.ends for piece in accepted):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
    if chance.random() < 0.3:
        runs.retire()
    await runs.aclose()
    await asyncio.sleep(0.02)  # those who submit on threads
    faults = [f"{n}: {fault}" for n, p in enumerate(pieces) for fault in p.faults]
    faults += [
        f"{pieces.index(piece)}: is lost" for piece in accepted if not piece.ends
    ]
    return faults + [f"{runs.pending} pending" for _ in range(runs.pending > 0)]


async def fences(world: World) -> list[str]:
    """Let gates wait for fences that threads and tasks signal, or drop."""
    chance = world.chance
    made = [SyncFence.pair() for _ in range(chance.randint(1, 8))]
    fences, sources = [f for f, _ in made], [s for _, s in made]
    del made
    opened: dict[int, list[AsyncnnError | None]] = {}
    gates: list[Gate] = []
    waits: list[list[int]] = []
    closed: set[int] = set()
    due: list[int | None] = []

    def signal(source: FenceSource) -> None:
        if chance.random() < 0.2:
            source.fail(ErrorStatus.GENERAL_FAILURE, "as it is meant to")
        else:
            source.signal()

    def note(number: int, error: AsyncnnError | None) -> None:
        opened[number].append(error)
        if number < len(gates):  # else nobody has it yet
            gates[number].close()

    for number in range(chance.randint(1, 6)):
        waits.append(chance.sample(range(len(fences)), chance.randint(1, len(fences))))
        opened[number] = []
        late_ns = chance.choice((None, world.now_ns + chance.randrange(20_000_000)))
        due.append(late_ns)
        told = partial(note, number)
        gates.append(Gate([fences[n] for n in waits[-1]], late_ns, told))
    awaiting = [asyncio.ensure_future(fence.wait()) for fence in fences]
    loop = asyncio.get_running_loop()
    while sources:
        source = sources.pop(chance.randrange(len(sources)))
        how, delay = chance.random(), chance.random() * 0.01
        if how < 0.4:
            loop.call_later(delay, signal, source)
        elif how < 0.9:
            thread = threading.Thread(target=signal, args=(source,))
            loop.call_later(delay, thread.start)
            del thread
        del source  # else it fails here, as nobody can signal it
        if chance.random() < 0.2:
            number = chance.randrange(len(gates))
            if not opened[number]:
                gates[number].close()
                closed.add(number)
    async with asyncio.timeout(10):
        await asyncio.gather(*awaiting, return_exceptions=True)
    await asyncio.sleep(0.05)
    faults = []
    statuses = [int(fence.status or 0) for fence in fences]
    for number, ends in opened.items():
        failed = any(statuses[n] for n in waits[number])
        if len(ends) != (number not in closed):
            faults.append(f"gate {number} opened {len(ends)} times")
        elif ends and due[number] is None and (ends[0] is not None) != failed:
            faults.append(f"gate {number} opened with {ends[0]}")
        elif ends and ends[0] is None and failed:
            faults.append(f"gate {number} opened in spite of a failure")
    for fence in fences:
        fence.close()
    return faults
