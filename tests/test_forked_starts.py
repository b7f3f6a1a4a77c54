"""Drivers of tests that are forked are as those that are started anew."""

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from asyncnn.service.process import driver_process
from tests import forked_starts
from tests.forked_starts import ForkServer
from tests.waits import until


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    server = ForkServer()
    server.wait_ready()
    monkeypatch.setattr(forked_starts, "server", server)
    yield server
    server.close()


@contextmanager
def that_forks(server: ForkServer, count: int) -> Iterator[None]:
    before = server.count
    yield
    assert server.count == before + count


def facts_of(pid: int) -> dict[str, object]:
    """Return what a process has of its parent."""
    place = Path(f"/proc/{pid}")
    lines = dict(
        line.split(":\t", 1)
        for line in (place / "status").read_text().splitlines()
        if ":\t" in line
    )
    named = ("PPid", "Umask", "Uid", "Gid", "SigBlk", "SigIgn", "SigCgt")
    return {name: lines[name] for name in named} | {
        "descriptors": descriptors_of(pid),
        "folder": os.readlink(place / "cwd"),
        "limits": (place / "limits").read_text(),
        "session": os.getsid(pid),
        "leads": os.getpgid(pid) == pid,
        "niceness": os.getpriority(os.PRIO_PROCESS, pid),
        "processors": os.sched_getaffinity(pid),
    }


def descriptors_of(pid: int) -> list[str]:
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it is closed by now
            links.append(os.readlink(each))
    return sorted(link.split(":")[0] for link in links)


def command_of(pid: int) -> list[str]:
    shown = Path(f"/proc/{pid}/cmdline").read_text()
    return shown.rstrip("\0").split("\0")


async def test_a_forked_one_has_what_it_would_have_otherwise(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with that_forks(server, 1), driver_process() as forked:
        server.is_wanted = False
        with driver_process() as usual:
            # Both close what has looked for them, and where they tell why they fail.
            await until(lambda: descriptors_of(forked.pid) == descriptors_of(usual.pid))
            assert facts_of(forked.pid) == facts_of(usual.pid)
            for each in (forked, usual):
                assert command_of(each.pid) == each.process.args


def test_it_ends_as_others(server: ForkServer) -> None:
    with that_forks(server, 2):
        with driver_process() as driver:
            pass
        assert driver.process.returncode == 0
        with driver_process() as driver:
            driver.kill()
        assert driver.process.returncode == -signal.SIGKILL


def test_in_other_circumstances_none_is_forked(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with that_forks(server, 1), driver_process():
        pass
    with that_forks(server, 0):
        with monkeypatch.context() as patch:
            patch.setenv("ASYNCNN_VLOG", "driver")
            with driver_process():
                pass
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        try:
            with driver_process():
                pass
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_the_server_all_are_started_anew(server: ForkServer) -> None:
    server.process.kill()
    server.process.wait()
    for _ in range(2):
        with that_forks(server, 0), driver_process() as driver:
            pass
        assert driver.process.returncode == 0
