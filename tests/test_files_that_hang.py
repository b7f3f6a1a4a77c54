"""Paths at which a call of the system would wait for ever: none keeps anybody waiting.

A FIFO that nobody writes to or reads, and a folder of which the server has gone.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import asyncnn
from asyncnn import input_files
from asyncnn.devices import cache_files
from asyncnn.devices.cache_format import CacheKey
from asyncnn.devices.device_settings import read_settings
from asyncnn.devices.measured_capabilities import known_measurement
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.output_files import write_file
from asyncnn.runtime.onnx import tensors
from asyncnn.service.client.remote_device import RemoteDevice
from asyncnn.service.driver.server import Server
from asyncnn.service.process import driver_process
from asyncnn.tools.differing.difference_report import read_report
from asyncnn.tools.samples import load_arrays
from asyncnn.tracing import Layer, Phase, active, recording
from tests.dead_folder import Call, DeadFolder, dead_folder
from tests.devices.cache.models import dense
from tests.test_input_files import THREADS
from tests.waits import cancelled, until

DEVICES = ("reference", "accelerated")
MODEL = asyncnn.bundled_file("digits_float.asyncnn")


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path, 0o600)
    return path


class TestFifo:
    """What is opened while tests of the parts look on elsewhere is not here."""

    @pytest.mark.parametrize(
        "read",
        [asyncnn.load, load_arrays, read_report, read_settings],
        ids=lambda read: read.__name__,
    )
    def test_it_is_refused_by_name_as_an_input(
        self, fifo: Path, read: Callable[[Path], object]
    ) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError, match=f"{fifo}: a FIFO, not"):
            read(fifo)

    async def test_it_is_no_model(self, fifo: Path) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError, match=f"{fifo}: a FIFO, not"):
            await asyncnn.load_model(fifo)

    def test_it_has_no_weights_of_another_file(self, fifo: Path) -> None:
        path = fifo.with_name("model.onnx")
        onnx.save(with_weights_in(fifo.name), path)
        with pytest.raises(asyncnn.InvalidArgumentError, match="a FIFO, not"):
            asyncnn.load(path)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("kinds", ["model data", "model", "data"])
    async def test_it_is_no_cache_file_and_is_replaced_by_one(
        self, tmp_path: Path, device: str, kinds: str
    ) -> None:
        settings = asyncnn.DeviceSettings(cache_key_file=str(tmp_path / "key"))
        folder = tmp_path / "cache"
        async with asyncnn.open_device(
            device, settings=settings, cache_dir=folder
        ) as opened:
            await opened.prepare(dense(False))
            files = [f for kind in kinds.split() for f in folder.glob(f"*.{kind}*")]
            for file in files:
                file.unlink()
                os.mkfifo(file)
            await opened.prepare(dense(False), timeout=20)
            assert all(file.is_file() for file in files)
            await opened.prepare(dense(False), timeout=20)

    async def test_it_is_no_key(self, fifo: Path) -> None:
        with pytest.raises(asyncnn.GeneralFailureError, match="a FIFO, not"):
            CacheKey(fifo).tag(b"")
        settings = asyncnn.DeviceSettings(cache_key_file=str(fifo))
        async with asyncnn.open_device(
            "reference", settings=settings, cache_dir=fifo.with_name("cache")
        ) as device:
            await device.prepare(dense(False), timeout=20)

    def test_it_holds_no_capabilities(self, fifo: Path) -> None:
        assert known_measurement(str(fifo)) is None

    def test_that_nobody_reads_takes_no_output(self, fifo: Path) -> None:
        with pytest.raises(OSError, match="a FIFO that nobody reads") as told:
            write_file(fifo, b"x")
        assert told.value.filename == str(fifo)
        model = asyncnn.load(MODEL)
        with pytest.raises(asyncnn.GeneralFailureError, match="nobody reads"):
            asyncnn.save(model, fifo)

    def test_in_place_of_a_part_of_a_trace_ends_no_recording(
        self, tmp_path: Path
    ) -> None:
        os.mkfifo(tmp_path / f"trace.json.{os.getpid()}.part")
        with (
            pytest.raises(OSError, match="a FIFO, not a regular file"),
            recording(tmp_path / "trace.json", "test"),
        ):
            pytest.fail("recorded")


def with_weights_in(location: str) -> onnx.ModelProto:
    """Return a model whose only weight lies in another file."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("strict", [False, True])
