"""Fences that stand for several others."""

import asyncio
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.fences import FenceSource, FenceState, SyncFence, merge
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
)
from asyncnn.hal.types import ErrorStatus
from tests.fences.conftest import Made

LATE = ErrorStatus.MISSED_DEADLINE_TRANSIENT
BROKEN = ErrorStatus.GENERAL_FAILURE


def pairs(count: int) -> tuple[list[SyncFence], list[FenceSource]]:
    made = [SyncFence.pair() for _ in range(count)]
    return [fence for fence, _ in made], [source for _, source in made]


async def test_it_is_signalled_once_all_are(made: Made) -> None:
    other, source = SyncFence.pair()
    merged = merge(made.fence, other)
    made.signal()
    await made.fence.wait(20)
    await asyncio.sleep(0.001)
    assert merged.state is FenceState.ACTIVE
    source.signal()
    await merged.wait(20)


async def test_it_fails_with_the_first_error_and_its_cause() -> None:
    fences, sources = pairs(3)
    merged = merge(*fences)
    sources[0].signal()
    sources[2].fail(LATE, "stage 3 was late")
    sources[1].fail(BROKEN, "after that")
    with pytest.raises(MissedDeadlineTransientError, match="stage 3 was late"):
        await merged.wait(20)


async def test_an_error_lets_go_of_the_other_fences() -> None:
    fences, sources = pairs(2)
    merged = merge(fences[0], SyncFence.from_fd(fences[1].fileno()))
    sources[0].fail(LATE)
    with pytest.raises(AsyncnnError):
        await merged.wait(20)
    del fences, merged
    gc.collect()  # the watch over leaks would see the reader of the second one


def test_without_a_loop_fences_that_are_done_can_be_merged() -> None:
    assert merge().status is ErrorStatus.NONE
    assert merge(SyncFence.signalled()).status is ErrorStatus.NONE
    failed = merge(SyncFence.signalled(), SyncFence.failed(LATE, "why"))
    assert (failed.status, failed.reason) == (LATE, "why")


def test_a_loop_must_watch_over_active_fences(made: Made) -> None:
    with pytest.raises(RuntimeError):
        merge(made.fence)


async def test_a_closed_fence_cannot_be_merged() -> None:
    fence, _ = SyncFence.pair()
    fence.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        merge(SyncFence.signalled(), fence)


async def test_the_merged_fences_may_be_closed(made: Made) -> None:
    merged = merge(made.fence, made.fence)
    made.fence.close()
    made.signal()
    await merged.wait(20)


async def test_thousands_can_be_merged() -> None:
    fences, sources = pairs(5000)
    merged = merge(*fences)
    for source in sources:
        source.signal()
    await merged.wait(10)


async def test_merges_of_merges_need_no_stack() -> None:
    fence, source = SyncFence.pair()
    other = SyncFence.signalled()
    for _ in range(3000):
        fence = merge(fence, other)
    source.fail(LATE, "the very first")
    with pytest.raises(MissedDeadlineTransientError, match="the very first"):
        await fence.wait(10)


def test_a_loop_that_is_gone_leaves_an_error() -> None:
    fences, sources = pairs(1)

    async def leave() -> SyncFence:
        return merge(*fences)

    merged = asyncio.run(leave())
    fences.clear()
    sources.clear()
    gc.collect()
    assert merged.status is ErrorStatus.DEVICE_UNAVAILABLE


@given(data=st.data())
async def test_any_tree_of_merges_and_duplicates_agrees_with_its_leaves(
    data: st.DataObject,
) -> None:
    await check_tree(data)  # in a frame of its own: hypothesis keeps this one


async def check_tree(data: st.DataObject) -> None:
    """A node is a merge of earlier ones, or another view of one: its set of leaves."""
    fences, sources = pairs(data.draw(st.integers(1, 4)))
    leaves = [{number} for number in range(len(fences))]
    for _ in range(data.draw(st.integers(0, 6))):
        kind = data.draw(st.sampled_from(["merge", "duplicate", "descriptor"]))
        parts = data.draw(
            st.lists(st.sampled_from(range(len(fences))), min_size=1, max_size=3)
        )
        if kind == "merge":
            fences.append(merge(*(fences[part] for part in parts)))
            leaves.append(set().union(*(leaves[part] for part in parts)))
            continue
        one = fences[parts[0]]
        by_fd = kind == "descriptor"
        fences.append(SyncFence.from_fd(one.fileno()) if by_fd else one.duplicate())
        leaves.append(leaves[parts[0]])
    ends: dict[int, ErrorStatus] = {}
    for number in data.draw(st.permutations(range(len(sources)))):
        if data.draw(st.booleans()):
            sources[number].signal()
            ends[number] = ErrorStatus.NONE
        else:
            sources[number].fail(LATE)
            ends[number] = LATE
        expected = [expected_status(below, ends) for below in leaves]
        for _ in range(20):  # more turns of the loop than the tree is deep
            await asyncio.sleep(0)
        assert [fence.status for fence in fences] == expected


def expected_status(
    leaves: set[int], ends: dict[int, ErrorStatus]
) -> ErrorStatus | None:
    if LATE in {ends.get(leaf) for leaf in leaves}:
        return LATE
    return ErrorStatus.NONE if leaves <= ends.keys() else None
