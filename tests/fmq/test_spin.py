"""Spinning gives up when it does not pay, and tries again when it may."""

from collections.abc import Callable

import pytest

from asyncnn.fmq import spin as spin_module
from asyncnn.fmq.spin import (
    BUDGET_NS,
    FEW_LOOKS,
    LOST_YIELD_NS,
    MANY_LOOKS,
    SHARED_YIELD_NS,
    SLOW_YIELD_NS,
    UNYIELDING_NS,
    AdaptiveSpinner,
    spin,
)

SEEN, OTHER = 0, 1


class Core:
    """A core on which each yield takes a while, after which things may happen."""

    def __init__(self) -> None:
        self.now = 0
        self.yields = 0
        self.yield_ns = 1000
        self.words = [SEEN]
        self.after_yield: Callable[[], None] = lambda: None
        self.after_look: Callable[[], None] = lambda: None

    def has_moved(self, counter: int, seen: int, looks: int) -> bool:
        self.now += looks
        self.after_look()
        return self.words[counter] != seen

    def clock(self) -> int:
        return self.now

    def yield_core(self) -> None:
        self.now += self.yield_ns
        self.yields += 1
        self.after_yield()

    def changes_after(self, yields: int) -> None:
        def change() -> None:
            if self.yields == yields:
                self.words[0] = OTHER

        self.yields, self.words[0], self.after_yield = 0, SEEN, change

    def spin(self, spinner: AdaptiveSpinner) -> bool:
        return spin(self.has_moved, 0, SEEN, spinner)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    core = Core()
    monkeypatch.setattr(spin_module, "clock", core.clock)
    monkeypatch.setattr(spin_module, "yield_core", core.yield_core)
    return core


@pytest.fixture
def spinner() -> AdaptiveSpinner:
    return AdaptiveSpinner()


def test_what_is_there_costs_nothing(core: Core, spinner: AdaptiveSpinner) -> None:
    core.words[0] = OTHER
    assert core.spin(spinner)
    assert core.yields == 0


@pytest.mark.parametrize("yields", [1, 5, 40])
def test_what_comes_soon_is_waited_for(
    core: Core, spinner: AdaptiveSpinner, yields: int
) -> None:
    core.changes_after(yields)
    assert core.spin(spinner)
    assert core.yields == yields


def test_the_budget_is_kept_and_two_waits_are_skipped_then(
    core: Core, spinner: AdaptiveSpinner
) -> None:
    assert not core.spin(spinner)
    assert BUDGET_NS < core.now <= BUDGET_NS + 2 * core.yield_ns
    core.yields = 0
    assert not core.spin(spinner)
    assert not core.spin(spinner)
    assert core.yields == 0
    assert not core.spin(spinner)
    assert core.yields > 0


def test_a_skipped_wait_still_looks(core: Core, spinner: AdaptiveSpinner) -> None:
    core.spin(spinner)
    core.words[0] = OTHER
    assert core.spin(spinner)


@pytest.mark.parametrize(
    ("yield_ns", "looks"),
    [(SHARED_YIELD_NS, MANY_LOOKS), (SHARED_YIELD_NS + 1, FEW_LOOKS)],
)
def test_a_shared_core_is_given_away_more_often(
    core: Core, spinner: AdaptiveSpinner, yield_ns: int, looks: int
) -> None:
    core.yield_ns = yield_ns
    core.changes_after(3)
    assert core.spin(spinner)
    assert spinner.looks == looks


def test_a_slow_yield_ends_the_wait(core: Core, spinner: AdaptiveSpinner) -> None:
    core.yield_ns = SLOW_YIELD_NS + 1
    assert not core.spin(spinner)
    assert core.yields == 1
    core.changes_after(1)
    assert core.spin(spinner)  # it had come meanwhile


def slow_yields(core: Core, spinner: AdaptiveSpinner, waits: int) -> int:
    core.changes_after(0)
    core.yield_ns = LOST_YIELD_NS + 1
    for _ in range(waits):
        core.spin(spinner)
    return core.yields


def test_a_busy_core_is_tried_ever_less_often(
    core: Core, spinner: AdaptiveSpinner
) -> None:
    assert slow_yields(core, spinner, 100) >= 3
    assert slow_yields(core, spinner, 1000) <= 3
    assert slow_yields(core, spinner, 50_000) >= 6


def test_on_a_busy_core_one_looks_on_without_giving_it_away(
    core: Core, spinner: AdaptiveSpinner
) -> None:
    slow_yields(core, spinner, 100)
    core.yields = 0

    def come() -> None:
        if core.now > begun + UNYIELDING_NS // 2:
            core.words[0] = OTHER

    core.after_look = come
    hits = []
    for _ in range(2000):
        core.words[0], begun = SEEN, core.now
        hits.append(core.spin(spinner))
    assert sum(hits[1000:]) > 990
    assert core.yields <= 3


def test_looking_on_in_vain_becomes_rare(core: Core, spinner: AdaptiveSpinner) -> None:
    slow_yields(core, spinner, 100)
    core.yields = 0
    core.yield_ns, begun = LOST_YIELD_NS + 1, core.now
    for _ in range(2000):
        core.spin(spinner)
    looked_ns = core.now - begun - core.yields * core.yield_ns
    assert looked_ns < 10 * UNYIELDING_NS + 2000 * 2 * MANY_LOOKS


def test_nobody_looks_on_for_a_peer_that_takes_its_time(
    core: Core, spinner: AdaptiveSpinner
) -> None:
    assert not core.spin(spinner)
    begun = core.now
    assert not core.spin(spinner)
    assert core.now - begun <= MANY_LOOKS


def test_a_core_that_is_free_again_is_soon_used(
    core: Core, spinner: AdaptiveSpinner
) -> None:
    slow_yields(core, spinner, 100)
    core.yield_ns = 1000
    hits = 0
    for _ in range(2000):
        core.changes_after(2)
        hits += core.spin(spinner)
    assert hits > 900
    # One that is slow now and then is not a busy one.
    assert slow_yields(core, spinner, 1) == 1
    core.yield_ns = 1000
    core.changes_after(1)
    assert not core.spin(spinner)
    core.changes_after(1)
    assert core.spin(spinner)


def test_others_are_served_between_looks(core: Core, spinner: AdaptiveSpinner) -> None:
    def serve() -> None:
        core.words[0] = OTHER

    assert spin(core.has_moved, 0, SEEN, spinner, serve)
    assert core.yields == 0
