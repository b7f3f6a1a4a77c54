"""The benchmark of responsiveness, with small models."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench import activities
from asyncnn.tools.bench import bench_responsiveness as measuring
from asyncnn.tools.bench.activities import (
    ACTIVITIES,
    IDLE,
    Activity,
    Pulse,
    Scene,
    Sizes,
    Watched,
)
from asyncnn.tools.bench.bench_responsiveness import (
    DISTURBED_MS,
    DRIVER,
    LONGEST_MS,
    MAX_ATTEMPTS,
    P99_BELOW_MS,
    SIDES,
    is_disturbed,
    judge_pulses,
)
from asyncnn.tools.bench.rounds import Order

SMALL = Sizes(operations=8, input_bytes=4 * 4096)
LATE, MUCH = LONGEST_MS + 1, DISTURBED_MS + 1


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listen for an instant only."""
    for name in ("_LEAST_S", "_AFTERWARDS_S"):
        monkeypatch.setattr(measuring, name, 0.005)
    monkeypatch.setattr(measuring, "_RESTING_S", -2.0)
    monkeypatch.setattr(activities, "_SETTLING_S", 0.0)


def pulse(longest_ms: float, waited_ms: float = 0.0, p99_ms: float = 1.0) -> Pulse:
    return Pulse(100, 0.5, p99_ms, longest_ms, waited_ms)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("hasty")
def test_every_activity_is_heard_from_every_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "MAX_ATTEMPTS", 1)
    report = measuring.bench(Order(rounds=1), sizes=SMALL)
    found = report.document["heard"]
    heard = {(each.activity, each.side) for each in found}
    assert heard == {(activity, side) for activity in ACTIVITIES for side in SIDES}
    assert all(len(each.pulses) == 1 for each in found)


@pytest.mark.usefixtures("hasty")
def test_a_filter_leaves_what_matches_and_idle_loops() -> None:
    seen: list[str] = []

    def note(names: Sequence[str]) -> Iterator[str]:
        seen.extend(names)
        yield from names

    report = measuring.bench(Order(rounds=1, pattern="q*", progress=note), sizes=SMALL)
    assert {each.activity for each in report.document["heard"]} == {IDLE, "query"}
    assert seen == [IDLE, "query"] * 2  # with a driver process and without


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (pulse(LATE, MUCH), True),
        (pulse(LATE, DISTURBED_MS), False),
        (pulse(LONGEST_MS, MUCH), False),
        (pulse(10, MUCH, p99_ms=P99_BELOW_MS), True),
    ],
    ids=["late and waiting", "late by itself", "in time", "often late and waiting"],
)
def test_a_miss_is_the_machines_if_a_loop_waited_for_it(
    heard: Pulse, expected: bool
) -> None:
    assert is_disturbed(heard) is expected


@pytest.mark.parametrize(
    ("waits", "watched"),
    [([0.0], 1), ([MUCH, 0.0], 2), ([MUCH] * 9, MAX_ATTEMPTS)],
    ids=["undisturbed", "disturbed once", "disturbed without end"],
)
@pytest.mark.usefixtures("hasty")
def test_a_disturbed_attempt_is_repeated_and_the_best_counts(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], watched: int
) -> None:
    attempts: list[Pulse] = []

    async def watch(*_: object) -> dict[str, Pulse]:
        number = len(attempts) % watched
        attempts.append(pulse(LATE + 10 * number, waits[number]))
        return {"in_process": attempts[-1]}

    @asynccontextmanager
    async def bench(*_: object, **__: object) -> AsyncIterator[tuple[Scene, object]]:
        async with open_device() as device:
            yield Scene(device, device, Path(), SMALL), watch

    async def make(_: Scene) -> Watched:
        return device_is_left_alone

    async def device_is_left_alone() -> None: ...

    monkeypatch.setattr(measuring, "ACTIVITIES", {IDLE: Activity("nothing", make)})
    monkeypatch.setattr(measuring, "_opened", bench)
    report = measuring.bench(Order(rounds=1), sizes=SMALL)
    assert len(attempts) == 2 * watched  # with a driver process and without
    (heard,) = report.document["heard"]
    assert heard.longest_ms == LATE
    assert report.document["repeated"][IDLE] == 2 * (watched - 1)


async def test_a_model_that_is_not_in_the_cache_is_not_taken_for_loaded(
    tmp_path: Path,
) -> None:
    async with open_device(cache_dir=tmp_path) as device:
        stage = Scene(device, device, tmp_path, SMALL)
        with pytest.raises(GeneralFailureError, match="not loaded"):
            await stage.loaded(stage.model())


@pytest.mark.parametrize(
    ("p99_ms", "longest_ms", "met"),
    [
        (P99_BELOW_MS - 0.01, LONGEST_MS, True),
        (P99_BELOW_MS, LONGEST_MS, False),
        (1.0, LONGEST_MS + 0.01, False),
    ],
)
def test_both_goals_have_their_limits(
    p99_ms: float, longest_ms: float, met: bool
) -> None:
    assert (
        judge_pulses("prepare", DRIVER, [pulse(longest_ms, p99_ms=p99_ms)]).met is met
    )


def test_the_longest_gap_of_any_round_counts_and_the_median_p99() -> None:
    pulses = [pulse(3, p99_ms=1), pulse(30, p99_ms=2), pulse(3, p99_ms=9)]
    heard = judge_pulses("prepare", DRIVER, pulses)
    assert (heard.p99_ms, heard.longest_ms, heard.met) == (2, 30, False)