def test_weights_beside_a_small_file_are_not_read_where_they_would_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    onnx.save(with_weights_in("weights"), tmp_path / "model.onnx")
    np.ones((4, 4), np.float32).tofile(tmp_path / "weights")
    readers: list[int] = []
    beside = tensors._beside

    def noted(*args: Any) -> Path:
        readers.append(threading.get_ident())
        return beside(*args)

    monkeypatch.setattr(tensors, "_beside", noted)
    asyncnn.load(tmp_path / "model.onnx", strict=strict)
    assert readers
    assert threading.get_ident() not in readers


@pytest.fixture
def far(tmp_path: Path) -> Iterator[DeadFolder]:
    """A folder that can be told to hang; its threads have ended in the end."""
    try:
        mounted = dead_folder(tmp_path / "far")
        folder = mounted.__enter__()
    except OSError as error:
        pytest.skip(str(error))
    try:
        yield folder
    finally:
        mounted.__exit__(None, None, None)
        for thread in threading.enumerate():
            if thread.name == THREADS:
                thread.join(20)
                assert not thread.is_alive()


async def hanging(
    far: DeadFolder, awaited: Awaitable[object]
) -> "asyncio.Future[object]":
    """Return what is awaited once it hangs, or has ended."""
    task = asyncio.ensure_future(awaited)
    told = asyncio.ensure_future(asyncio.to_thread(far.wait_hanging))
    await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    if not told.done():
        far.wake()
        await told
    return task


def open_files(folder: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith(os.fspath(folder)):
            found.append(target)
    return found


def any_hanging() -> bool:
    return any(thread.name == THREADS for thread in threading.enumerate())


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "PATIENCE_S", 0.05)
    monkeypatch.setattr(cache_files, "PATIENCE_S", 0.05)


