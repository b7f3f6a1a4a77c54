import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncnn.errors import DeviceUnavailableError, InvalidArgumentError
from asyncnn.service.paths import can_connect
from asyncnn.service.process import driver_process, running_driver
from tests.service.fake_driver import until

pytestmark = pytest.mark.slow


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def test_it_serves_until_the_block_is_left() -> None:
    with driver_process() as driver:
        assert can_connect(driver.path)
        assert is_running(driver.pid)
    assert not can_connect(driver.path)
    assert not driver.path.parent.exists()
    assert driver.process.returncode == 0


async def test_it_may_die_before(tmp_path: Path) -> None:
    path = tmp_path / "driver.sock"
    async with running_driver(path) as driver:
        driver.kill()
        assert not can_connect(path)
    assert driver.process.returncode == -signal.SIGKILL
    async with running_driver(path) as second:  # beside the socket it left
        assert second.path == path


async def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncnn.service.process._STOP_TIMEOUT_S", 0.1)
    with driver_process() as driver:
        os.kill(driver.pid, signal.SIGSTOP)
    assert driver.process.returncode == -signal.SIGKILL


async def test_one_that_does_not_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DeviceUnavailableError, match="ended with status 1"):
        async with running_driver():
            pytest.fail("started")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(DeviceUnavailableError, match="No such file"), driver_process():
        pytest.fail("started")


async def test_one_that_takes_too_long_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr("asyncnn.service.process._START_TIMEOUT_S", 0.05)
    with (
        pytest.raises(DeviceUnavailableError, match="does not start"),
        driver_process(),
    ):
        pytest.fail("started")


async def test_a_path_that_is_served_is_refused() -> None:
    with driver_process() as first:
        with (
            pytest.raises(DeviceUnavailableError, match="already"),
            driver_process(first.path),
        ):
            pytest.fail("started")
        assert can_connect(first.path)


async def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="107"),
        driver_process(tmp_path / ("x" * 120)),
    ):
        pytest.fail("started")


def test_it_does_not_outlive_a_parent_that_is_killed() -> None:
    code = (
        "import time\n"
        "from asyncnn.service.process import driver_process\n"
        "with driver_process() as driver:\n"
        "    print(driver.pid, driver.path, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, path = parent.stdout.readline().split()
        assert is_running(int(pid))
        parent.kill()
    asyncio.run(until(lambda: not is_running(int(pid))))
    os.rmdir(os.path.dirname(path))  # the socket is gone
