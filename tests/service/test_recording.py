"""A driver keeps its last calls in memory that outlives it, and within bounds."""

import asyncio
import gc
import hashlib
import os
import random
import signal
import subprocess
import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest

import asyncnn
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    MISSED,
    DriverDiedError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineError,
)
from asyncnn.memory.shared import allocate
from asyncnn.service import RecordingSettings, Supervision
from asyncnn.service.driver.recorder import NotedBlob
from asyncnn.service.recorded_memory import (
    HEAD_BYTES,
    MEMORY_NAME,
    PENDING,
    RECORD_BYTES,
    CallFlag,
    CallKind,
    open_memory,
    read_memory,
)
from asyncnn.service.recording import (
    MAGIC,
    CallRecord,
    RecordedPool,
    RecordedRequest,
    read_record,
    save_memory,
    write_record,
)
from tests.networks import addition, chain
from tests.service.bad_models import BAD_MODELS
from tests.service.raw import RawClient, execute
from tests.service.recorders import EVERYTHING, noted_by, recording_driver
from tests.waits import until

X = [np.arange(4, dtype=np.float32), np.ones(4, np.float32)]


async def test_calls_of_two_clients_with_what_they_gave(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with recording_driver(path) as recorder:
        for named in (addition(4), chain(3, 4)):
            async with asyncnn.connect(path) as device:
                prepared = await device.prepare(named)
                inputs = X[: len(prepared.inputs)]
                for way in ("async", "fenced"):
                    (z,) = (await prepared.run(inputs, path=way)).values()
                async with prepared.burst() as burst:
                    await burst.run(inputs)
        record = noted_by(recorder)
    connections = sorted({call.connection for call in record.calls})
    assert len(connections) == 2
    assert {call.pid for call in record.calls} == {os.getpid()}
    for connection in connections:
        calls = [each for each in record.calls if each.connection == connection]
        kinds = [call.kind for call in calls]
        assert kinds[0] is CallKind.PREPARE
        assert kinds[1:] == [CallKind.EXECUTE, CallKind.FENCED, CallKind.BURST]
        assert {call.status for call in calls} == {0}
        model = record.models[calls[0].subject]
        assert len(model.content) <= model.size
        for call in calls[1:]:
            assert record.requests[call.subject].model == calls[0].subject
            assert call.details.inputs[0] == X[0].tobytes()
    assert record.calls[-1].outputs == (z.tobytes(),)


async def test_neither_models_nor_tensors_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with recording_driver(path, RecordingSettings()) as recorder:
        async with asyncnn.connect(path) as device:
            prepared = await device.prepare(addition(4))
            await prepared.run([np.full(4, 1234.5, np.float32)] * 2)
        memory = os.pread(recorder.fd, 2**23, 0)
        record = noted_by(recorder)
    assert [call.kind.name for call in record.calls] == ["PREPARE", "EXECUTE"]
    (model,) = record.models.values()
    assert len(model.digest) == 32
    assert not model.content
    assert np.float32(1234.5).tobytes() not in memory
    assert record.calls[1].details.inputs == record.calls[1].outputs == ()


async def test_memory_is_fixed_and_what_is_in_use_stays_known(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    settings = RecordingSettings(calls=20, models=True, tensors=True, max_bytes=2**16)
    async with recording_driver(path, settings) as recorder:
        size = os.fstat(recorder.fd).st_size
        async with asyncnn.connect(path) as device:
            prepared = await device.prepare(chain(1, 64))
            async with prepared.burst() as burst:
                for number in range(300):
                    await burst.run(np.full(64, number, np.float32))
        record = noted_by(recorder)
        assert os.fstat(recorder.fd).st_size == size
    assert size <= 2**16 + 2 * HEAD_BYTES
    assert len(record.calls) == 20
    for number, call in enumerate(record.calls, 280):
        model = record.models[record.requests[call.subject].model]
        assert model.content
        assert call.details.inputs == (np.full(64, number, np.float32).tobytes(),)


async def test_what_is_too_large_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    settings = RecordingSettings(models=True, tensors=True, max_bytes=2**16)
    async with recording_driver(path, settings) as recorder:
        async with asyncnn.connect(path) as device:
            prepared = await device.prepare(chain(1, 2**14))
            await prepared.run(np.zeros(2**14, np.float32))
        record = noted_by(recorder)
    assert [call.status for call in record.calls] == [0, 0]
    assert record.calls[1].outputs == ()
    assert record.calls[1].flags == CallFlag.PARTIAL


async def test_a_request_for_the_same_bytes_many_times_takes_no_memory(
    tmp_path: Path,
) -> None:
    async with recording_driver(tmp_path / "socket"):
        client = await RawClient.connect(tmp_path / "socket").greet()
        try:
            await client.prepare(1, addition(4).model)
            client.announce(2, allocate(2**22))
            order = execute(3, 1, *[(0, 0, 2**22)] * 40, pools=(2,))
            tracemalloc.start()
            assert (await client.execute(order)).status
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()
            client.close()


async def test_nothing_is_kept_for_models_that_were_refused(tmp_path: Path) -> None:
    async with recording_driver(tmp_path / "socket"):
        client = await RawClient.connect(tmp_path / "socket").greet()
        try:
            for number in range(20):
                assert (await client.prepare(number, BAD_MODELS["cyclic"])).status
            gc.collect()
            assert not [x for x in gc.get_objects() if isinstance(x, NotedBlob)]
        finally:
            client.close()


async def test_a_missed_deadline_writes_a_file(tmp_path: Path) -> None:
    path, file = tmp_path / "socket", tmp_path / "missed.calls"
    settings = RecordingSettings(missed_deadlines_to=str(file))
    async with recording_driver(path, settings), asyncnn.connect(path) as device:
        prepared = await device.prepare(chain(300, 256, 256))
        with pytest.raises(MissedDeadlineError):
            await prepared.run(np.zeros((256, 256), np.float32), timeout=0.001)
        await until(file.exists)
    missed = [call for call in read_record(file).calls if call.status]
    assert missed[-1].kind is CallKind.EXECUTE
    assert missed[-1].status in MISSED
    assert missed[-1].deadline is not None


async def test_a_supervisor_writes_the_calls_of_a_driver_that_was_killed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "crash.calls"
    given = Supervision(record_to=str(file), recording=EVERYTHING)
    async with asyncnn.connect(device="reference", supervised=given) as device:
        small = await device.prepare(addition(4))
        await small.run(X)
        never, source = SyncFence.pair()
        waiting = small.run_fenced(X, wait_for=[never])
        pid = device.hal._inner().pid
        fd = open_memory(pid)
        try:
            await until(lambda: read_memory(fd).calls[-1].status == PENDING)
        finally:
            os.close(fd)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DriverDiedError):
            await waiting
        source.signal()
        await until(file.exists)
        await small.run(X)  # by the next driver
    record = read_record(file)
    assert record.driver.pid == pid
    assert record.driver.device == "reference"
    assert [call.status for call in record.calls] == [0, 0, None]
    assert record.calls[2].details.foreign == 1
    assert record.calls[2].details.inputs == tuple(x.tobytes() for x in X)
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_process_without_a_recorder_has_no_memory_of_calls() -> None:
    forged = os.memfd_create(MEMORY_NAME, os.MFD_ALLOW_SEALING)
    try:
        with subprocess.Popen(["sleep", "60"], pass_fds=[forged]) as process:
            try:
                with pytest.raises(GeneralFailureError, match="records no calls"):
                    open_memory(process.pid)
            finally:
                process.kill()
    finally:
        os.close(forged)


async def recorded(path: Path) -> tuple[CallRecord, bytes]:
    """Return a recording, and the memory that it was made of."""
    settings = RecordingSettings(calls=20, models=True, tensors=True, max_bytes=2**16)
    async with recording_driver(path / "socket", settings) as recorder:
        async with asyncnn.connect(path / "socket") as device:
            prepared = await device.prepare(addition(4))
            await asyncio.gather(*(prepared.run(X) for _ in range(8)))
        size = os.fstat(recorder.fd).st_size
        return noted_by(recorder), os.pread(recorder.fd, size, 0)


def in_memory(data: bytes) -> int:
    fd = os.memfd_create("damaged")
    os.write(fd, data)
    return fd


async def test_damaged_memory_is_refused_or_read_in_part(tmp_path: Path) -> None:
    record, memory = await recorded(tmp_path)
    chance = random.Random(1)
    used = HEAD_BYTES + 20 * RECORD_BYTES
    refused: list[str] = []
    for trial in range(80):
        data = bytearray(memory)
        if trial < 20:
            del data[chance.randrange(len(data)) :]
        for _ in range(8):
            if data:
                data[chance.randrange(min(used, len(data)))] = chance.randrange(256)
        fd = in_memory(data)
        try:
            save_memory(fd, tmp_path / "part")
        except InvalidArgumentError as error:
            refused.append(str(error))
        else:
            part = read_record(tmp_path / "part")
            assert len(part.calls) <= len(record.calls)
        finally:
            os.close(fd)
    assert 15 < len(refused) < 60
    assert all("memory" in each for each in refused)


async def test_damaged_files_are_refused_in_words(tmp_path: Path) -> None:
    record, _ = await recorded(tmp_path)
    file = tmp_path / "whole.calls"
    write_record(record, file)
    whole = file.read_bytes()
    assert read_record(file) == record
    chance = random.Random(1)
    for trial in range(100):
        data = bytearray(whole)
        if trial % 2:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        file.write_bytes(data)
        with pytest.raises(InvalidArgumentError, match=r"whole\.calls is"):
            read_record(file)


@pytest.mark.parametrize(
    "change",
    [
        {"calls": 5},
        {"began_ns": -1},
        {"models": {2**70: None}},
        {"requests": {1: [1, [], [], [[1, 2**40, False]]]}},
        {"routes": [[0]]},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_files_that_were_made_to_do_harm_are_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    record, _ = await recorded(tmp_path)
    content = msgspec.to_builtins(record, builtin_types=(bytes,), str_keys=False)
    try:
        content = msgspec.msgpack.encode(content | change)
    except OverflowError:
        content = b"\xdd\xff\xff\xff\xff"
    file = tmp_path / "hostile.calls"
    file.write_bytes(MAGIC + hashlib.sha256(content).digest() + content)
    with pytest.raises(InvalidArgumentError, match="no recording"):
        read_record(file)


async def test_pools_count_once_however_many_name_them(tmp_path: Path) -> None:
    record, _ = await recorded(tmp_path)
    pool = RecordedPool(7, 2**32)
    requests = {n: RecordedRequest(1, (), (), (pool,)) for n in range(3)}
    file = tmp_path / "large.calls"
    many = msgspec.structs.replace(record, requests=requests)
    write_record(many, file)
    assert read_record(file) == many
    copy = {"kind": CallKind.COPY_TO, "number": 2**40}
    (call, *_) = record.calls
    calls = (msgspec.structs.replace(call, **copy),)
    write_record(msgspec.structs.replace(record, calls=calls), file)
    with pytest.raises(InvalidArgumentError, match="pools of 1099"):
        read_record(file)


@pytest.mark.parametrize("wrong", [{"calls": -1}, {"max_bytes": 1}, {"calls": 2**21}])
def test_settings_are_bounded(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError):
        RecordingSettings(**wrong)
