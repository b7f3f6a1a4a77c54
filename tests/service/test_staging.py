"""Staging: arrays of this process go through shared memory, shared ones do not."""

import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import DataLocation, Memory, Request, RequestArgument
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.shared import allocate
from asyncnn.memory.slabs import Part
from asyncnn.service.client import staging
from asyncnn.service.client.staging import (
    ALIGNMENT_BYTES,
    MAX_IDLE_SLABS,
    Staged,
    Staging,
    Travelling,
)

OMITTED = RequestArgument(has_no_value=True)


def argument(pool: int, length: int, offset: int = 0) -> RequestArgument:
    return RequestArgument(location=DataLocation(pool, offset, length))


def pool(data: bytes) -> Memory:
    return from_buffer(bytearray(data))


def shared(data: bytes) -> Memory:
    memory = allocate(len(data))
    assert memory.buffer is not None
    memory.buffer[:] = data
    return memory


def content(request: Request, sent: RequestArgument) -> memoryview:
    """The bytes that the driver finds for an argument."""
    at = sent.location
    memory = request.pools[at.pool_index]
    assert isinstance(memory, Memory)
    assert memory.handle.fds or isinstance(memory, Part)
    assert memory.buffer is not None
    return memory.buffer[at.offset : at.offset + at.length]


def new_staging() -> Staging:
    return Staging(lambda request, is_fenced: None)


