"""``asyncnn record`` and ``asyncnn replay``: files, exit codes, words."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import asyncnn
from asyncnn.cli.replay import driver_pid
from asyncnn.devices import ReferenceDevice
from asyncnn.devices.accelerated import AcceleratedDevice
from asyncnn.extensions.regions import LITERT
from asyncnn.hal.errors import NoDriverError
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.framework.device_registry import ENTRY_POINTS
from asyncnn.service import RecordingSettings
from asyncnn.service.recording import read_record, write_record
from tests.cli.conftest import Ran
from tests.extensions.installing import install
from tests.networks import addition, as_regions
from tests.service.raw import RawClient
from tests.service.recorders import EVERYTHING, noted_by, recording_driver

Command = Callable[..., Ran]
MODEL = asyncnn.bundled_file("digits_float.asyncnn")


class Dying(ReferenceDevice):
    """A device as another package brings it, which ends its process."""

    def prepare_model_1_3(self, *_: Any) -> ErrorStatus:
        os._exit(7)


@pytest.fixture
def recording(tmp_path: Path) -> Callable[[RecordingSettings], Path]:
    """Return what writes a recording of a few runs, by a driver like that."""

    def write(settings: RecordingSettings) -> Path:
        async def record() -> None:
            path = tmp_path / "socket"
            async with recording_driver(path, settings) as recorder:
                async with asyncnn.connect(path) as device:
                    prepared = await device.prepare(asyncnn.load(MODEL))
                    for number in range(3):
                        await prepared.run(np.full((1, 8, 8, 1), number, np.float32))
                write_record(noted_by(recorder), tmp_path / "driver.calls")

        asyncio.run(record())
        return tmp_path / "driver.calls"

    return write


def test_equal_ones_are_told(
    asyncnn_command: Command, recording: Callable[[RecordingSettings], Path]
) -> None:
    ran = asyncnn_command("replay", recording(EVERYTHING), "--json")
    assert ran.status == 0, ran
    report = json.loads(ran.out)
    assert report["calls"] == report["repeated"] == 4
    assert report["compared"] == 3
    assert report["differences"] == []


def test_a_difference_is_told_and_cut_down(
    asyncnn_command: Command, recording: Callable[[RecordingSettings], Path]
) -> None:
    file = recording(EVERYTHING)
    record = read_record(file)
    *others, last = record.calls
    last = msgspec.structs.replace(last, outputs=(bytes(40),))
    write_record(msgspec.structs.replace(record, calls=(*others, last)), file)
    ran = asyncnn_command("replay", file, "--bisect", "--bench")
    assert ran.status == 1, ran
    assert "call 3 (execute): output 0: " in ran.out
    assert "execute: 3, " in ran.out
    assert read_record(f"{file}.cut").calls == (last,)


def test_what_a_tolerance_allows_is_no_difference(
    asyncnn_command: Command, recording: Callable[[RecordingSettings], Path]
) -> None:
    file = recording(EVERYTHING)
    record = read_record(file)
    *others, last = record.calls
    off = np.frombuffer(last.outputs[0] or b"", np.float32) + np.float32(1e-3)
    last = msgspec.structs.replace(last, outputs=(off.tobytes(),))
    write_record(msgspec.structs.replace(record, calls=(*others, last)), file)
    assert asyncnn_command("replay", file).status == 1
    assert asyncnn_command("replay", file, "--atol", "2e-3").status == 0
    ran = asyncnn_command("replay", file, "--atol", "1e-4")
    assert ran.status == 1, ran
    assert "10 of 10 elements, by up to 0.001" in ran.out


def test_a_device_that_ends_its_process_is_told(
    asyncnn_command: Command,
    recording: Callable[[RecordingSettings], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    install(monkeypatch, tmp_path, f"{__name__}:Dying", "dying", ENTRY_POINTS)
    ran = asyncnn_command("replay", recording(EVERYTHING), "--device", "dying")
    assert ran.status == 1, ran
    assert "the driver died" in ran.out


def test_models_that_were_not_kept_are_given(
    asyncnn_command: Command, recording: Callable[[RecordingSettings], Path]
) -> None:
    file = recording(RecordingSettings())
    ran = asyncnn_command("replay", file)
    assert (ran.status, ran.err.count("\n")) == (2, 1), ran
    assert "no call of " in ran.err
    assert "not repeated: 4, its model is not in the recording (--model)" in ran.out
    ran = asyncnn_command("replay", file, "--model", MODEL, "--paced")
    assert ran.status == 0, ran
    assert "4 calls, 4 repeated" in ran.out


def test_a_region_is_translated_where_its_engine_is_not(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    path, file = tmp_path / "socket", tmp_path / "driver.calls"

    async def record() -> None:
        async with recording_driver(path, kind=AcceleratedDevice) as recorder:
            async with asyncnn.connect(path) as device:
                with as_regions(LITERT):
                    prepared = await device.prepare(addition(4))
                await prepared.run([np.arange(4, dtype=np.float32)] * 2)
            write_record(noted_by(recorder), file)

    asyncio.run(record())
    (model,) = read_record(file).models.values()
    assert LITERT.encode() in model.content
    ran = asyncnn_command("replay", file, "--device", "reference")
    assert ran.status == 0, ran
    assert "2 calls, 2 repeated" in ran.out
    assert "outputs of 1 compared" in ran.out


@pytest.mark.parametrize("words", [("replay", MODEL), ("record", "--socket", "@none")])
def test_bad_input_is_one_line(
    asyncnn_command: Command, tmp_path: Path, words: tuple[object, ...]
) -> None:
    more = ["--output", tmp_path / "x.calls"] if words[0] == "record" else []
    ran = asyncnn_command(*words, *more)
    assert ran.status == 2, ran
    assert ran.err.count("\n") == 1


def test_a_running_driver_is_recorded(asyncnn_command: Command, tmp_path: Path) -> None:
    async def main() -> Ran:
        path = tmp_path / "socket"
        async with recording_driver(path), asyncnn.connect(path) as device:
            await device.prepare(asyncnn.load(MODEL))
            words = "--socket", path, "--output", tmp_path / "x.calls"
            # The driver need not answer: its loop does nothing meanwhile.
            return asyncnn_command("record", *words)

    ran = asyncio.run(main())
    assert ran.status == 0, ran
    assert ran.out.startswith("1 call in ")
    assert len(read_record(tmp_path / "x.calls").calls) == 1


def test_a_driver_that_takes_nobody_any_more_is_found(tmp_path: Path) -> None:
    path, waiting = tmp_path / "socket", []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting.append(RawClient.connect(path))
        assert driver_pid(path) == os.getpid()
    for each in waiting:
        each.close()
    with pytest.raises(NoDriverError):
        driver_pid(path)
