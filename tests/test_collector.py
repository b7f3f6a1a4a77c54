"""Full collections keep away from large structures."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from asyncnn.interpreter_hooks import MOST_IMMORTAL, building_large, freezing_allowed
from tests.devices.process_facts import frozen_count
from tests.forks import in_child_blocking


@pytest.fixture(autouse=True)
def usual_collector(thawed: None) -> Iterator[None]:
    before = gc.get_threshold(), frozen_count()
    yield
    assert (gc.get_threshold(), frozen_count()) == before


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generations that are collected."""
    seen: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(look)
    yield seen
    gc.callbacks.remove(look)


def build(count: int = 300_000) -> list[list[int]]:
    return [[number] for number in range(count)]


def test_without_care_full_collections_come(collections: list[int]) -> None:
    build()
    assert 2 in collections


def test_no_full_collection_comes_while_something_large_is_built(
    collections: list[int],
) -> None:
    with building_large():
        built = build()
        with building_large():  # as by another thread
            built += build()
    assert 1 in collections
    assert 2 not in collections


def test_what_is_frozen_is_not_counted_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter counts one by one, and does nothing else meanwhile."""
    counted: list[int] = []
    count = gc.get_freeze_count

    def counting() -> int:
        counted.append(count())
        return counted[-1]

    monkeypatch.setattr(gc, "get_freeze_count", counting)
    with freezing_allowed():
        for _ in range(3):
            with building_large():
                built = build(10_000)
        assert count() >= len(built)
    assert len(counted) == 1


def test_what_was_built_is_left_out_until_nobody_allows_it_any_more() -> None:
    frozen, others = frozen_count(), len(gc.get_objects())
    with freezing_allowed():
        with building_large():
            built = build(1000)
        assert frozen_count() >= frozen + len(built)
        del built
        assert frozen_count() < frozen + others + 10**5
    assert not frozen_count()


def test_what_the_application_has_frozen_stays_so() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with freezing_allowed(), building_large():
            build(1000)
        assert gc.get_freeze_count() >= frozen
    finally:
        gc.unfreeze()


def test_the_collector_alone_freezes_few() -> None:
    gc.collect()
    assert gc.get_freeze_count() <= MOST_IMMORTAL


def test_nothing_is_frozen_that_nobody_allows() -> None:
    frozen = frozen_count()
    with building_large():
        build(1000)
    assert frozen_count() == frozen


def test_a_threshold_that_is_set_meanwhile_stays() -> None:
    before = gc.get_threshold()
    with building_large():
        gc.set_threshold(777, 7, 7)
    assert gc.get_threshold() == (777, 7, 7)
    gc.set_threshold(*before)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with freezing_allowed(), building_large():
            build(1000)
        assert not gc.isenabled()
        assert not frozen_count()
    finally:
        gc.enable()


def test_a_forked_child_that_leaves_its_parents_blocks_counts_its_own_alone() -> None:
    blocks = ExitStack()

    def act() -> None:
        blocks.close()
        with building_large():
            assert gc.get_threshold()[2] > 2**30
        assert not frozen_count()

    with blocks:
        blocks.enter_context(freezing_allowed())
        blocks.enter_context(building_large())
        in_child_blocking(act)
