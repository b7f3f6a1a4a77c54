import asyncio
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import (
    DeviceUnavailableError,
    InvalidArgumentError,
    NoDriverError,
)
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server
from asyncnn.service.process import (
    can_connect,
    driver_process,
    private_address,
    running_driver,
    socket_address,
)
from tests.processes import python
from tests.waits import until

pytestmark = pytest.mark.started_anew


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


async def test_one_that_tries_an_engine_in_another_process_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trying = tmp_path / "python"
    trying.write_text("#!/bin/sh\nsleep 1\nexit 3\n")
    trying.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(trying))
    monkeypatch.setattr("asyncnn.service.process._START_TIMEOUT_S", 0.1)
    with pytest.raises(NoDriverError, match="ended with status 3"), driver_process():
        pytest.fail("started")


def test_one_that_is_slow_on_a_busy_machine_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncnn.service.process._START_TIMEOUT_S", 0.0)
    ticks = count()
    told = "asyncnn.service.process._used_ticks"
    monkeypatch.setattr(told, lambda pid: next(ticks))
    with driver_process() as driver:
        assert can_connect(driver.path)
    assert next(ticks) > 2
    monkeypatch.setattr(told, lambda pid: 1)
    with pytest.raises(NoDriverError, match="asyncnn serve"), driver_process():
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
    assert not can_connect(path)


@pytest.mark.parametrize("also_kills_driver", [False, True])
@pytest.mark.parametrize("timeout", [0.02, 60], ids=["starting", "connected"])
def test_an_application_that_is_killed_leaves_no_file(
    tmp_path: Path, timeout: float, also_kills_driver: bool
) -> None:
    code = (
        "import asyncio, asyncnn\n"
        "async def main():\n"
        "    entering = asyncio.ensure_future(asyncnn.connect().__aenter__())\n"
        "    await asyncio.wait({entering}, timeout=TIMEOUT)\n"
        "    print('go', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    folders = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code.replace("TIMEOUT", str(timeout))],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | folders,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "go\n"
        (driver,) = children_of(owner.pid)
        if also_kills_driver:
            os.kill(driver, signal.SIGKILL)
        owner.kill()
    asyncio.run(until(lambda: not is_running(driver)))
    assert os.listdir(tmp_path) == []


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()]


async def test_names_of_the_kernels_are_served_like_paths() -> None:
    name = private_address()
    with driver_process(name) as driver:
        assert can_connect(name)
        assert not driver.path.exists()
        async with connect(name) as device:
            assert device.name == f"remote:{name}"
        with (
            pytest.raises(DeviceUnavailableError, match="already"),
            driver_process(name),
        ):
            pytest.fail("started")
        async with ReferenceDevice() as hal:
            with pytest.raises(DeviceUnavailableError, match="already"):
                async with Server(hal, name):
                    pytest.fail("served")
        driver.kill()
        async with ReferenceDevice() as hal, Server(hal, name):
            assert can_connect(name)
        assert not can_connect(name)
    with pytest.raises(InvalidArgumentError, match="107"):
        socket_address("@" + "x" * 107)


class TestSettings:
    async def test_a_driver_that_is_running_has_its_own(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="serve --settings"):
            async with connect(tmp_path / "driver.sock", settings=DeviceSettings()):
                pass

    async def test_what_is_wrong_with_a_file_is_said_before_a_driver_starts(
        self, tmp_path: Path
    ) -> None:
        file = tmp_path / "driver.toml"
        file.write_text("max_pendin = 3")
        with pytest.raises(InvalidArgumentError, match="did you mean max_pending"):
            async with connect(settings=file):
                pass


FAILS_AT_THE_END = """
import os, sys
from asyncnn.service import start

reason, other = os.memfd_create("reason"), os.memfd_create("a file opened later")

class Failing(start.Server):
    async def __aexit__(self, *raised):
        await super().__aexit__(*raised)
        os.dup2(other, reason)
        raise OSError("closing failed")

start.Server = Failing
try:
    start.main([*sys.argv[1:], f"--reason-fd={reason}"])
except SystemExit as error:
    assert error.code
else:
    raise AssertionError("it has not failed")
assert not os.fstat(other).st_size, os.pread(other, 100, 0)
"""


def test_no_reason_is_written_to_other_files(tmp_path: Path) -> None:
    options = [f"--socket={tmp_path / 'socket'}", "--device=reference"]
    done = python("-c", FAILS_AT_THE_END, *options, input="", timeout=30)
    assert "closing failed" in done.stderr
    assert done.returncode == 0, done.stderr
