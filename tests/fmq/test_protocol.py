"""No wake-up is lost, in any interleaving that x86-TSO allows.

The two programs below are what `Ring` and `MessageQueue` do, step by step: one end
changes its counter and wakes the other, which sleeps until the counter has changed. It
is the same for a reader who waits for packets and a writer who waits for room.
"""

import pytest

from tests.fmq.tso import (
    Jump,
    Registers,
    Step,
    assembled,
    compute,
    fence,
    load,
    ring,
    silence,
    sleep,
    store,
    stuck_states,
)

COUNTER, FLAG = 0, 1
CHANGES = 3

LOADED, SEEN = 0, 1
"""Registers: what was loaded last, and how far the sleeper has come."""


def changer(*, fences: bool = True, clears: str = "before ringing") -> list[Step]:
    """Change the counter a few times, as `Ring.write_nowait` does."""
    clear = store(FLAG, lambda _: 0)
    wake = {
        "before ringing": [clear, ring],
        "after ringing": [ring, clear],
        "never": [ring],
    }[clears]
    program: list[Step | Jump | str] = []
    for number in range(1, CHANGES + 1):
        program += [
            store(COUNTER, lambda _, number=number: number),
            *[fence] * fences,
            load(LOADED, FLAG),
            Jump(f"changed {number}", lambda registers: not registers[LOADED]),
            *wake,
            f"changed {number}",
        ]
    return assembled(program)


def sleeper(
    *, fences: bool = True, looks_again: bool = True, silences: str = "once awake"
) -> list[Step]:
    """Wait for each change, as `MessageQueue.read` does."""
    look = [load(LOADED, COUNTER), Jump("awake", has_changed)]
    return assembled(
        [
            "read",
            load(LOADED, COUNTER),
            Jump("take", has_changed),
            store(FLAG, lambda _: 1),
            *[silence] * (silences == "before sleeping"),
            *[fence] * fences,
            *look * looks_again,
            sleep,
            *[silence] * (silences == "once awake"),
            "awake",
            store(FLAG, lambda _: 0),
            Jump("read", lambda _: True),
            "take",
            compute(SEEN, lambda registers: registers[LOADED]),
            Jump("read", lambda registers: registers[SEEN] < CHANGES),
        ]
    )


def has_changed(registers: Registers) -> bool:
    return registers[LOADED] != registers[SEEN]


def sleeps_through(ours: list[Step], theirs: list[Step]) -> bool:
    """Return whether the sleeper may stop for good with changes it has not seen."""
    ends = list(stuck_states((ours, theirs), words=2))
    assert ends
    return any(end.processes[1].at < len(theirs) for end in ends)


def test_with_fences_on_both_sides_no_wake_up_is_lost() -> None:
    assert not sleeps_through(changer(), sleeper())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (changer(fences=False), sleeper()),
        (changer(), sleeper(fences=False)),
        (changer(fences=False), sleeper(fences=False)),
        (changer(), sleeper(looks_again=False)),
        (changer(clears="after ringing"), sleeper()),
        (changer(), sleeper(silences="before sleeping")),
    ],
    ids=[
        "no fence after the change",
        "no fence after the announcement",
        "no fence at all",
        "no second look",
        "announcement cleared after ringing",
        "bell silenced after the announcement",
    ],
)
def test_without_any_part_of_the_protocol_one_is(
    ours: list[Step], theirs: list[Step]
) -> None:
    assert sleeps_through(ours, theirs)


def test_clearing_the_announcement_only_saves_rings() -> None:
    assert not sleeps_through(changer(clears="never"), sleeper())
