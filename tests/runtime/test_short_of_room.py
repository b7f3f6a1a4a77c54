"""Devices where descriptors or memory run out, in this process and in a driver."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryFile

import pytest

import asyncnn
from asyncnn.hal.errors import NoDriverError
from asyncnn.service.process import driver_process
from tests.limits import lowered
from tests.processes import executed
from tests.service.limited import limited_driver
from tests.shortages import DESCRIPTORS, MEMORY, Outcomes, taken_bytes, use

MIB = 2**20
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.exhaustive

PROGRAM = """
import asyncio, gc, json, os, resource, sys, threading
import asyncnn
import numpy as np
from tests.limits import limit
from tests.shortages import *

for line in sys.stdin:
    child = os.fork()
    if not child:
        break
    print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

opener, kind, most, begins, cache = json.loads(line)
options = {"cache_dir": cache} if cache else {}
limited = {"descriptors": resource.RLIMIT_NOFILE, "memory": resource.RLIMIT_AS}[kind]
say = {"descriptors": DESCRIPTORS, "memory": MEMORY}[kind]
usual = resource.getrlimit(limited)[0]

together = threading.Barrier(4)

def multiply():
    square = np.ones((512, 512), np.float32)
    together.wait()
    square @ square

def give_little():
    if kind == "memory":  # OpenBLAS ends a process where it finds none at its first use
        threads = [threading.Thread(target=multiply) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    gc.collect()
    limit(limited, most if kind == "descriptors" else taken_bytes() + most)

async def while_open():
    async with OPENERS[opener](**options) as device:
        give_little()
        outcomes = Outcomes(say)
        await use(device, outcomes)
        limit(limited, usual)
        again = Outcomes(say)
        await use(device, again)
        assert not again.failed, again.failed
    return outcomes.failed

async def from_the_start():
    if kind == "memory":  # as Python has none to import modules with
        await open_and_use(opener, say, **options)
    give_little()
    failed = await open_and_use(opener, say, **options)
    limit(limited, usual)
    return failed

async def main():
    failed = await (while_open() if begins == "open" else from_the_start())
    assert not await open_and_use(opener, say, **options)
    gc.collect()
    before = held()
    assert not await open_and_use(opener, say, **options)
    gc.collect()
    for _ in range(500):  # a thread that has nothing to do may still be ending
        if held() <= before:
            break
        await asyncio.sleep(0.01)
    assert held() <= before, (held(), before)
    print(*failed or ["nothing"], sep=", ")

asyncio.run(main())
"""


Failures = Callable[..., list[str]]


@pytest.fixture(scope="module")
def failures() -> Iterator[Failures]:
    """What fails in a process of its own, which goes on when there is room.

    They are forked by one that has imported what they need.
    """
    with TemporaryFile("w+") as errors:
        forking = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

        def of(
            opener: str, kind: str, most: int, begins: str, cache_dir: Path | str = ""
        ) -> list[str]:
            assert forking.stdin is not None
            assert forking.stdout is not None
            given = opener, kind, most, begins, str(cache_dir)
            print(json.dumps(given), file=forking.stdin, flush=True)
            printed = []
            while (line := forking.stdout.readline()) and not line.startswith("ended"):
                printed.append(line)
            errors.seek(0)
            assert (len(printed), line) == (1, "ended 0\n"), (printed, errors.read())
            return printed[0].strip().split(", ")

        with forking:
            try:
                yield of
            finally:
                forking.kill()


Turns = list[tuple[str, int, str]]


def by_turns(openers: Sequence[str], limits: Sequence[int]) -> Turns:
    """Return pairs of both, half of them with the device open before it is short.

    So is each of both in some.
    """
    return [
        (opener, most, "" if (number + place) % 2 else "open")
        for number, opener in enumerate(openers)
        for place, most in enumerate(limits)
    ]


ORDER = ("opener", "most", "begins")
IN_PROCESS = ("default", "reference", "framework", "accelerated")
FEW = (3, 5, 6, 7, 8, 10, 12, 16, 24)


@pytest.mark.parametrize(ORDER, by_turns(IN_PROCESS, FEW))
def test_in_process_without_descriptors(
    failures: Failures, opener: str, most: int, begins: str
) -> None:
    failures(opener, "descriptors", most, begins)


def test_a_first_graph_without_descriptors_spoils_no_other(failures: Failures) -> None:
    """XNNPACK would not work in that process any more."""
    assert "long model" in failures("accelerated", "descriptors", 7, "open")


@pytest.mark.parametrize("opener", ["accelerated", "connect"])
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        *(("descriptors", n) for n in (9, 10, 11, 12, 13, 14, 16, 18, 20)),
        *(("memory", n * MIB) for n in (1, 10, 14, 20, 30, 60)),
    ],
)
def test_with_a_cache(
    failures: Failures, kind: str, most: int, opener: str, tmp_path: Path
) -> None:
    failures(opener, kind, most, "open", tmp_path)


LITTLE = (0, 1, 4, 9, 10, 12, 14, 18, 22, 27, 35, 50, 80, 160)


@pytest.mark.parametrize(ORDER, by_turns(IN_PROCESS[:3], LITTLE))
def test_in_process_without_memory(
    failures: Failures, opener: str, most: int, begins: str
) -> None:
    failures(opener, "memory", most * MIB, begins)


@pytest.mark.parametrize("opener", ["connect", "isolated"])
@pytest.mark.parametrize("most", [5, 7, 9, 11, 13, 16, 20, 24, 32])
def test_a_client_without_descriptors(
    failures: Failures, most: int, opener: str
) -> None:
    failures(opener, "descriptors", most, "")


@pytest.mark.parametrize("mib", [0, 1, 4, 10, 14, 20, 35, 80])
def test_a_client_without_memory(failures: Failures, mib: int) -> None:
    failures("connect", "memory", mib * MIB, "open")


@pytest.mark.parametrize("device", ["reference", "accelerated"])
@pytest.mark.parametrize("most", [5, 6, 8, 16, 24, 32, 40, 48, 52, 64, 72])
async def test_a_driver_has_enough_descriptors_or_says_what_it_needs(
    tmp_path: Path, most: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCNN_DEVICE", device)
    outcomes = Outcomes(DESCRIPTORS)
    needed = rf"needs a limit of [56]\d open files, and has {most} \(ulimit -Hn\)"
    says_so = pytest.raises(NoDriverError, match=needed)
    with (
        says_so if most < 56 else nullcontext(),
        limited_driver(tmp_path, f"-n {most}") as driver,
    ):
        async with asyncnn.connect(driver.path) as remote:
            await use(remote, outcomes)
        assert driver.process.poll() is None
    assert not outcomes.failed


@pytest.mark.parametrize("option", ["-n 32", "-n 8"])
def test_a_driver_that_lacks_descriptors_ends_with_a_line(
    tmp_path: Path, option: str
) -> None:
    command = f"ulimit {option}; exec {sys.executable} -m asyncnn serve --socket $0"
    ended = executed("/bin/sh", "-c", command, tmp_path / "driver.sock", timeout=60)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert re.fullmatch(r"asyncnn: a driver needs a limit of \d+ open files.*", line)


@pytest.mark.parametrize("device", ["reference", "accelerated"])
@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("mib", [0, 4, 9, 12, 16, 20, 28, 40, 100])
async def test_a_driver_without_memory(mib: int, is_warm: bool, device: str) -> None:
    with driver_process(device=device) as driver:
        async with asyncnn.connect(driver.path) as remote:
            if is_warm:
                await use(remote, Outcomes(MEMORY))
            most = taken_bytes(driver.pid) + mib * MIB
            with lowered(driver, resource.RLIMIT_AS, most):
                await use(remote, Outcomes(MEMORY))
            outcomes = Outcomes(MEMORY)
            await use(remote, outcomes)
            assert not outcomes.failed
