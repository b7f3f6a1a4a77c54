import gc
import threading

import numpy as np
import pytest

from asyncnn.hal.errors import (
    GeneralFailureError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.memory.managed import Account, ManagedBuffer

FULL = pytest.raises(ResourceExhaustedTransientError)


@pytest.fixture
def account() -> Account:
    return Account(100)


@pytest.fixture
def buffer(account: Account) -> ManagedBuffer:
    return ManagedBuffer(7, np.dtype(np.int16), account)


def fill(buffer: ManagedBuffer, *dimensions: int) -> np.ndarray:
    """Write as an execution does; return the memory."""
    claimed = buffer.begin_writing()
    data = claimed.storage.reserve(buffer.size_bytes(dimensions))
    data[:] = 1
    buffer.end_writing(dimensions)
    return data


class TestAccount:
    def test_memory_counts_for_as_long_as_anything_views_it(
        self, account: Account
    ) -> None:
        memory = account.allocate(60)
        view = memory[:1]
        assert account.used_bytes == 60
        with FULL:
            account.allocate(41)
        del memory
        gc.collect()
        assert account.used_bytes == 60
        del view
        gc.collect()
        assert account.used_bytes == 0
        account.allocate(100)

    def test_memory_that_there_is_not_is_not_counted(self) -> None:
        account = Account(2**63)
        with pytest.raises(ResourceExhaustedPersistentError, match=f"{2**62} bytes"):
            account.allocate(2**62)
        assert account.used_bytes == 0

    def test_threads_allocate_no_more_than_there_is(self) -> None:
        account, kept = Account(50), []

        def allocate() -> None:
            for _ in range(20):
                try:
                    kept.append(account.allocate(1))
                except ResourceExhaustedTransientError:
                    return

        threads = [threading.Thread(target=allocate) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(kept) == account.used_bytes == 50


class TestState:
    def test_it_holds_nothing_at_first(self, buffer: ManagedBuffer) -> None:
        assert buffer.current is None
        with pytest.raises(GeneralFailureError, match="uninitialised"):
            buffer.begin_reading()

    def test_it_holds_what_was_written(self, buffer: ManagedBuffer) -> None:
        written = fill(buffer, 2, 3)
        assert buffer.current == (2, 3)
        read = buffer.begin_reading().storage.reserve(12)
        assert np.shares_memory(read, written)
        buffer.end_reading()

    def test_nobody_else_uses_it_while_it_is_written(
        self, buffer: ManagedBuffer
    ) -> None:
        fill(buffer, 2)
        buffer.begin_writing()
        with pytest.raises(GeneralFailureError, match="in use"):
            buffer.begin_writing()
        with pytest.raises(GeneralFailureError, match="being written"):
            buffer.begin_reading()
        buffer.end_writing((2,))
        buffer.begin_reading()

    def test_nobody_writes_while_any_read_it(self, buffer: ManagedBuffer) -> None:
        fill(buffer, 2)
        buffer.begin_reading()
        buffer.begin_reading()
        buffer.end_reading()
        with pytest.raises(GeneralFailureError, match="in use"):
            buffer.begin_writing()
        buffer.end_reading()
        buffer.begin_writing()

    def test_the_memory_stays_unless_more_is_needed(
        self, buffer: ManagedBuffer
    ) -> None:
        first = fill(buffer, 8)
        assert np.shares_memory(fill(buffer, 4), first)
        assert not np.shares_memory(fill(buffer, 16), first)

    def test_growing_does_not_need_both_memories_at_once(
        self, account: Account, buffer: ManagedBuffer
    ) -> None:
        fill(buffer, 40)
        fill(buffer, 50)
        assert account.used_bytes == 100

    def test_a_writer_that_failed_may_write_on_and_harms_nobody(
        self, buffer: ManagedBuffer
    ) -> None:
        late = buffer.begin_writing().storage
        buffer.end_writing(None)
        assert buffer.current is None
        mine = fill(buffer, 4)
        late.reserve(8)[:] = 99
        assert (mine == 1).all()

    def test_a_reader_reads_on_when_the_contents_are_discarded(
        self, buffer: ManagedBuffer
    ) -> None:
        fill(buffer, 4)
        read = buffer.begin_reading().storage.reserve(8)
        buffer.discard()
        assert buffer.current is None
        buffer.end_reading()
        buffer.begin_writing().storage.reserve(8)[:] = 99
        assert (read == 1).all()

    def test_what_is_being_written_is_not_discarded(
        self, buffer: ManagedBuffer
    ) -> None:
        buffer.begin_writing()
        buffer.discard()
        with pytest.raises(GeneralFailureError, match="in use"):
            buffer.begin_writing()
        buffer.end_writing((1,))
        assert buffer.current == (1,)
