"""ONNX Runtime is found, tried and loaded, tells nobody, and may be missing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from asyncnn import open_device
from asyncnn.devices import engine_verdicts, onnxruntime
from asyncnn.devices.compiled_graph import CApiUnavailableError
from asyncnn.devices.onnxruntime import loading, runtime_trial
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary
from asyncnn.devices.onnxruntime.session_graphs import _SessionGraph
from asyncnn.hal.errors import EngineUnavailableError

MUST_NOT_RUN = [sys.executable, "-c", "import sys; sys.exit('it was tried again')"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "asyncnn"


def test_the_installed_library_passes_once(state: Path) -> None:
    path, version = onnxruntime.found()
    assert loading.TRIED.reason_against(path, version) == ""
    (file,) = state.iterdir()
    assert json.loads(file.read_bytes())["reason"] == ""
    assert loading.TRIED.reason_against(path, version, command=MUST_NOT_RUN) == ""


async def test_one_that_fails_is_not_used(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = [sys.executable, "-c", "import os; os.abort()"]
    monkeypatch.setattr(engine_verdicts.Tried, "command", lambda *_: crash)
    monkeypatch.setattr(loading, "_loaded", [])
    with pytest.raises(EngineUnavailableError, match=r"SIGABRT.*pip install"):
        async with open_device("onnxruntime"):
            pass


@pytest.mark.parametrize("needed", ["PACKAGE", "_MESSAGES"])
async def test_without_the_package_the_device_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, needed: str
) -> None:
    monkeypatch.setattr(onnxruntime, needed, "there_is.no_such_package")
    monkeypatch.setattr(loading, "_loaded", [])
    with pytest.raises(EngineUnavailableError, match=r"asyncnn\[onnxruntime\]"):
        async with open_device("onnxruntime"):
            pass


@pytest.mark.parametrize("content", [b"", b"\x7fELF", None])
def test_what_is_no_such_library_is_refused(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "libonnxruntime.so.1"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CApiUnavailableError, match="cannot be loaded"):
        OnnxRuntimeLibrary(path)


def test_another_library_is_none() -> None:
    with pytest.raises(CApiUnavailableError, match="is not ONNX Runtime"):
        OnnxRuntimeLibrary(Path("libc.so.6"))


@pytest.mark.parametrize(
    ("method", "reason"),
    [("interrupt", "an interrupt has no effect"), ("run", "wrong results at offset 0")],
)
def test_what_does_not_work_is_found(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    method: str,
    reason: str,
) -> None:
    monkeypatch.setattr("resource.setrlimit", lambda *_: None)
    monkeypatch.setattr(_SessionGraph, method, lambda *_: True)
    path, version = onnxruntime.found()
    assert runtime_trial.main(str(path), version) == 1
    assert capsys.readouterr().err.strip() == reason


TELLS_NOBODY = """
import os
from asyncnn.devices import onnxruntime
from asyncnn.devices.onnxruntime.region_checks import check_graph
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary
from asyncnn.devices.onnxruntime.runtime_trial import chain
from asyncnn.devices.onnxruntime.sessions import LearntShapes, RegionSession

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads(), dict(os.environ)
library = OnnxRuntimeLibrary(onnxruntime.found()[0])
content = chain(2, 4)
session = RegionSession(
    library, content, 1, check_graph(memoryview(content)), LearntShapes()
)
assert (threads(), dict(os.environ)) == before
"""


def test_it_has_no_threads_that_tell_others_of_it(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[3])
    # By itself it is quiet where software is tested.
    usual = {name: os.environ[name] for name in os.environ if "CI" not in name}
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": root}
    subprocess.run(
        [sys.executable, "-c", TELLS_NOBODY],
        env={**usual, **home, "OPENBLAS_NUM_THREADS": "1"},
        check=True,
    )
    assert not list(tmp_path.iterdir())
