"""Devices where no thread can be started, however they are opened."""

import asyncio
import threading

import pytest

import asyncnn
from tests.limits import output_of
from tests.networks import addition
from tests.shortages import OPENERS, THREADS, X, open_and_use


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets no thread be started, until it is undone."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the default device be what it is for users."""
    monkeypatch.delenv("ASYNCNN_DEVICE", raising=False)


@pytest.mark.parametrize("opener", OPENERS)
async def test_each_call_works_or_says_what_is_missing_and_works_later(
    opener: str, refused: pytest.MonkeyPatch
) -> None:
    before = threading.active_count(), len(asyncio.all_tasks())
    await open_and_use(opener, THREADS)
    assert (threading.active_count(), len(asyncio.all_tasks())) == before
    refused.undo()
    assert not await open_and_use(opener, THREADS)


async def test_the_default_device_opens_and_goes_on(
    refused: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncnn.open_device() as device:
        assert device.name == "reference"
        with pytest.raises(asyncnn.ResourceExhaustedTransientError, match="thread"):
            await device.prepare(addition(4))
        refused.undo()
        prepared = await device.prepare(addition(4))
        await prepared.run({"x": X, "y": X})
    (record,) = [each for each in caplog.records if "accelerated" in each.name]
    assert "no thread can be started" in record.getMessage()


PROGRAM = """
import asyncio, resource, sys
import asyncnn
from tests.limits import become_ordinary, limit
from tests.shortages import THREADS, open_and_use

opener, more = sys.argv[1], int(sys.argv[2])
become_ordinary()
usual = resource.getrlimit(resource.RLIMIT_NPROC)[0]

async def main():
    limit(resource.RLIMIT_NPROC, 1 + more)  # besides the thread that there is
    await open_and_use(opener, THREADS)
    limit(resource.RLIMIT_NPROC, usual)
    assert not await open_and_use(opener, THREADS)

asyncio.run(main())
print("went on")
"""


@pytest.mark.parametrize(
    ("opener", "more"),
    [
        *((o, n) for o in ("default", "accelerated", "framework") for n in range(5)),
        # With 1 or 2, NumPy's BLAS, which starts threads, ends the driver.
        *(("connect", n) for n in (0, 3, 4)),
    ],
)
def test_where_the_system_refuses_threads_it_is_the_same(
    opener: str, more: int
) -> None:
    assert output_of(PROGRAM, opener, more) == "went on\n"
