"""Slabs: many small pools in one file; bytes are used again when nothing views them."""

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Memory,
    Request,
    RequestArgument,
)
from asyncnn.memory import shareable, view
from asyncnn.memory.slabs import (
    FIRST_SLAB_BYTES,
    MAX_IDLE_BYTES,
    MAX_PART_BYTES,
    Part,
    Slab,
    Slabs,
    allocate_in_slab,
    in_slabs,
    place_of,
    retire,
    shared_array,
    trim,
)
from tests.forks import in_child_blocking
from tests.memory.foreign import untrimmed


def files() -> int:
    """Return how many slabs this process has open."""
    gc.collect()
    return sum("asyncnn-slab" in trace and "->" in trace for trace in untrimmed())


@pytest.fixture
def slabs() -> Iterator[Slabs]:
    trim()
    slabs = Slabs()
    yield slabs
    slabs.trim()


class TestAllocating:
    def test_many_arrays_lie_in_one_file_and_one_mapping(self) -> None:
        trim()
        arrays = [shared_array((16, 16)) for _ in range(100)]
        assert files() == 1
        for k, array in enumerate(arrays):
            array[:] = k
        assert all((array == k).all() for k, array in enumerate(arrays))

    @pytest.mark.parametrize("size", [1, 63, 64, 65, 4097, MAX_PART_BYTES])
    def test_a_part_is_zero_writable_and_of_its_size(
        self, slabs: Slabs, size: int
    ) -> None:
        for _ in range(3):
            part = slabs.allocate(size)
            assert bytes(view(part)) == bytes(size)
            view(part)[:] = b"\7" * size
            del part

    def test_parts_are_aligned_and_apart(self, slabs: Slabs) -> None:
        parts = [slabs.allocate(65) for _ in range(50)]
        offsets = sorted(part.offset for part in parts)
        assert all(offset % 128 == 0 for offset in offsets)
        assert len(set(offsets)) == 50

    @pytest.mark.parametrize("size", [0, MAX_PART_BYTES + 1])
    def test_others_have_a_file_of_their_own(self, size: int) -> None:
        memory = allocate_in_slab(size)
        assert type(memory) is Memory
        assert memory.handle.fds

    def test_so_has_an_isolated_array(self) -> None:
        place = place_of(shared_array(4, isolated=True))
        assert place is not None
        assert type(place[0]) is Memory

    def test_a_negative_size_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="-1 bytes"):
            allocate_in_slab(-1)

    def test_slabs_grow_with_the_number_of_parts(self, slabs: Slabs) -> None:
        parts = [slabs.allocate(4096) for _ in range(5000)]
        assert files() < 12
        assert len({(part.slab, part.offset) for part in parts}) == 5000

    def test_a_pool_that_travels_by_itself_is_a_copy(self) -> None:
        part = allocate_in_slab(8)
        view(part)[:] = b"contents"
        copy = shareable(part)
        assert copy.handle.fds
        assert bytes(view(copy)) == b"contents"


def keep_pool(part: Part) -> object:
    return part


def keep_bytes(part: Part) -> object:
    return view(part)


def keep_array(part: Part) -> object:
    return np.frombuffer(view(part), np.uint8)[3:7]


