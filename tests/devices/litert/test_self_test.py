"""What is tried once, what the verdict is, and how long it holds."""

import importlib.util
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from asyncnn.devices import engine_verdicts
from asyncnn.devices.engine_verdicts import VerdictSubject
from asyncnn.devices.litert import engine as engines
from asyncnn.devices.litert import self_test
from asyncnn.devices.litert.c_api_engine import CApiGraph
from asyncnn.devices.litert.self_test import reason_against

VERSION = "2.3.0"

SUCCESS = [sys.executable, "-c", ""]
CRASH = [sys.executable, "-c", "import os; os.abort()"]
SEGMENTATION_FAULT = [
    *(sys.executable, "-c"),
    "import ctypes, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    "ctypes.string_at(1)",
]
HANG = [sys.executable, "-c", "import time; time.sleep(100)"]
FAILURE = [sys.executable, "-c", "import sys; sys.exit('first\\nwrong results\\n')"]
MUST_NOT_RUN = [sys.executable, "-c", "import sys; sys.exit('it was tried again')"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "asyncnn"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libLiteRt.so"
    path.write_bytes(b"\x7fELF")
    return path


def litert() -> Path:
    spec = importlib.util.find_spec("ai_edge_litert")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "libLiteRt.so"


def verdict_file(state: Path) -> Path:
    (file,) = state.iterdir()
    return file


def test_the_installed_library_passes_even_on_one_cpu(state: Path) -> None:
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usual)})
    try:
        assert reason_against(litert(), VERSION) == ""
    finally:
        os.sched_setaffinity(0, usual)
    assert json.loads(verdict_file(state).read_bytes())["reason"] == ""
    assert reason_against(litert(), VERSION, command=MUST_NOT_RUN) == ""


def test_another_library_does_not(state: Path, library: Path) -> None:
    reason = reason_against(library, VERSION)
    assert reason.startswith("its self-test failed: ")
    assert "cannot be loaded" in reason
    assert reason_against(library, VERSION, command=MUST_NOT_RUN) == reason


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (SUCCESS, ""),
        (CRASH, "its self-test was ended by SIGABRT"),
        (SEGMENTATION_FAULT, "its self-test was ended by SIGSEGV"),
        (HANG, "its self-test has not ended within 0.5 s"),
        (FAILURE, "its self-test failed: wrong results"),
    ],
)
def test_whatever_the_process_comes_to_is_a_verdict_that_is_kept(
    state: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    command: list[str],
    reason: str,
) -> None:
    if command is HANG:
        monkeypatch.setattr(engine_verdicts, "LIMIT_S", 0.5)
    with caplog.at_level(logging.WARNING):
        assert reason_against(library, VERSION, command=command) == reason
        assert reason_against(library, VERSION, command=MUST_NOT_RUN) == reason
    assert len(caplog.records) == bool(reason)  # it is logged once
    assert os.stat(verdict_file(state)).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", [SEGMENTATION_FAULT, FAILURE])
@pytest.mark.parametrize(
    ("kind", "most"), [(resource.RLIMIT_AS, 2**38), (resource.RLIMIT_NOFILE, 200)]
)
def test_a_reason_that_is_found_below_a_limit_is_not_kept(
    state: Path, library: Path, command: list[str], kind: int, most: int
) -> None:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, hard))
    try:
        assert reason_against(library, VERSION, command=command)
        assert not list(state.glob("litert-*"))
        assert reason_against(library, VERSION, command=SUCCESS) == ""
    finally:
        resource.setrlimit(kind, (soft, hard))
    assert reason_against(library, VERSION, command=MUST_NOT_RUN) == ""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_what_others_have_stopped_is_tried_again(
    state: Path, library: Path, name: str
) -> None:
    # A signal that is ignored, as SIGHUP is below nohup, is so in what is started, too.
    default = "" if name == "SIGKILL" else f"signal.signal(signal.{name}, 0); "
    script = f"import os, signal; {default}os.kill(os.getpid(), signal.{name})"
    reason = reason_against(library, VERSION, command=[sys.executable, "-c", script])
    assert reason == f"its self-test was ended by {name}"
    assert reason_against(library, VERSION, command=SUCCESS) == ""


