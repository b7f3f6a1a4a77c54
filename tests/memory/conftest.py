"""Nothing that a test of pools opens, maps or names may outlive it."""

import os
from collections.abc import Iterator

import pytest

from tests.memory.foreign import leaks, traces


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a descriptor, mapping or name behind."""
    before = traces()
    yield
    assert not leaks(before)


@pytest.fixture
def unsealed() -> Iterator[int]:
    """A memory file of 10000 bytes that anybody may truncate."""
    fd = os.memfd_create("foreign", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, bytes(range(250)) * 40)
    yield fd
    os.close(fd)