class TestDeadFolder:
    @pytest.mark.parametrize(
        "call", [Call.LOOKUP, Call.OPEN, Call.READ], ids=lambda call: call.name
    )
    async def test_a_model_in_it_is_given_up_in_time_and_nothing_stays_open(
        self, far: DeadFolder, call: Call
    ) -> None:
        model = far.path / "model.asyncnn"
        (far.behind / model.name).write_bytes(MODEL.read_bytes())
        far.hang(call)
        task = await hanging(far, asyncnn.load_model(model, timeout=0.05))
        with pytest.raises(asyncnn.MissedDeadlineError, match=f"loading {model} was"):
            await task
        far.answer()
        await until(lambda: not (open_files(far.path) or any_hanging()))
        await asyncnn.load_model(model)

    async def test_weights_in_it_are_given_up_when_the_loading_is_cancelled(
        self, far: DeadFolder
    ) -> None:
        path = far.path.with_name("model.onnx")
        onnx.save(with_weights_in(f"{far.path.name}/weights"), path)
        np.ones((4, 4), np.float32).tofile(far.behind / "weights")
        assert await asyncnn.load_model(path)
        far.hang()
        task = await hanging(far, asyncnn.load_model(path))
        await cancelled(task)

    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize(
        "call",
        [
            Call.LOOKUP,
            Call.MKDIR,
            Call.CREATE,
            Call.WRITE,
            Call.FSYNC,
            Call.OPEN,
            Call.READ,
            Call.SETATTR,
        ],
        ids=lambda call: call.name,
    )
    async def test_with_a_cache_in_it_a_preparation_and_the_device_end_in_time(
        self, far: DeadFolder, device: str, call: Call, tmp_path: Path
    ) -> None:
        settings = asyncnn.DeviceSettings(cache_key_file=str(tmp_path / "key"))
        opening = asyncnn.open_device(
            device, settings=settings, cache_dir=far.path / "cache"
        )
        async with asyncio.timeout(20), opening as opened:
            if call in (Call.OPEN, Call.READ, Call.SETATTR):
                await opened.prepare(dense(False))
            far.hang(call)
            task = await hanging(far, opened.prepare(dense(False), timeout=0.5))
            with pytest.raises(asyncnn.MissedDeadlineError):
                await task
            task = asyncio.ensure_future(opened.prepare(dense(False)))
            await asyncio.sleep(0)
            await cancelled(task)

    @pytest.mark.parametrize("device", DEVICES)
    async def test_with_a_cache_in_it_models_are_prepared_without_one(
        self, far: DeadFolder, device: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        impatient(monkeypatch)
        far.hang()
        cache = far.path / "cache"
        async with asyncnn.open_device(device, cache_dir=cache) as opened:
            await opened.prepare(dense(False))
            await opened.prepare(dense(False))

    @pytest.mark.parametrize("call", [Call.WRITE, Call.READ], ids=lambda c: c.name)
    async def test_a_file_that_hangs_is_no_cache_either(
        self,
        far: DeadFolder,
        call: Call,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        settings = asyncnn.DeviceSettings(cache_key_file=str(tmp_path / "key"))
        async with asyncnn.open_device(
            "reference", settings=settings, cache_dir=far.path / "cache"
        ) as opened:
            if call is Call.READ:
                await opened.prepare(dense(False))
            impatient(monkeypatch)
            far.hang(call)
            await opened.prepare(dense(False))

    @pytest.mark.parametrize("device", DEVICES)
    async def test_with_the_users_state_in_it_devices_are_opened_and_prepare(
        self, far: DeadFolder, device: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        impatient(monkeypatch)
        monkeypatch.setenv("XDG_STATE_HOME", str(far.path))
        far.hang()
        async with asyncnn.open_device(device) as opened:
            model = await asyncnn.load_model(MODEL)
            prepared = await opened.prepare(model)
            await prepared.run(np.zeros((1, 8, 8, 1), np.float32))

    async def test_with_the_key_of_caches_in_it_a_preparation_ends_in_time(
        self, far: DeadFolder, tmp_path: Path
    ) -> None:
        settings = asyncnn.DeviceSettings(cache_key_file=str(far.path / "key"))
        async with asyncnn.open_device(
            "reference", settings=settings, cache_dir=tmp_path / "cache"
        ) as opened:
            far.hang()
            task = await hanging(far, opened.prepare(dense(False), timeout=0.5))
            with pytest.raises(asyncnn.MissedDeadlineError):
                await task

    async def test_to_connect_to_a_socket_in_it_ends_in_time(
        self, far: DeadFolder
    ) -> None:
        far.hang()
        path = far.path / "socket"
        device = RemoteDevice(path, greeting_timeout=0.05)
        with pytest.raises(asyncnn.NoDriverError, match="does not answer"):
            await device.__aenter__()
        task = asyncio.ensure_future(asyncnn.connect(path).__aenter__())
        await asyncio.sleep(0)
        await cancelled(task)

    async def test_with_settings_in_it_the_start_of_a_driver_can_be_cancelled(
        self, far: DeadFolder
    ) -> None:
        far.hang()
        connecting = asyncnn.connect(settings=far.path / "settings.toml")
        task = await hanging(far, connecting.__aenter__())
        await cancelled(task)

    async def test_a_driver_ends_though_its_socket_stays_in_it(
        self, far: DeadFolder
    ) -> None:
        async with ReferenceDevice() as device:
            server = Server(device, far.path / "socket")
            async with asyncio.timeout(20), server:
                far.hang(Call.LOOKUP, Call.GETATTR, Call.UNLINK)

    async def test_a_driver_ends_though_a_file_of_a_client_hangs(
        self, far: DeadFolder
    ) -> None:
        with driver_process() as driver:
            path, cache = str(driver.path), far.path / "cache"
            async with asyncnn.connect(path, cache_dir=cache) as device:
                await device.prepare(dense(False))
                far.hang(Call.READ)
                task = await hanging(far, device.prepare(dense(False)))
                driver.process.terminate()
                with pytest.raises(asyncnn.DriverDiedError):
                    await task
            assert await asyncio.to_thread(driver.process.wait, 20) == 0

    async def test_spans_go_on_without_the_trace(
        self, far: DeadFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(active, "_PATIENCE_S", 0.05)
        path = far.path / "trace.json"

        def record() -> None:
            with recording(path, "test") as recorder:
                far.hang()
                for _ in range(3):
                    recorder.add("a", Layer.CPU, Phase.EXECUTION, 0, 1)
                    recorder.flush()
                far.answer()

        with pytest.raises(OSError, match="does not answer") as told:
            record()
        assert told.value.filename == str(path)


ASYNC = """
import asyncio, asyncnn
from tests.devices.cache.models import dense

async def main():
    {0}

asyncio.run(main())
"""
COMMAND = "import sys; sys.argv[1:] = {0}; from asyncnn.cli import main; main()"
NAME = str(MODEL)

PROGRAMS: dict[str, tuple[str, tuple[Call, ...]]] = {
    "load": ("import asyncnn; asyncnn.load('FAR/model')", ()),
    "load in a task": (ASYNC.format("asyncnn.load('FAR/model')"), ()),
    "load_model": (ASYNC.format("await asyncnn.load_model('FAR/model')"), ()),
    "save": (f"import asyncnn as a; a.save(a.load({NAME!r}), 'FAR/model')", ()),
    "prepare": (
        ASYNC.format(
            "async with asyncnn.open_device(cache_dir='FAR/cache') as device:\n"
            "        await device.prepare(dense(False))"
        ),
        (),
    ),
    "connect": (ASYNC.format("await asyncnn.connect('FAR/socket')"), ()),
    "a driver": (
        "from asyncnn.service.start import main; main(['--socket=FAR/socket'])",
        (),
    ),
    "trace": (
        "from asyncnn.tracing import recording\n"
        "with recording('FAR/trace.json', 'test'): pass",
        (),
    ),
    "a path": (COMMAND.format(["run", "FAR/model"]), ()),
    "serve": (COMMAND.format(["serve", "--socket", "FAR/socket"]), (Call.MKNOD,)),
    "settings": (COMMAND.format(["serve", "--settings", "FAR/text"]), (Call.OPEN,)),
    "run": (COMMAND.format(["run", "FAR/model"]), (Call.OPEN,)),
    "input": (COMMAND.format(["run", NAME, "--input", "FAR/text"]), (Call.OPEN,)),
    "output": (COMMAND.format(["run", NAME, "--output", "FAR/y"]), (Call.CREATE,)),
    "profile": (COMMAND.format(["profile", "--from", "FAR/text"]), (Call.OPEN,)),
    "mlts": (COMMAND.format(["mlts", "FAR"]), (Call.OPENDIR,)),
    "conformance": (COMMAND.format(["conformance", "FAR"]), (Call.OPENDIR,)),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_ends_a_program_that_waits_for_a_dead_folder(
    far: DeadFolder, program: str
) -> None:
    code, calls = PROGRAMS[program]
    (far.behind / "model").write_bytes(MODEL.read_bytes())
    (far.behind / "text").touch()
    far.hang(*calls)
    process = subprocess.Popen(
        [sys.executable, "-c", code.replace("FAR", str(far.path))],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert far.wait_hanging()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode in (-signal.SIGINT, 130, 0), errors