class TestReuse:
    @pytest.mark.parametrize("keep", [keep_pool, keep_bytes, keep_array])
    def test_bytes_are_used_again_once_nothing_views_them(
        self, slabs: Slabs, keep: Callable[[Part], object]
    ) -> None:
        part = slabs.allocate(100)
        first = part.offset
        kept = keep(part)
        del part
        other = slabs.allocate(100)
        assert other.offset != first
        del kept
        assert slabs.allocate(100).offset == first

    def test_a_view_of_an_array_keeps_its_bytes(self) -> None:
        array = shared_array(4)
        tail = array[2:].reshape(1, 2)
        tail[:] = 7
        data = array.data
        del array
        others = [shared_array(4) for _ in range(20)]
        for other in others:
            other[:] = 1
        assert (tail == 7).all()
        assert data[3] == 7

    def test_they_come_back_from_any_thread(self, slabs: Slabs) -> None:
        kept = [slabs.allocate(100)]
        first = kept[0].offset
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        assert slabs.allocate(100).offset == first

    def test_threads_may_make_and_drop_parts_at_once(self, slabs: Slabs) -> None:
        faults: list[int] = []

        def work(mark: int) -> None:
            kept: list[Part] = []
            for k in range(2000):
                part = slabs.allocate(64)
                if any(view(part)):
                    faults.append(mark)
                view(part)[:] = bytes([mark]) * 64
                kept.append(part)
                if k % 3 == 0:
                    old = kept.pop(0)
                    if bytes(view(old)) != bytes([mark]) * 64:
                        faults.append(mark)

        threads = [threading.Thread(target=work, args=(1 + k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults

    def test_one_that_comes_back_while_another_is_made_is_not_lost(
        self, slabs: Slabs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when the garbage collector runs in the midst of it."""
        frombuffer, dying = np.frombuffer, [slabs.allocate(100)]
        first = dying[0].offset

        def collecting(*arguments: object) -> object:
            dying.clear()
            return frombuffer(*arguments)  # type: ignore[call-overload]

        monkeypatch.setattr(np, "frombuffer", collecting)
        second = slabs.allocate(100)
        monkeypatch.undo()
        assert second.offset != first
        assert slabs.allocate(100).offset == first

    def test_a_slab_goes_with_its_last_part_if_another_has_room(
        self, slabs: Slabs
    ) -> None:
        parts = [slabs.allocate(MAX_PART_BYTES) for _ in range(40)]
        assert files() > 1
        parts.clear()
        assert files() == 1

    def test_a_large_one_goes_even_if_it_is_the_last(self, slabs: Slabs) -> None:
        parts = [slabs.allocate(MAX_PART_BYTES) for _ in range(200)]
        assert max(part.slab.size for part in parts) > MAX_IDLE_BYTES
        del parts[:60]
        parts.clear()
        assert files() <= 1
        if files():
            assert slabs.allocate(MAX_PART_BYTES).slab.size <= MAX_IDLE_BYTES

    def test_trimming_gives_back_those_without_parts(self, slabs: Slabs) -> None:
        kept, dropped = slabs.allocate(64), slabs.allocate(1024)
        del dropped
        assert files() == 2
        slabs.trim()
        assert files() == 1
        assert slabs.allocate(64).slab is kept.slab


class TestRetiring:
    def test_bytes_of_a_retired_slab_are_not_used_again(self, slabs: Slabs) -> None:
        part, neighbour = slabs.allocate(100), slabs.allocate(100)
        slab = weakref.ref(part.slab)
        slabs.retire(part.slab)
        del part
        assert slabs.allocate(100).slab is not slab()
        assert slab() is not None
        del neighbour
        assert slab() is None

    def test_only_parts_are_retired(self) -> None:
        memory = allocate_in_slab(0)
        retire((memory, BufferToken(1)))

    @pytest.mark.parametrize("times", [1, 2])
    def test_it_may_be_retired_more_than_once(self, slabs: Slabs, times: int) -> None:
        part = slabs.allocate(100)
        for _ in range(times):
            slabs.retire(part.slab)
        assert files() == 1
        del part
        assert files() == 0


class TestForks:
    def test_parent_and_child_use_none_of_before_for_new_arrays(self) -> None:
        array = shared_array(4)
        array[:] = 7

        def new_arrays() -> bool:
            others = [shared_array(4) for _ in range(10)]
            for other in others:
                other[:] = 1
            return bool((array == 7).all())

        inherited = place_of(array)
        assert inherited is not None
        assert isinstance(inherited[0], Part)
        assert in_child_blocking(new_arrays)
        assert new_arrays()
        fresh = place_of(shared_array(4))
        assert fresh is not None
        assert isinstance(fresh[0], Part)
        assert fresh[0].slab is not inherited[0].slab

    def test_an_array_of_the_parent_stays_what_it_is_in_the_child(self) -> None:
        arrays = [shared_array(4)]
        arrays[0][:] = 7
        (has_begun, begin), (may_read, let_read) = os.pipe(), os.pipe()

        def read_late() -> float:
            os.write(begin, b"b")
            os.read(may_read, 1)
            return float(arrays[0].sum())

        seen: list[float] = []
        child = threading.Thread(
            target=lambda: seen.append(in_child_blocking(read_late))
        )
        child.start()
        os.read(has_begun, 1)
        arrays.clear()
        others = [shared_array(4) for _ in range(50)]
        for other in others:
            other[:] = 1
        os.write(let_read, b"r")
        child.join()
        for fd in (has_begun, begin, may_read, let_read):
            os.close(fd)
        assert seen == [28.0]


class TestRequests:
    def test_parts_become_offsets_in_their_slabs(self) -> None:
        x, y = allocate_in_slab(16), allocate_in_slab(16)
        assert isinstance(x, Part)
        assert isinstance(y, Part)
        whole = allocate_in_slab(FIRST_SLAB_BYTES)
        token = BufferToken(3)
        omitted = RequestArgument(has_no_value=True)
        request = Request(
            (_argument(0, 4), omitted, _argument(2, 8), _argument(3, 0)),
            (_argument(1, 0, (2, 2)),),
            (x, y, whole, token),
        )
        sent = in_slabs(request)
        assert sent.pools == (x.slab, y.slab, whole, token)
        assert isinstance(sent.pools[0], Slab)
        assert sent.inputs == (
            _argument(0, x.offset + 4),
            omitted,
            _argument(2, 8),
            _argument(3, 0),
        )
        assert sent.outputs == (_argument(1, y.offset, (2, 2)),)

    def test_a_request_without_parts_is_left_as_it_is(self) -> None:
        request = Request((), (), (allocate_in_slab(0), BufferToken(3)))
        assert in_slabs(request) is request
        nothing = Request((), (), ())
        assert in_slabs(nothing) is nothing


def _argument(
    pool: int, offset: int, dimensions: tuple[int, ...] = ()
) -> RequestArgument:
    return RequestArgument(False, DataLocation(pool, offset, 4), dimensions)
