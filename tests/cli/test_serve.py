import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.demo.digits import model_path
from asyncnn.errors import InvalidArgumentError
from tests.cli.conftest import Ran

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


@pytest.mark.slow
class TestServing:
    def test_its_device_is_listed(
        self, asyncnn_command: Command, serving: Path
    ) -> None:
        (here,) = json.loads(asyncnn_command("devices", "--json").out)
        (there,) = json.loads(
            asyncnn_command("devices", "--json", "--socket", serving).out
        )
        assert there.pop("name") == f"remote:{serving}"
        here.pop("name")
        assert there == here

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
        second = subprocess.run(
            [*SERVE, "--socket", serving], capture_output=True, text=True, timeout=30
        )
        assert second.returncode == 2
        assert "serves" in second.stderr


def test_its_options_are_those_of_the_server(
    asyncnn_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}

    def published(device: object, **options: object) -> None:
        asked.update(options)
        raise InvalidArgumentError("enough")

    monkeypatch.setattr("asyncnn.cli.serve.Server", published)
    path = tmp_path / "driver.sock"
    options = ("--allow-uid", 7, "--allow-uid", 8, "--trust-same-uid")
    ran = asyncnn_command("serve", "--socket", path, *options)
    assert ran.status == 2
    assert "enough" in ran.err
    assert asked == {"path": path, "allowed_uids": (7, 8), "trust_same_uid": True}


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
    ran = subprocess.run(
        [*SERVE, "--until-eof"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
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