def staged(stage: Staging, request: Request) -> Staged:
    result = stage.sent(request)
    assert isinstance(result, Staged)
    return result


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the slabs that were made."""
    sizes: list[int] = []

    def counting(size: int) -> Memory:
        sizes.append(size)
        return allocate(size)

    monkeypatch.setattr(staging, "allocate_in_slab", counting)
    return sizes


def doubling(*pools: Memory) -> Request:
    """One input of four bytes in pool 0, one output in pool 1."""
    return Request((argument(0, 4),), (argument(1, 4),), pools)


def test_a_request_whose_pools_all_travel_is_left_as_it_is(
    allocated: list[int],
) -> None:
    request = doubling(shared(b"abcd"), shared(b"----"))
    assert isinstance(new_staging().known(request), Travelling)
    assert not allocated


def test_inputs_go_there_and_outputs_come_back() -> None:
    result = pool(b"......")
    pools = (pool(b"abcdefgh"), pool(b"0123"), result)
    inputs = (argument(0, 3, offset=2), argument(1, 4))
    request = Request(inputs, (argument(2, 4, offset=1),), pools)
    sent = staged(new_staging(), request)
    found = [bytes(content(sent.request, a)) for a in sent.request.inputs]
    assert found == [b"cde", b"0123"]
    content(sent.request, sent.request.outputs[0])[:] = b"WXYZ"
    assert bytes(result.buffer or b"") == b"......"
    sent.copy_back()
    assert bytes(result.buffer or b"") == b".WXYZ."


def test_arguments_in_slabs_are_aligned_and_apart() -> None:
    sizes = (1, 64, 65, 7)
    request = Request(
        tuple(argument(k, size) for k, size in enumerate(sizes)),
        (),
        tuple(pool(bytes(size)) for size in sizes),
    )
    spans = [a.location for a in staged(new_staging(), request).request.inputs]
    assert all(span.offset % ALIGNMENT_BYTES == 0 for span in spans)
    ends = [span.offset + span.length for span in spans]
    assert all(end <= s.offset for end, s in zip(ends, spans[1:], strict=False))


def test_shared_pools_beside_others_are_sent_themselves() -> None:
    ours, theirs, result = pool(b"ours"), shared(b"theirs"), shared(b"....")
    request = Request(
        (argument(0, 4), OMITTED, argument(1, 2, offset=4)),
        (argument(2, 4),),
        (ours, theirs, result),
    )
    sent = staged(new_staging(), request).request
    assert sent.pools[:2] == (theirs, result)
    assert sent.inputs[1] == OMITTED
    assert [bytes(content(sent, sent.inputs[k])) for k in (0, 2)] == [b"ours", b"rs"]
    content(sent, sent.outputs[0])[:] = b"done"
    assert bytes(result.buffer or b"") == b"done"


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_empty_arrays_pass(shape: tuple[int, ...]) -> None:
    empty = np.empty(shape, np.float32)
    memory = Memory("ashmem", 0, buffer=empty.data)
    request = Request((argument(0, 0),), (argument(1, 0),), (memory, memory))
    staged(new_staging(), request).copy_back()


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "i4"])
def test_arrays_of_any_type_and_rank_pass(dtype: str) -> None:
    array = np.arange(24).astype(dtype).reshape(2, 3, 4)
    result = np.zeros_like(array)
    pools = [Memory("ashmem", a.nbytes, buffer=a.data) for a in (array, result)]
    arguments = [(argument(k, array.nbytes),) for k in range(2)]
    sent = staged(new_staging(), Request(*arguments, tuple(pools)))
    there = content(sent.request, sent.request.outputs[0])
    there[:] = content(sent.request, sent.request.inputs[0])
    sent.copy_back()
    np.testing.assert_array_equal(result, array)


class TestSlabs:
    def test_one_serves_requests_that_follow_each_other(
        self, allocated: list[int]
    ) -> None:
        stage = new_staging()
        first = doubling(pool(b"aaaa"), pool(b"...."))
        for letter in (b"b", b"c", b"d"):
            pools = (pool(4 * letter), pool(b"...."))
            sent = staged(stage, Request(first.inputs, first.outputs, pools))
            assert bytes(content(sent.request, sent.request.inputs[0])) == 4 * letter
            sent.give_back()
        assert len(allocated) == 1

    def test_requests_under_way_do_not_share_one(self) -> None:
        stage = new_staging()
        request = doubling(pool(b"aaaa"), pool(b"...."))
        sent = [staged(stage, request) for _ in range(3)]
        assert len({s.slab for s in sent}) == 3

    def test_they_serve_arguments_that_are_new_each_time(
        self, allocated: list[int]
    ) -> None:
        stage = new_staging()
        for _ in range(5 * MAX_IDLE_SLABS):
            staged(stage, doubling(pool(b"aaaa"), pool(b"...."))).give_back()
        assert len(allocated) <= MAX_IDLE_SLABS + 1

    def test_those_of_forgotten_arguments_come_back(self, allocated: list[int]) -> None:
        stage = new_staging()
        under_way = staged(stage, doubling(pool(b"aaaa"), pool(b"....")))
        for _ in range(MAX_IDLE_SLABS):
            staged(stage, doubling(pool(b"bbbb"), pool(b"...."))).give_back()
        before = len(allocated)
        under_way.give_back()
        assert staged(stage, doubling(pool(b"c" * 4), pool(b"...."))).slab
        assert len(allocated) == before

    def test_only_some_are_kept(self) -> None:
        stage = new_staging()
        request = doubling(pool(b"aaaa"), pool(b"...."))
        many = [staged(stage, request) for _ in range(MAX_IDLE_SLABS + 3)]
        slabs = [weakref.ref(sent.slab) for sent in many]
        while many:
            many.pop().give_back()
        assert sum(slab() is not None for slab in slabs) == MAX_IDLE_SLABS

    def test_all_go_with_the_staging(self) -> None:
        stage = new_staging()
        gc.disable()
        try:
            sent = staged(stage, doubling(pool(b"aaaa"), pool(b"....")))
            slab = weakref.ref(sent.slab)
            sent.give_back()
            del sent, stage
            assert slab() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("kept", [(), (2,)])
def test_pools_are_let_go_of_once_a_request_is_done(kept: Sequence[int]) -> None:
    stage = new_staging()
    pools = [pool(b"aaaa"), pool(b"...."), shared(b"kept")]
    inputs = (argument(0, 4), *(argument(k, 4) for k in kept))
    request = Request(inputs, (argument(1, 4),), tuple(pools[: 2 + len(kept)]))
    sent = staged(stage, request)
    watched = [weakref.ref(memory) for memory in request.pools]
    sent.give_back()
    del pools, request
    assert [memory() for memory in watched] == [None] * len(watched)


def test_an_output_in_a_read_only_pool_is_refused_and_costs_no_slab(
    allocated: list[int],
) -> None:
    stage = new_staging()
    request = doubling(pool(b"aaaa"), from_buffer(b"...."))
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="read-only"):
            staged(stage, request)
    assert len(allocated) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_pool_that_was_released_is_refused_and_the_slab_is_kept(
    allocated: list[int], which: int
) -> None:
    stage, pools = new_staging(), [pool(b"abcd"), pool(b"----")]
    request = doubling(*pools)
    staged(stage, request).give_back()
    buffer = pools[which].buffer
    assert buffer is not None
    buffer.release()
    with pytest.raises((InvalidArgumentError, ValueError)):
        staged(stage, request)
    staged(stage, doubling(pool(b"abcd"), pool(b"----")))
    assert len(allocated) == 2  # other arguments: another layout
