"""One client cannot make the driver map or copy more than it is granted."""

import mmap
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from asyncnn.hal.errors import (
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import Memory
from asyncnn.memory import Mapper, MapperStatistics, MappingPolicy, allocate, view
from tests.memory.foreign import allocate_unsealed, leaks, sent, traces

KIND: list[Callable[[int], Memory]] = [allocate, allocate_unsealed]


def test_statistics_tell_what_is_held() -> None:
    pools = [allocate(100), allocate(200), allocate_unsealed(400)]
    with Mapper() as mapper:
        mapped = [mapper.map(sent(pool)) for pool in pools]
        assert mapper.statistics() == MapperStatistics(2, 2, 300, 1, 400)
        mapper.trim()
        assert mapper.statistics() == MapperStatistics(0, 2, 300, 1, 400)
        mapped.clear()
        assert mapper.statistics() == MapperStatistics(0, 0, 0, 0, 0)


@pytest.mark.parametrize("make", KIND)
class TestHardLimits:
    def test_a_pool_that_never_fits_is_refused_for_good(
        self, make: Callable[[int], Memory]
    ) -> None:
        pool = make(101)
        before = traces()
        with (
            Mapper(MappingPolicy(max_pool_bytes=100)) as mapper,
            pytest.raises(
                ResourceExhaustedPersistentError, match="max_pool_bytes is 100"
            ),
        ):
            mapper.map(sent(pool))
        assert not leaks(before)

    @pytest.mark.parametrize(
        ("limits", "sizes", "use"),
        [
            ({"max_pool_bytes": 100}, (60, 60), list),
            ({"max_pools": 3}, (8, 8, 8, 8), list),
            ({"max_pools": 1}, (8, 8), partial(map, view)),
        ],
        ids=["take up bytes", "are counted", "by views as well"],
    )
    def test_pools_in_use(
        self, make: Callable[[int], Memory], limits: Any, sizes: Any, use: Any
    ) -> None:
        *pools, last = map(make, sizes)
        with Mapper(MappingPolicy(**limits)) as mapper:
            used = [*use([mapper.map(sent(pool)) for pool in pools])]
            with pytest.raises(ResourceExhaustedTransientError, match="in use"):
                mapper.map(sent(last))
            del used[len(used) // 2]
            assert len(view(mapper.map(sent(last)))) == last.size

    def test_bytes_are_those_of_pools_and_not_of_what_is_mapped_behind_them(
        self, make: Callable[[int], Memory]
    ) -> None:
        pools = [make(mmap.PAGESIZE), make(mmap.PAGESIZE)]
        with Mapper(MappingPolicy(max_pool_bytes=2 * mmap.PAGESIZE)) as mapper:
            used = [mapper.map(sent(pool)) for pool in pools]
            held = mapper.statistics()
            assert held.mapped_bytes + held.copied_bytes == 2 * mmap.PAGESIZE
            del used


class TestCache:
    def test_unused_mappings_make_room(self) -> None:
        pools = [allocate(60) for _ in range(10)]
        with Mapper(MappingPolicy(max_pool_bytes=100)) as mapper:
            for pool in pools:
                mapper.map(sent(pool))
            assert mapper.statistics() == MapperStatistics(1, 1, 60, 0, 0)

    def test_the_least_recently_used_goes_first(self) -> None:
        pools = [allocate(size) for size in (10, 20, 40)]
        with Mapper(MappingPolicy(max_cached_bytes=50)) as mapper:
            for index in (0, 1, 0, 2):
                mapper.map(sent(pools[index]))
            assert mapper.statistics() == MapperStatistics(2, 2, 50, 0, 0)

    def test_the_latest_pool_is_kept_however_large(self) -> None:
        pool = allocate(100)
        with Mapper(MappingPolicy(max_cached_bytes=0)) as mapper:
            mapper.map(sent(pool))
            assert mapper.statistics().cached == 1

    def test_a_pool_in_use_is_mapped_once_even_if_it_left_the_cache(self) -> None:
        pools = [allocate(100), allocate(100)]
        with Mapper(MappingPolicy(max_cached_bytes=0)) as mapper:
            used = [mapper.map(sent(pool)) for pool in pools]
            assert mapper.map(sent(pools[0])) is used[0]
            assert mapper.statistics().mapped == 2

    def test_a_refusal_costs_no_mapping_that_is_in_use(self) -> None:
        pools = [allocate(60), allocate(60)]
        with Mapper(MappingPolicy(max_pool_bytes=100)) as mapper:
            used = mapper.map(sent(pools[0]))
            for _ in range(2):
                with pytest.raises(ResourceExhaustedTransientError):
                    mapper.map(sent(pools[1]))
                assert mapper.map(sent(pools[0])) is used


class TestCopies:
    def test_a_pool_too_large_to_copy_can_be_sealed_instead(self) -> None:
        pools = allocate_unsealed(101), allocate(101)
        with Mapper(MappingPolicy(max_copied_bytes=100)) as mapper:
            with pytest.raises(ResourceExhaustedPersistentError, match="seal its file"):
                mapper.map(sent(pools[0]))
            assert mapper.map(sent(pools[1])).size == 101

    def test_copies_in_use_are_limited_together(self) -> None:
        pool = allocate_unsealed(60)
        with Mapper(MappingPolicy(max_copied_bytes=100)) as mapper:
            used = mapper.map(sent(pool))
            with pytest.raises(ResourceExhaustedTransientError, match="copies"):
                mapper.map(sent(pool))
            del used
            assert mapper.map(sent(pool)).size == 60

    def test_copying_can_be_ruled_out(self) -> None:
        pool = allocate_unsealed(1)
        with (
            Mapper(MappingPolicy(max_copied_bytes=0)) as mapper,
            pytest.raises(ResourceExhaustedPersistentError, match="has to be copied"),
        ):
            mapper.map(sent(pool))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_pools": -1},
        {"max_pool_bytes": -1},
        {"max_cached_bytes": -1},
        {"max_copied_bytes": -1},
    ],
)
def test_senseless_limits_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        MappingPolicy(**limits)