@pytest.mark.parametrize(
    "shortage",
    [
        "from asyncnn.devices.litert import graph_file; graph_file._ROOM_BYTES = 2**60",
        "import threading\n"
        "def refuse(thread): raise RuntimeError('no more threads')\n"
        "threading.Thread.start = refuse",
    ],
    ids=["memory", "threads"],
)
def test_what_has_lacked_something_is_tried_again(state: Path, shortage: str) -> None:
    script = (
        f"{shortage}\nimport sys\nfrom asyncnn.devices.litert import self_test\n"
        f"sys.exit(self_test.main({str(litert())!r}, {VERSION!r}))"
    )
    reason = reason_against(litert(), VERSION, command=[sys.executable, "-c", script])
    assert reason.startswith("its self-test could not be made: ")
    assert reason_against(litert(), VERSION, command=SUCCESS) == ""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 100,
        b'{"reason": ""}',
        b'{"subject": 3, "reason": ""}',
        b"\xff\xfe{}",
    ],
)
def test_a_verdict_that_cannot_be_read_does_not_count(
    state: Path, library: Path, content: bytes
) -> None:
    reason_against(library, VERSION, command=FAILURE)
    file = verdict_file(state)
    file.write_bytes(content)
    assert reason_against(library, VERSION, command=SUCCESS) == ""
    assert json.loads(file.read_bytes())["reason"] == ""


def test_a_verdict_that_others_may_have_written_does_not_count(
    state: Path, library: Path
) -> None:
    assert reason_against(library, VERSION, command=SUCCESS) == ""
    verdict_file(state).chmod(0o666)
    assert reason_against(library, VERSION, command=FAILURE)


def test_a_verdict_on_something_else_does_not_count(state: Path, library: Path) -> None:
    assert reason_against(library, VERSION, command=SUCCESS) == ""
    file = verdict_file(state)
    other = json.loads(file.read_bytes())
    other["subject"]["cpu"] = "another one"
    file.write_bytes(json.dumps(other).encode())
    assert reason_against(library, VERSION, command=FAILURE)


@pytest.mark.parametrize("change", ["content", "time", "version", "cpu", "features"])
def test_what_is_new_is_tried_anew(
    state: Path, library: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    version = VERSION
    assert reason_against(library, version, command=SUCCESS) == ""
    match change:
        case "content":
            library.write_bytes(b"\x7fELF and more")
        case "time":
            os.utime(library, (1, 1))
        case "version":
            version = "2.3.1"
        case "cpu":
            monkeypatch.setattr(engine_verdicts, "cpu_name", lambda: "another one")
        case "features":
            monkeypatch.setattr(engine_verdicts, "cpu_features", lambda: "none")
    assert reason_against(library, version, command=FAILURE)
    assert len(list(state.iterdir())) == 2


@pytest.mark.parametrize("home", ["", "/proc/nowhere"])
def test_where_nothing_can_be_kept_it_is_tried_each_time(
    library: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    def no_home() -> Path:
        raise RuntimeError("there is no home")

    monkeypatch.setenv("XDG_STATE_HOME", home)
    monkeypatch.setattr(Path, "home", no_home)
    assert reason_against(library, VERSION, command=SUCCESS) == ""
    assert reason_against(library, VERSION, command=FAILURE)


def test_a_library_that_is_not_there_has_no_subject(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        VerdictSubject.here(tmp_path / "nothing.so", VERSION, 1)


def test_modules_in_the_current_folder_are_not_imported(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('this is not NumPy')")
    monkeypatch.chdir(tmp_path)
    assert reason_against(litert(), VERSION) == ""


def test_the_engine_asks_for_the_verdict(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "_engines", {})
    monkeypatch.setattr(engine_verdicts.Tried, "command", lambda *_: CRASH)
    assert engines.load_engine().name == "interpreter"
    assert json.loads(verdict_file(state).read_bytes())["reason"].endswith("SIGABRT")


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
    monkeypatch.setattr(CApiGraph, method, lambda *_: True)
    assert self_test.main(str(litert()), VERSION) == 1
    assert capsys.readouterr().err.strip() == reason


ENDLESS = """
import signal
from asyncnn.devices import engine_verdicts
from asyncnn.devices.litert import self_test

def hang(*_):
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGALRM})
    while True:
        pass

self_test._Trial, engine_verdicts.LIMIT_S = hang, 0.3
self_test.main("library", "version")
"""


def test_what_hangs_ends_though_whoever_asked_has_gone() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDLESS], timeout=60)
    assert ended.returncode == -signal.SIGALRM
