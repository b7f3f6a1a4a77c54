"""The device, in this process, in a driver, and on a provider that is the CPU."""

import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

import asyncnn
from asyncnn.devices import DeviceSettings
from asyncnn.devices.engine_verdicts import Tried
from asyncnn.devices.onnxruntime import found, loading
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary
from tests.places import driver_of

pytest.importorskip("onnx", reason="the package onnx is not installed")
if importlib.util.find_spec("onnxruntime") is None:  # the module is not to be imported
    pytest.skip("ONNX Runtime is not installed", allow_module_level=True)


def opened(where: str) -> AbstractAsyncContextManager[asyncnn.Device]:
    """Open the device in this process, on its lanes only, or a driver with it.

    That on a provider needs the fixture `library`.
    """
    if where == "driver":
        return asyncnn.connect(device="onnxruntime")
    name = "onnxruntime-fake" if where == "provider" else "onnxruntime"
    return asyncnn.open_device(
        name, settings=DeviceSettings(inline_below_us=0, lanes=2)
    )


class FakeProviders(OnnxRuntimeLibrary):
    """ONNX Runtime with providers that leave all nodes to the CPU.

    ``appended`` has what sessions were to run on: the calls, with their texts.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.appended: list[tuple[str, ...]] = []

    def providers(self) -> dict[str, str]:
        return {"fake": "FakeExecutionProvider", "cuda": "CUDAExecutionProvider"}

    def call(self, name: str, *arguments: Any) -> None:
        if name.startswith("Create") and name.endswith("ProviderOptions"):
            arguments[-1]._obj.value = 1
        elif "AppendExecutionProvider" in name or "ProviderOptions" in name:
            texts = [each for each in arguments if isinstance(each, bytes)]
            for array in arguments:
                if getattr(array, "_length_", 0):
                    texts += [*array]
            self.appended.append((name, *[text.decode() for text in texts]))
        else:
            super().call(name, *arguments)

    def release(self, kind: str, made: int) -> None:
        if not kind.endswith("ProviderOptions"):
            super().release(kind, made)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeProviders:
    """The library of this process, for which every trial is a success."""
    path, version = found()
    library = FakeProviders(path)
    loaded = loading.LoadedOnnxRuntime(library, path, version)
    monkeypatch.setattr(loading, "_loaded", [loaded])
    monkeypatch.setattr(Tried, "command", lambda *_: [sys.executable, "-S", "-c", ""])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return library


driver = driver_of("onnxruntime")


@pytest.fixture(params=["inprocess", "shared driver"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[asyncnn.Device]:
    if request.param == "provider":
        request.getfixturevalue("library")
    if request.param == "shared driver":
        opening = asyncnn.connect(request.getfixturevalue("driver").path)
    else:
        opening = opened(request.param)
    async with opening as device:
        yield device
