"""Shared memory that has a name only for as long as somebody is to find it."""

import errno
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from asyncnn.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import Memory
from asyncnn.memory import allocate_named, open_named, publish_named, view
from tests.memory.foreign import leaks, traces


def names() -> set[str]:
    return {f"/{name}" for name in os.listdir("/dev/shm")}


@pytest.fixture
def name() -> str:
    return f"/asyncnn-{os.getpid()}-test"


def test_a_pool_has_no_name_once_it_exists(name: str) -> None:
    pool = allocate_named(100, name)
    assert name not in names()
    assert os.fstat(pool.handle.fds[0]).st_nlink == 0


def test_names_can_be_used_again(name: str) -> None:
    one, other = allocate_named(4, name), allocate_named(4, name)
    view(one)[:] = b"abcd"
    assert bytes(view(other)) == bytes(4)


def test_memory_is_reserved_when_it_is_allocated() -> None:
    pool = allocate_named(100_000)
    status = os.fstat(pool.handle.fds[0])
    assert status.st_blocks * 512 >= 100_000


@pytest.mark.slow
def test_a_killed_process_leaves_no_name_behind() -> None:
    code = (
        "import os, signal\n"
        "from asyncnn.memory import allocate_named\n"
        "pool = allocate_named(1000)\n"
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    child = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.returncode == -signal.SIGKILL
    prefix = f"/asyncnn-{int(child.stdout)}-"
    assert not [name for name in names() if name.startswith(prefix)]


class TestPublished:
    def test_another_mapping_shares_the_bytes(self) -> None:
        with publish_named(5000) as (name, pool):
            found = open_named(name)
        view(found)[4990:4995] = b"hello"
        assert view(pool)[4990:4995] == b"hello"
        assert found.size == 5000

    def test_the_name_ends_with_the_block(self, name: str) -> None:
        with publish_named(8, name) as (given, _):
            assert given == name
            assert name in names()
        assert name not in names()

    def test_the_name_ends_with_an_error(self, name: str) -> None:
        with pytest.raises(RuntimeError), publish_named(8, name):
            raise RuntimeError
        assert name not in names()

    def test_a_name_that_is_gone_already_is_no_error(self, name: str) -> None:
        with publish_named(8, name):
            os.unlink(f"/dev/shm{name}")
        assert name not in names()

    def test_the_owner_alone_may_open_it(self, name: str) -> None:
        with publish_named(8, name):
            assert os.stat(f"/dev/shm{name}").st_mode & 0o777 == 0o600

    def test_a_taken_name_is_refused(self, name: str) -> None:
        with publish_named(8, name):
            before = traces()
            with pytest.raises(GeneralFailureError, match=name):
                allocate_named(8, name)
            assert not leaks(before)
            assert name in names()

    def test_a_size_that_fails_leaves_no_name(self, name: str) -> None:
        before = traces()
        with pytest.raises(GeneralFailureError), publish_named(2**63, name):
            raise AssertionError
        assert not leaks(before)
        assert name not in names()


class TestOpen:
    def test_a_pool_can_be_opened_for_reading_only(self) -> None:
        with publish_named(8) as (name, _):
            assert view(open_named(name, writable=False)).readonly

    def test_an_opened_pool_leaves_nothing_behind(self) -> None:
        with publish_named(8) as (name, _):
            before = traces()
            open_named(name)
            assert traces() == before

    def test_a_pool_that_cannot_be_mapped_leaves_nothing_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> mmap.mmap:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        with publish_named(8) as (name, _):
            before = traces()
            monkeypatch.setattr(mmap, "mmap", fail)
            with pytest.raises(ResourceExhaustedTransientError, match="Cannot alloc"):
                open_named(name)
            assert not leaks(before)

    @pytest.mark.parametrize("name", ["/asyncnn-none", "/" + "x" * 300])
    def test_what_nobody_published_is_not_found(self, name: str) -> None:
        with pytest.raises(GeneralFailureError):
            open_named(name)


@pytest.mark.parametrize(
    "name", ["", "/", "asyncnn", "/a/b", "//a", "/a\0b", "/\ud800"]
)
@pytest.mark.parametrize("call", [open_named, lambda name: allocate_named(1, name)])
def test_what_cannot_be_a_name_is_refused(
    name: str, call: Callable[[str], Memory]
) -> None:
    with pytest.raises(InvalidArgumentError, match="not a name"):
        call(name)
