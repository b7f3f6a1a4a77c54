"""Worker processes that cannot be started."""

import errno
import os
from multiprocessing.context import BaseContext

import pytest

from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.tools.conformance.suite import in_processes


def test_shared_memory_that_has_run_out_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error without a name would be taken for one of standard output."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("Lock", "BoundedSemaphore", "Queue", "SimpleQueue"):
        monkeypatch.setattr(BaseContext, name, full)
    with pytest.raises(ResourceExhaustedTransientError, match="worker processes"):
        list(in_processes([os.getpid], 1))
