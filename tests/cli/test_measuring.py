"""A driver without work has capabilities measured once, and work ends that."""

import asyncio
import fcntl
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncnn.cli.serving import measured_when_idle
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
    load_measurement,
    store_measurement,
)
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.runtime.device import Device
from asyncnn.tools.capabilities import once
from asyncnn.tools.capabilities.calibration import MeasuredByModel, Subject, workloads
from asyncnn.tools.reference_models import REFERENCE_MODELS
from tests.cli.conftest import Ran
from tests.networks import chain
from tests.waits import until

ONES = dict.fromkeys(ReferenceWorkload, 1.0)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


@pytest.fixture
def begun(tmp_path: Path) -> Callable[[], list[int]]:
    """The processes that have begun to measure; each adds a line."""
    path = tmp_path / "begun"
    path.touch()
    return lambda: [int(pid) for pid in path.read_text().splitlines()]


@pytest.fixture
def info(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "asyncnn.cli.serving")
    return caplog


@pytest.fixture
async def hal() -> AsyncIterator[ReferenceDevice]:
    async with ReferenceDevice(DeviceSettings(capabilities_file="/nowhere")) as hal:
        yield hal


def command(tmp_path: Path, then: str) -> list[str]:
    code = f"""
import os, signal, sys, time
with open({str(tmp_path / "begun")!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
{then}"""
    return [sys.executable, "-S", "-c", code]


def is_there(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("", "capabilities are measured, and in force from the next boot on"),
        ("assert os.nice(0) == 19, os.nice(0)", "capabilities are measured, and"),
        ("sys.exit('it is\\nread-only')", "capabilities are not measured: read-only"),
        ("signal.alarm(0); os.kill(0, signal.SIGALRM)", "are not measured: SIGALRM"),
    ],
)
async def test_it_is_done_once(
    hal: IDevice,
    begun: Callable[[], list[int]],
    info: pytest.LogCaptureFixture,
    tmp_path: Path,
    then: str,
    told: str,
) -> None:
    wait = "\nwhile os.nice(0) < 19: time.sleep(0.001)\n"
    async with measured_when_idle(hal, [], command(tmp_path, wait + then), 0.001):
        await until(lambda: info.messages)
    (message,) = info.messages
    assert told in message
    assert len(begun()) == 1


@pytest.mark.parametrize("is_apart", [False, True])
async def test_work_ends_it_until_there_is_none(
    hal: IDevice, begun: Callable[[], list[int]], tmp_path: Path, is_apart: bool
) -> None:
    never = command(tmp_path, "time.sleep(600)")
    async with ReferenceDevice() as other:
        apart = [other]
        async with measured_when_idle(hal, apart, never, 0.001):
            await until(lambda: len(begun()) == 1)
            await Device("", other if is_apart else hal).prepare(chain(1, 4))
            await until(lambda: len(begun()) == 2)
            assert not is_there(begun()[0])
        assert not is_there(begun()[1])


async def test_it_is_not_begun_while_there_is_work_or_others_have_the_machine(
    hal: ReferenceDevice,
    begun: Callable[[], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    asked: list[float] = []

    def load() -> tuple[float, ...]:
        asked.append((os.cpu_count() or 1) * 0.6)
        return (asked[-1],)

    monkeypatch.setattr(os, "getloadavg", load)
    async with measured_when_idle(hal, [], command(tmp_path, ""), 0.001):
        await until(lambda: len(asked) > 3)
    assert not begun()


@pytest.mark.parametrize("is_measured", [False, True])
async def test_what_is_in_force_is_not_measured_again(
    begun: Callable[[], list[int]], tmp_path: Path, is_measured: bool
) -> None:
    file = str(tmp_path / "figures")
    if is_measured:
        kept = replace(CapabilityMeasurement.now(ONES), boot="an earlier one")
        store_measurement(kept, file)
    given = command(tmp_path, "") if is_measured else []
    async with ReferenceDevice(DeviceSettings(capabilities_file=file)) as hal:
        before = asyncio.all_tasks()
        async with measured_when_idle(hal, [], given, 0.0):
            assert asyncio.all_tasks() == before


def test_a_driver_can_be_told_not_to(
    asyncnn_command: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def told(what: str) -> Callable[..., object]:
        def fail(*_: object, **__: object) -> object:
            raise InvalidArgumentError(what)

        return fail

    monkeypatch.setattr("asyncnn.cli.serving.measuring_command", told("it measures"))
    monkeypatch.setattr("asyncnn.service.driver.server.Server", told("it serves"))
    serve = partial(asyncnn_command, "serve", "--socket", tmp_path / "driver.sock")
    assert "it measures" in serve().err
    assert "it serves" in serve("--no-measure").err


class TestProcess:
    """What is run then: `asyncnn.tools.capabilities.once`."""

    @pytest.fixture(autouse=True)
    def measured(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """The names of what was measured, in place of measuring it."""
        names: list[str] = []

        async def measure(
            *, rounds: int, progress: Callable[[Sequence[Subject]], Iterable[Subject]]
        ) -> CapabilityMeasurement:
            names.extend(each.name for each in progress(self.subjects))
            return CapabilityMeasurement.now(ONES)

        monkeypatch.setattr(once, "measure_capabilities", measure)
        yield names
        signal.setitimer(signal.ITIMER_REAL, 0)

    subjects: Sequence[Subject] = (
        *workloads(),
        MeasuredByModel("a model", REFERENCE_MODELS["asr_float"]),
    )

    def test_it_measures_once(self, measured: list[str], tmp_path: Path) -> None:
        file = str(tmp_path / "folder" / "figures")
        once.main(file, "100")
        assert load_measurement(file) is not None
        assert measured == [*ReferenceWorkload, "a model"]
        once.main(file, "100")
        assert len(measured) == len(self.subjects)

    def test_what_was_measured_with_other_versions_is_measured_again(
        self, measured: list[str], tmp_path: Path
    ) -> None:
        file = str(tmp_path / "figures")
        kept = CapabilityMeasurement.now(ONES)
        other = replace(kept.surroundings, numpy="1.0")
        store_measurement(replace(kept, surroundings=other), file)
        once.main(file, "100")
        assert measured
        assert load_measurement(file) is not None

    def test_models_for_which_there_is_no_time_are_left_out(
        self, measured: list[str], tmp_path: Path
    ) -> None:
        once.main(str(tmp_path / "figures"), "0")
        assert measured == list(ReferenceWorkload)

    def test_it_ends_after_so_long(self, tmp_path: Path) -> None:
        once.main(str(tmp_path / "figures"), "100")
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 100

    def test_another_one_is_left_to_it(
        self, measured: list[str], tmp_path: Path
    ) -> None:
        held = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        once.main(str(tmp_path / "figures"), "100")
        os.close(held)
        assert not measured

    def test_nothing_is_measured_that_cannot_be_kept(
        self, measured: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(SystemExit):
            once.main(str(tmp_path / "file" / "figures"), "100")
        assert "nothing could be kept" in capsys.readouterr().err
        assert not measured
