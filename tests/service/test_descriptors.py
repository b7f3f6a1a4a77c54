"""Descriptors that run out, at either end of a channel and in a whole driver."""

import asyncio
import fcntl
import gc
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.service.driver.quotas import Budget, ProcessUse
from asyncnn.service.limits import DescriptorReserve, are_free, close_all, least_limit
from tests.service.conftest import Ends
from tests.service.raw import BEFORE_FDS, INLINE, Inbox, RawClient


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    """The limits of open files, restored when the test is over."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield limits
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


LEAST_OPEN = 64
"""A reserve takes no more than a part of all that there are."""


@contextmanager
def only(count: int) -> Iterator[None]:
    """Leave this process ``count`` free descriptors below its soft limit."""
    gc.collect()  # or garbage may close others meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as taken:
        highest = max(LEAST_OPEN, *map(int, os.listdir("/proc/self/fd")))
        while (fd := os.open(os.devnull, os.O_RDONLY)) < highest:
            taken.callback(os.close, fd)  # one that was free between others
        os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (fd + count, hard))
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


def test_free_descriptors_are_counted_exactly(limits: tuple[int, int]) -> None:
    with only(3):
        assert are_free(3, 0)
        assert not are_free(4, 0)
        assert are_free(3, 0)  # those tried were given back


def test_a_reserve_is_had_only_while_it_is_lent(limits: tuple[int, int]) -> None:
    with only(5):
        all_of_them, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        reserve = DescriptorReserve(5, all_of_them)
        assert not are_free(1, 0)
        with reserve.lent():
            assert are_free(5, 0)
            fd = os.open(os.devnull, os.O_RDONLY)
        assert reserve.has(fd)
        with reserve.used_by([0, fd]):
            assert reserve.covers(4)
            assert not reserve.covers(5)
        assert reserve.covers(5)
        os.close(fd)


def test_a_reserve_is_taken_of_all_that_the_process_may_have(
    limits: tuple[int, int],
) -> None:
    assert DescriptorReserve(5).limit == limits[1] - 5
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (limits[1] - 5, limits[1])


def test_a_reserve_leaves_most_to_others(limits: tuple[int, int]) -> None:
    reserve = DescriptorReserve(limits[1], limits[1] - 1)
    assert reserve.limit == limits[1] - 1 - (limits[1] - 1) // 4
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == reserve.limit


@pytest.mark.parametrize("count", [1, 3, 100])
@pytest.mark.parametrize("reserved", [0, 5, 1000])
def test_the_least_limit_has_so_many_besides_a_reserve(
    limits: tuple[int, int], count: int, reserved: int
) -> None:
    most = least_limit(count, reserved)
    enough, too_few = (DescriptorReserve(reserved, each) for each in (most, most - 1))
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert enough.limit >= count > too_few.limit


def test_those_that_follow_one_another_are_closed_at_once_and_none_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, int]] = []
    closerange = os.closerange

    def counted(first: int, end: int) -> None:
        calls.append((first, end))
        closerange(first, end)

    fds = [fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 300) for _ in range(8)]
    closed = [fds[each] for each in (5, 0, 1, 3)]
    monkeypatch.setattr(os, "closerange", counted)
    close_all(closed)
    assert len(calls) == 3
    for fd in set(fds).difference(closed):
        os.close(fd)
    for fd in closed:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.close(fd)


class TestChannels:
    """What comes beside a packet waits in the socket until there is room for it."""

    @pytest.mark.parametrize("size", [3, 10**5])
    async def test_a_packet_waits_for_descriptors(
        self, ends: Ends, limits: tuple[int, int], size: int
    ) -> None:
        inbox = Inbox()
        here = inbox.channel(ends[1])
        sender = Inbox().channel(ends[0])
        file = os.memfd_create("sent")
        sender.send(b"x" * size, [file] * 3)
        with only(2):
            await asyncio.sleep(0.1)
            assert not inbox.packets
            assert not here.is_closed
        while not inbox.packets:
            await inbox.change()
        assert inbox.fds == [[os.fstat(file).st_ino] * 3]
        os.close(file)
        sender.close()
        here.close()

    async def test_what_needs_none_goes_on_meanwhile(
        self, ends: Ends, limits: tuple[int, int]
    ) -> None:
        inbox = Inbox()
        here = inbox.channel(ends[1])
        raw = RawClient(ends[0])
        with only(0):
            raw.send_packet(INLINE + b"x")
            await inbox.change()
        assert inbox.packets == [b"x"]
        here.close()

    async def test_a_reserve_takes_in_what_there_is_no_room_for(
        self, ends: Ends, limits: tuple[int, int]
    ) -> None:
        inbox = Inbox()
        with only(8):
            all_of_them, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            reserve = DescriptorReserve(8, all_of_them)
            here = inbox.channel(ends[1], reserve=reserve)
            for _ in range(3):
                RawClient(ends[0]).send_packet(INLINE + b"x", [0] * 4)
                await inbox.change()
            assert not are_free(1, 0)
        assert inbox.fds == [[os.fstat(0).st_ino] * 4] * 3
        here.close()

    async def test_one_that_waits_for_ever_is_told_to_have_lost_them(
        self, ends: Ends, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("asyncnn.service.channel._RETRY_S", 0.001)
        inbox = Inbox()
        here = inbox.channel(ends[1])
        with only(1):
            RawClient(ends[0]).send_packet(INLINE + b"x", [0] * 3)
            while not inbox.packets:
                await inbox.change()
        assert inbox.fds == [None]
        assert not here.is_closed
        here.close()

    @pytest.mark.parametrize(("announced", "sent"), [(0, 1), (1, 2), (2, 4), (3, 200)])
    async def test_more_than_announced_end_the_channel(
        self, ends: Ends, announced: int, sent: int
    ) -> None:
        inbox = Inbox()
        here = inbox.channel(ends[1])
        raw = RawClient(ends[0])
        if announced:
            raw.socket.send(BEFORE_FDS + bytes((announced,)))
        socket.send_fds(raw.socket, [INLINE + b"x"], [0] * sent)
        await inbox.change()
        assert here.is_closed
        assert not inbox.packets

    @pytest.mark.parametrize("packet", [b"\2", b"\2\0", b"\2\6", b"\2\1\1"])
    async def test_a_malformed_announcement_ends_the_channel(
        self, ends: Ends, packet: bytes
    ) -> None:
        inbox = Inbox()
        here = inbox.channel(ends[1], max_fds=4)
        ends[0].send(packet)
        await inbox.change()
        assert here.is_closed

    async def test_a_flood_of_announcements_costs_nothing_but_itself(
        self, ends: Ends
    ) -> None:
        inbox = Inbox()
        here = inbox.channel(ends[1])
        for _ in range(50):
            ends[0].send(BEFORE_FDS + b"\1")
        ends[0].send(INLINE + b"x")
        await inbox.change()
        assert inbox.packets == [b"x"]
        here.close()


class TestBudgets:
    def budget(self, most: int = 100, most_each: int = 1000) -> Budget:
        return Budget("things", most, "the system", most_each, "max_things")

    def test_a_process_may_have_as_many_as_are_left_for_others(self) -> None:
        budget = self.budget()
        for expected in (50, 25, 12):  # each newcomer finds something
            held: list[int] = []
            account = budget.holding(ProcessUse(), held.__len__)
            for _ in range(expected):
                account.check_room(1)
                held.append(1)
            with pytest.raises(ResourceExhaustedTransientError, match="the system"):
                account.check_room(1)

    def test_connections_of_one_process_count_as_one(self) -> None:
        budget, owner = self.budget(), ProcessUse()
        first = budget.holding(owner, lambda: 40)
        second = budget.holding(owner, lambda: 0)
        first.check_room(10)
        second.check_room(10)
        with pytest.raises(ResourceExhaustedTransientError, match="has 40 of"):
            second.check_room(11)
        first.close()
        second.check_room(50)

    def test_the_setting_for_one_client_is_named(self) -> None:
        account = self.budget(most_each=3).holding(ProcessUse(), lambda: 2)
        account.check_room(1)
        with pytest.raises(ResourceExhaustedTransientError, match="max_things"):
            account.check_room(2)

    def test_what_is_given_back_can_be_had_again_by_others(self) -> None:
        budget = self.budget()
        held = [1] * 50
        account = budget.holding(ProcessUse(), held.__len__)
        account.update()
        other = budget.holding(ProcessUse(), lambda: 25)
        other.update()
        with pytest.raises(ResourceExhaustedTransientError):
            other.check_room(1)
        held.clear()  # nobody tells
        budget._counted_at = float("-inf")
        other.check_room(20)
