"""Execution providers are devices: found, tried, told from each other and the CPU."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn import open_device
from asyncnn.devices import onnxruntime
from asyncnn.devices.engine_verdicts import Tried
from asyncnn.devices.onnxruntime import loading, runtime_api, runtime_trial
from asyncnn.devices.onnxruntime.providers import ExecutionProvider
from asyncnn.devices.onnxruntime.region_checks import check_graph
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary
from asyncnn.devices.onnxruntime.runtime_trial import chain
from asyncnn.devices.onnxruntime.sessions import LearntShapes, RegionSession
from asyncnn.devices.own_devices import default_device
from asyncnn.hal.errors import EngineUnavailableError, InvalidArgumentError
from asyncnn.hal.types import DeviceType, ErrorStatus
from asyncnn.runtime.framework.device_registry import registered_devices
from tests.devices.cache.client import CacheClient
from tests.devices.onnxruntime.conftest import FakeProviders
from tests.devices.onnxruntime.graphs import F32, relu, sessions

CUDA = ExecutionProvider.usual("cuda")
APPENDED_CUDA = [
    ("UpdateCUDAProviderOptions", "use_tf32", "0"),
    ("SessionOptionsAppendExecutionProvider_CUDA_V2",),
]
APPENDED_FAKE = [("SessionOptionsAppendExecutionProvider", "FakeExecutionProvider")]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package of ONNX Runtime, which has libraries of providers."""
    folder = tmp_path / "more_of_onnxruntime"
    (folder / "capi").mkdir(parents=True)
    (folder / "__init__.py").touch()
    path, _ = onnxruntime.found()
    (folder / "capi" / path.name).symlink_to(path)
    for name in ("shared", "fake", "nv_tensorrt_rtx", "cuda"):
        (folder / "capi" / f"libonnxruntime_providers_{name}.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(onnxruntime, "PACKAGE", folder.name)


def test_those_of_the_wheel_are_listed_and_nothing_is_loaded(
    wheel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_loaded", [])
    names = [name for name in asyncnn.device_names() if "onnxruntime-" in name]
    assert names == [
        f"onnxruntime-{each}" for each in ("cuda", "fake", "nvtensorrtrtx")
    ]
    assert {registered_devices()[name].origin for name in names} == {"asyncnn"}
    assert not loading._loaded


@pytest.mark.parametrize(
    ("name", "type_", "appended"),
    [
        ("cuda", DeviceType.GPU, APPENDED_CUDA),
        ("fake", DeviceType.ACCELERATOR, APPENDED_FAKE),
    ],
)
async def test_one_is_a_device_by_its_name(
    library: FakeProviders,
    name: str,
    type_: DeviceType,
    appended: list[tuple[str, ...]],
) -> None:
    async with open_device(f"onnxruntime-{name}") as device:
        assert device.type is type_
        assert f" {ExecutionProvider.usual(name)})" in device.version
        prepared = await device.prepare(relu(2))
        for _ in range(3):
            outputs = await prepared.run([np.array([-1, 1], F32)])
            assert outputs["y0"].tolist() == [0, 1]
    assert library.appended == appended


async def test_a_driver_of_ones_own_publishes_one(library: FakeProviders) -> None:
    async with default_device(asyncnn.DeviceSettings(), "onnxruntime-fake") as hal:
        assert hal.get_type() == (ErrorStatus.NONE, DeviceType.ACCELERATOR)


async def test_a_framework_has_those_of_the_wheel(
    library: FakeProviders, wheel: None
) -> None:
    async with open_device("framework:onnxruntime-fake") as device:
        prepared = await device.prepare(relu(2))
        outputs = await prepared.run([np.array([-1, 1], F32)])
        assert outputs["y0"].tolist() == [0, 1]
        assert outputs.route.devices == ("onnxruntime-fake",)
    assert library.appended == APPENDED_FAKE


async def test_each_has_sessions_of_its_own(library: FakeProviders) -> None:
    before, model = sessions(), relu(2)
    async with (
        open_device("onnxruntime") as cpu,
        open_device("onnxruntime-fake") as fake,
        open_device("onnxruntime-cuda") as cuda,
    ):
        kept = [await cpu.prepare(model), await cpu.prepare(model)]
        assert sessions() == before + 1
        assert not library.appended
        kept += [await fake.prepare(model), await fake.prepare(model)]
        assert sessions() == before + 2
        assert library.appended == APPENDED_FAKE
        kept += [await cuda.prepare(model)]
        assert sessions() == before + 3
        assert library.appended == APPENDED_FAKE + APPENDED_CUDA


async def test_a_cache_of_one_is_none_of_another(
    library: FakeProviders, tmp_path: Path
) -> None:
    async with (
        open_device("onnxruntime-fake") as fake,
        open_device("onnxruntime") as cpu,
    ):
        ours, others = (CacheClient(each.hal, tmp_path) for each in (fake, cpu))
        with ours.opened() as handles:
            await ours.prepare(relu(2).model, handles)
            assert (await ours.load(handles))[0] is ErrorStatus.NONE
            assert (await others.load(handles))[0] is ErrorStatus.GENERAL_FAILURE


@pytest.mark.parametrize("name", ["onnxruntime-cpu", "onnxruntime-azure"])
async def test_the_cpu_is_none_and_what_asks_a_server_neither(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        async with open_device(name):
            pass


async def test_operations_of_the_hal_take_what_they_take_the_reference_device() -> None:
    async with open_device("onnxruntime") as one, open_device("reference") as other:
        assert one.capabilities == other.capabilities


async def test_one_that_was_not_built_in_is_named() -> None:
    with pytest.raises(EngineUnavailableError, match=r"'cuda'.*has: only the CPU"):
        async with open_device("onnxruntime-cuda"):
            pass
    with pytest.raises(InvalidArgumentError, match="there is no device 'onnxruntime-'"):
        async with open_device("onnxruntime-"):
            pass


class Listed(OnnxRuntimeLibrary):
    """A library that lists a provider whose own library is missing."""

    def providers(self) -> dict[str, str]:
        return {
            "cuda": "CUDAExecutionProvider",
            "openvino": "OpenVINOExecutionProvider",
        }


@pytest.mark.parametrize("name", ["cuda", "openvino"])
def test_one_that_cannot_be_appended_is_named_and_may_come(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for function in ("resource.setrlimit", "signal.signal", "signal.setitimer"):
        monkeypatch.setattr(function, lambda *_: None)
    monkeypatch.setattr(runtime_trial, "OnnxRuntimeLibrary", Listed)
    path, version = onnxruntime.found()
    given = json.dumps({"name": name})
    assert runtime_trial.main(str(path), f"{version} {given}") == os.EX_TEMPFAIL
    words = capsys.readouterr().err
    assert "ExecutionProvider cannot be used: " in words
    assert " in this build" in words


def test_the_trial_runs_on_it(
    library: FakeProviders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("resource.setrlimit", "signal.signal", "signal.setitimer"):
        monkeypatch.setattr(function, lambda *_: None)
    monkeypatch.setattr(runtime_trial, "OnnxRuntimeLibrary", lambda _: library)
    tried: list[str] = []

    def command(subject: Tried, library: Path, version: str) -> list[str]:
        tried.extend((str(library), version))
        return [sys.executable, "-S", "-c", "raise SystemExit('no such device')"]

    monkeypatch.setattr(Tried, "command", command)
    words = "CUDAExecutionProvider of ONNX Runtime does not work here.*no such device"
    with pytest.raises(EngineUnavailableError, match=words):
        loading.load_onnx_runtime(CUDA)
    assert runtime_trial.main(*tried) == 0
    assert set(library.appended) == set(APPENDED_CUDA)


def test_one_that_is_there_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    library = OnnxRuntimeLibrary(onnxruntime.found()[0])
    about = check_graph(memoryview(chain(1, 4))), LearntShapes()
    azure = ExecutionProvider("azure")
    with pytest.raises(EngineUnavailableError, match=r"without .*'azure'"):
        RegionSession(library.on(azure), chain(1, 4), 1, *about)
    monkeypatch.setattr(runtime_api, "NO_PROVIDERS", {"cpu"})
    if "azure" in library.providers():
        assert RegionSession(library.on(azure), chain(1, 4), 1, *about).handle
