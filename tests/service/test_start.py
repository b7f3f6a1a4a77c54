"""How a driver process begins, and what it loads."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asyncnn import connect
from asyncnn.service.process import private_address, running_driver
from tests.networks import addition
from tests.service.loaded import PLACE, VARIABLE

pytestmark = pytest.mark.started_anew

X = np.ones((2, 3), np.float32)

MAX_MODULES = 231
UNUSED = (
    "anyio",
    "rich",
    "tflite",
    "typer",
    "asyncnn.cli",
    "asyncnn.metrics",
    "asyncnn.pipeline",
    "asyncnn.runtime",
    "asyncnn.service.client",
    "asyncnn.service.supervised_device",
    "asyncnn.tools",
)


ENGINE = "asyncnn.devices.litert"
OF_DEVICES = {
    "reference": ["asyncnn.service.start", "asyncnn.devices.reference"],
    "accelerated": [
        "asyncnn.service.start",
        "asyncnn.devices.accelerated",
        f"{ENGINE}.delegate",
        f"{ENGINE}.engine",
        f"{ENGINE}.region_kernels",
    ],
}
"""What each device has a driver load as it starts."""


@pytest.mark.parametrize("name", OF_DEVICES)
async def test_a_driver_process_loads_only_what_a_driver_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    told = tmp_path / "loaded"
    monkeypatch.setenv(VARIABLE, str(told))
    async with (
        running_driver(extensions=[PLACE], device=name) as driver,
        connect(driver.path) as device,
    ):
        model = await device.prepare(addition(2, 3))
        outputs = await model.run({"x": X, "y": X})
    np.testing.assert_array_equal(outputs["z"], 2 * X)
    modules = set(told.read_text().split())
    own = own_of(modules)
    assert len(own) <= MAX_MODULES
    unused = set(UNUSED) - ({"tflite"} if name == "accelerated" else set())
    assert not unused & modules
    # An import takes a descriptor, of which there may be none left by then.
    started = loaded_by(OF_DEVICES[name])
    assert own <= started, "a driver imports something after its start"


def loaded_by(modules: list[str]) -> set[str]:
    code = (
        f"import sys, {', '.join(modules)}\n"
        "from asyncnn.kernels.registry import load_kernels\n"
        "load_kernels()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return own_of(set(done.stdout.decode().split()))


def own_of(modules: set[str]) -> set[str]:
    return {m for m in modules if m.split(".")[0] == "asyncnn"}


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asyncnn.service.start", *arguments],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["--setting=max_pendin=3"], {}, "max_pendin"),
        (["--settings=nowhere.toml"], {}, "nowhere.toml"),
        (["--extension=nowhere:NOTHING"], {}, "nowhere"),
        ([], {"ASYNCNN_LOG_LEVEL": "loud"}, "ASYNCNN_LOG_LEVEL is loud"),
        ([], {"ASYNCNN_LOG_JSON": "maybe"}, "ASYNCNN_LOG_JSON is maybe"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    arguments: list[str], environment: dict[str, str], told: str
) -> None:
    with start(f"--socket={private_address()}", *arguments, **environment) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors.startswith("asyncnn: ")
    assert told in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, None])
def test_it_ends_when_it_is_told_to(tmp_path: Path, end: signal.Signals | None) -> None:
    path = tmp_path / "driver.sock"
    with start(f"--socket={path}") as process:
        while not path.exists():
            assert process.poll() is None
        if end is None:
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(end)
        assert process.wait(timeout=30) == 0
    assert not path.exists()
