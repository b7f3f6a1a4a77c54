"""`asyncnn serve` has the protocol's ports where it is asked for them."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc
from msgspec.structs import replace

import asyncnn
from tests.cli.conftest import Ran
from tests.cli.conftest import asyncnn_command as asyncnn_command
from tests.processes import python
from tests.runtime.stateful import X, counting

SERVE = [sys.executable, "-m", "asyncnn", "serve"]


def test_without_a_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "asyncnn.oip.listening", raising=False)
    monkeypatch.delitem(vars(asyncnn.oip), "rest_served", raising=False)
    with pytest.raises(ModuleNotFoundError) as caught:
        _ = asyncnn.oip.rest_served
    assert "pip install 'asyncnn[oip]'" in caught.value.__notes__[0]


def test_models_are_served_beside_the_socket(
    files: dict[str, Path], tmp_path: Path
) -> None:
    named = ["--model", f"sum={files['sum']}", "--model", f"sum:2={files['sum']}"]
    ports = ["--oip", ":0", "--grpc", ":0", "--limit", "OipLimits.max_request_bytes=9"]
    command = [*SERVE, "--socket", tmp_path / "driver", *named, *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        rest, rpc, socket = (process.stdout.readline() for _ in range(3))
        assert rest.startswith("models at http://127.0.0.1:")
        url = rest.split()[-1]
        told = httpx.get(f"{url}/v2/models/sum", trust_env=False).json()
        assert told["versions"] == ["1", "2"]
        large = httpx.post(
            f"{url}/v2/models/sum/infer", content=bytes(10), trust_env=False
        )
        assert large.status_code == 413
        client = tritonclient.grpc.InferenceServerClient(rpc.rpartition("/")[2].strip())
        assert client.is_model_ready("sum", "2")
        client.close()
        assert socket.startswith("serving reference at ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "a=b"], "say where: --oip :8000, --grpc :8001"),
        (["--oip", ":0"], "--oip needs a model to serve"),
        (["--token-file", "f"], "--token-file needs a model to serve"),
        (["--shared-memory"], "--shared-memory needs a model to serve"),
        (["--oip", ":0", "--model", "a"], "names no model"),
        (["--state", "a:x=y"], "--state needs a model to serve"),
        (["--oip", ":0", "--model", "a={sum}", "--state", "b:x=z"], "no state of a"),
        (["--oip", ":0", "--model", "a={sum}", "--state", "a:q=z"], "no input 'q'"),
        (["--oip", ":0", "--model", "a={sum}", "--state", "a:x"], "INPUT=OUTPUT"),
        (["--oip", "x:y", "--model", "a={sum}"], "'x:y' is no address"),
        (["--oip", ":0", "--model", "a=/nowhere"], "/nowhere"),
        (["--oip", ":0", "--model", "a={sum}", "--token-file", "/nowhere"], "/nowhere"),
        (["--oip", ":0", "--model", "a={sum}", "--tls-key", "/k"], "and its key"),
    ],
)
def test_what_cannot_be_served_is_told(
    asyncnn_command: Callable[..., Ran],
    files: dict[str, Path],
    tmp_path: Path,
    options: list[str],
    words: str,
) -> None:
    given = [each.format(**files) for each in options]
    ran = asyncnn_command("serve", "--socket", tmp_path / "driver", *given)
    assert ran.status in (1, 2)
    assert words in ran.err


def test_sequences_keep_what_is_said_to_be_state(tmp_path: Path) -> None:
    path, model = tmp_path / "open.asyncnn", counting().with_open_states()
    asyncnn.save(replace(model, pairs=()), path)  # nobody finds them by their names
    command = [*SERVE, "--socket", tmp_path / "driver", "--grpc", ":0"]
    command += ["--model", f"m={path}", "--state", "m:total=total"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        where = process.stdout.readline().rpartition("/")[2].strip()
        client = tritonclient.grpc.InferenceServerClient(where)
        x = tritonclient.grpc.InferInput("x", [4], "FP32").set_data_from_numpy(X)
        steps = tritonclient.grpc.InferInput("steps", [1], "INT32")
        given = [x, steps.set_data_from_numpy(np.int32([1]))]
        for step in (1, 2):
            told = client.infer("m", given, sequence_id=5, sequence_start=step == 1)
            np.testing.assert_array_equal(told.as_numpy("y"), 2 * step * X)
        client.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_without_its_packages_nothing_is_imported_and_it_says_what_to_install(
    files: dict[str, Path], tmp_path: Path
) -> None:
    code = """
import sys
missing = ("starlette", "uvicorn", "grpc", "google.protobuf")
sys.modules.update(dict.fromkeys(missing))
import asyncnn.oip
from asyncnn.cli.app import main
main()
"""
    asked = ["serve", "--socket", str(tmp_path / "driver"), "--oip", ":0"]
    asked += ["--model", f"sum={files['sum']}"]
    ran = python("-c", code, *asked)
    assert ran.returncode == 2
    assert "pip install asyncnn[oip]" in ran.stderr
