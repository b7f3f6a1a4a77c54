import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.cli.serve import ServeOptions
from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import InvalidArgumentError, ResourceExhaustedTransientError
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import RecordingSettings, ServiceLimits, UserLimits
from asyncnn.service.driver.recorder import CallRecorder
from asyncnn.service.driver.server import MAX_CONNECTIONS
from asyncnn.service.process import driver_process
from asyncnn.tools.demo import model_path
from tests.cli.conftest import Ran
from tests.networks import chain
from tests.processes import executed
from tests.service.raw import RawClient
from tests.service.test_process import children_of
from tests.service.test_regions import products
from tests.waits import until

Command = Callable[..., Ran]
SERVE = [sys.executable, "-m", "asyncnn", "serve"]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Path]:
    """The socket of a driver that was started from the command line."""
    path = tmp_path / "driver.sock"
    with subprocess.Popen(
        [*SERVE, "--socket", path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"serving reference at {path}\n"
        yield path
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert not path.exists()


class TestServing:
    def test_its_device_is_listed(
        self, asyncnn_command: Command, serving: Path
    ) -> None:
        reports = json.loads(asyncnn_command("devices", "--json").out)
        (here,) = (report for report in reports if report["name"] == "reference")
        (there,) = json.loads(
            asyncnn_command("devices", "--json", "--socket", serving).out
        )
        assert there.pop("name") == f"remote:{serving}"
        here.pop("name")
        assert here.pop("is_default")
        assert not there.pop("is_default")
        assert there == here

    @pytest.mark.parametrize("option", [(), ("--explain",)])
    def test_its_device_is_not_to_be_chosen(
        self, asyncnn_command: Command, serving: Path, option: tuple[str, ...]
    ) -> None:
        model, device = model_path("float"), ("--device", "reference")
        ran = asyncnn_command("run", model, "--socket", serving, *device, *option)
        assert ran.status == 2
        assert "has its device already (start it with" in ran.err

    def test_models_run_in_it_as_they_do_here(
        self, asyncnn_command: Command, serving: Path, tmp_path: Path
    ) -> None:
        rng = np.random.default_rng(0)
        inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
        np.savez(inputs, input_0=rng.random((1, 8, 8, 1), np.float32))
        model = model_path("float")
        asyncnn_command("run", model, "--input", inputs, "--output", outputs)
        ran = asyncnn_command(
            "run", model, "--input", inputs, "--check", outputs, "--json",
            "--path", "async,sync", "--socket", serving,
        )  # fmt: skip
        report = json.loads(ran.out)
        assert report["passed"]
        assert report["device"] == f"remote:{serving}"

    def test_a_second_one_is_refused(self, serving: Path) -> None:
        second = executed(*SERVE, "--socket", serving, timeout=30)
        assert second.returncode == 2
        assert "serves" in second.stderr


class TestLog:
    """What `serve` tells its operator, by the lines of the process itself."""

    async def hang_up_on(self, path: Path) -> None:
        client = await RawClient.connect(path).greet()
        client.send(b"nonsense")
        assert await client.is_hung_up_on()
        client.close()

    async def refuse(self, path: Path) -> None:
        async with connect(path) as device:
            model = chain(1, 4)
            kept = [await device.prepare(model) for _ in range(256)]
            with pytest.raises(ResourceExhaustedTransientError):
                await device.prepare(model)
            assert kept

    def told(self, path: Path, *options: str, count: int = 1) -> list[str]:
        with subprocess.Popen(
            [*SERVE, "--socket", path, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving ")
            for _ in range(count):
                asyncio.run(self.hang_up_on(path))
            asyncio.run(self.refuse(path))
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
        return err.splitlines()

    def test_names_client_limit_and_setting_once_for_each_kind(
        self, tmp_path: Path
    ) -> None:
        broken, refused = self.told(tmp_path / "driver.sock", count=5)
        me = f"pid {os.getpid()}"
        assert f"warning: {me} is hung up on: not a message" in broken
        assert f"warning: a call of {me} is refused: " in refused
        assert "ServiceLimits.max_prepared_models" in refused
        assert "256" in refused

    def test_may_be_json(self, tmp_path: Path) -> None:
        lines = self.told(tmp_path / "driver.sock", "--log-json")
        broken, refused = map(json.loads, lines)
        for line in (broken, refused):
            assert line["level"] == "warning"
            assert line["client"] == f"pid {os.getpid()}"
        assert refused["setting"] == "ServiceLimits.max_prepared_models"

    def test_has_less_or_more_by_its_level(self, tmp_path: Path) -> None:
        path = tmp_path / "driver.sock"
        assert self.told(path, "--log-level", "error") == []
        more = self.told(path, "--log-level", "info")
        assert any("has gone" in line for line in more)

    def test_of_a_driver_of_ones_own_is_that_of_the_application(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with driver_process() as driver:
            asyncio.run(self.hang_up_on(driver.path))
        (line,) = capfd.readouterr().err.splitlines()
        assert f"asyncnn[{driver.pid}] warning: " in line


def test_its_options_are_those_of_the_server(
    asyncnn_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def published(device: object, **options: object) -> None:
        asked.update(options)
        raise InvalidArgumentError("enough")

    monkeypatch.setattr("asyncnn.service.driver.server.Server", published)
    path = tmp_path / "driver.sock"
    options = ("--allow-uid", 7, "--allow-uid", 8, "--user-weight", "7=2.5")
    options += ("--trust-same-uid", "--trust-regions", "--max-connections", 9)
    options += ("--limit", "ServiceLimits.max_bursts=3")
    options += ("--limit", "UserLimits.max_bursts=4")
    options += ("--record", 7, "--record-tensors")
    ran = asyncnn_command("serve", "--socket", path, *options)
    assert ran.status == 2
    assert "enough" in ran.err
    recorder = asked.pop("recorder")
    assert isinstance(recorder, CallRecorder)
    recorder.close()
    assert recorder.settings == RecordingSettings(calls=7, tensors=True)
    assert asked == {
        "path": path,
        "allowed_uids": (7, 8),
        "user_weights": {7: 2.5},
        "trust_same_uid": True,
        "trust_regions": True,
        "isolated": None,
        "max_connections": 9,
        "limits": ServiceLimits(max_bursts=3),
        "user_limits": UserLimits(max_bursts=4),
    }


@pytest.mark.parametrize("is_trusting", [False, True])
async def test_regions_run_in_other_processes_unless_they_are_trusted(
    tmp_path: Path, *, is_trusting: bool
) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "driver.sock"
    command = [*SERVE, "--socket", str(path), "--device", "auto"]
    command += ["--trust-regions"] * is_trusting
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        assert process.stdout.readline() == f"serving auto at {path}\n".encode()
        named = products()
        x = np.full((4, 2), 2, np.float32)
        async with connect(path) as device:
            model = await device.prepare(named)
            assert model.inputs == named.inputs  # it is not translated
            assert len(children_of(process.pid)) == (not is_trusting)
            (y,) = (await model.run([x, x])).values()
            np.testing.assert_array_equal(y, x * x)
        await until(lambda: not children_of(process.pid))
        process.terminate()
        assert process.wait(10) == 0


def test_it_takes_as_many_connections_as_the_server() -> None:
    default = ServeOptions().max_connections
    assert default == MAX_CONNECTIONS


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("ServiceLimits.max_burst=3", "did you mean ServiceLimits.max_bursts"),
        ("max_bursts=3", "ServiceLimits.max_bursts or UserLimits.max_bursts?"),
        ("ServiceLimits.max_bursts", "NAME=VALUE"),
        ("ServiceLimits.max_bursts=many", "$.max_bursts"),
        ("colours=3", "known: ServiceLimits.max_message_bytes, "),
        ("UserLimits.max_bursts=-1", "UserLimits.max_bursts is -1"),
    ],
)
def test_a_limit_that_is_none_is_bad_input(
    asyncnn_command: Command, tmp_path: Path, limit: str, told: str
) -> None:
    ran = asyncnn_command("serve", "--socket", tmp_path / "s", "--limit", limit)
    assert ran.status == 2
    assert told in " ".join(ran.err.split())


@pytest.mark.parametrize("weight", ["7", "7=", "root=1", "7=0", "7=-1", "7=nan"])
def test_a_weight_that_is_none_is_bad_input(
    asyncnn_command: Command, tmp_path: Path, weight: str
) -> None:
    path = tmp_path / "driver.sock"
    ran = asyncnn_command("serve", "--socket", path, "--user-weight", weight)
    assert ran.status == 2
    assert "weight" in ran.err


def test_settings_are_those_of_the_device(
    asyncnn_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option goes before the file, and this before what a driver usually has."""
    asked: dict[str, object] = {}

    def opened(name: str, **options: object) -> None:
        asked.update(options)
        raise InvalidArgumentError("enough")

    monkeypatch.setattr("asyncnn.runtime.opening_devices.open_device", opened)
    file = tmp_path / "driver.toml"
    file.write_text("max_pending = 3\nmax_bursts = 4\nblas_threads = 2\n")
    given = ("--settings", file, "--setting", "max_bursts=5")
    ran = asyncnn_command("serve", "--socket", tmp_path / "s", *given)
    assert "enough" in ran.err
    assert asked["settings"] == replace(
        OWN_PROCESS, max_pending=3, max_bursts=5, blas_threads=2
    )


def test_a_setting_that_is_none_is_bad_input(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command("serve", "--setting", "max_pendin=3")
    assert ran.status == 2
    assert "did you mean max_pending?" in ran.err
    ran = asyncnn_command("serve", "--settings", tmp_path / "nothing.toml")
    assert ran.status == 2
    assert "nothing.toml: No such file" in ran.err


@pytest.mark.parametrize("command", ["devices", "run"])
def test_a_socket_without_a_driver_is_bad_input(
    asyncnn_command: Command, tmp_path: Path, command: str
) -> None:
    arguments = [model_path("float")] if command == "run" else []
    ran = asyncnn_command(command, *arguments, "--socket", tmp_path / "nothing")
    assert ran.status == 2
    assert ran.err.startswith("asyncnn: no driver at ")


def test_a_path_that_is_too_long_is_bad_input(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command("serve", "--socket", tmp_path / ("x" * 120))
    assert ran.status == 2
    assert "107 bytes" in ran.err


def test_the_end_of_a_standard_input_that_is_no_pipe_cannot_be_awaited() -> None:
    ran = executed(*SERVE, "--until-eof", stdin=subprocess.DEVNULL, timeout=30)
    assert ran.returncode == 2
    assert "needs a pipe" in ran.stderr


def test_an_extension_that_cannot_be_imported_is_an_error(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    ran = asyncnn_command(
        "serve", "--socket", tmp_path / "driver.sock", "--extension", "no.such:thing"
    )
    assert ran.status != 0
    assert "no.such:thing" in ran.err
