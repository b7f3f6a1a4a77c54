"""The web application of examples/service, within this process and for real."""

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from starlette.applications import Starlette

from asyncnn.devices import ReferenceDevice
from asyncnn.service import Server
from asyncnn.service.process import driver_process
from asyncnn.tools.demo import load_digits_test
from tests.processes import python

FOLDER = Path(__file__).parents[2] / "examples" / "service"
IMAGES, LABELS = load_digits_test()
BYTES = {"content-type": "application/octet-stream"}


def image_of(pixel: str) -> str:
    return "[" + ",".join([f"[{pixel}]"] * 64) + "]"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_app", FOLDER / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestApplication:
    @pytest.fixture
    async def client(
        self, example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[httpx.AsyncClient]:
        path = tmp_path / "driver.sock"
        monkeypatch.setenv("DIGITS_SOCKET", str(path))
        app: Starlette = example.app
        transport = httpx.ASGITransport(app)
        async with (
            ReferenceDevice() as device,
            Server(device, path) as self.server,
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            yield client

    async def test_an_image_is_classified(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/classify", json=IMAGES[0].tolist())
        assert answer.status_code == 200
        assert answer.json()["digit"] == LABELS[0]
        assert sum(answer.json()["probabilities"]) == pytest.approx(1, abs=1e-4)
        raw = await client.post("/classify", content=IMAGES[0].tobytes(), headers=BYTES)
        assert raw.json() == answer.json()

    @pytest.mark.parametrize(
        "body",
        ["", "{}", "[[1,2],[3]]", "[[0.5]]", image_of("17"), image_of("-1"),
         image_of("9" * 20)],
        ids=["empty", "object", "ragged", "fraction", "bright", "negative", "huge"],
    )  # fmt: skip
    async def test_what_is_no_image_is_refused(
        self, client: httpx.AsyncClient, body: str
    ) -> None:
        answer = await client.post("/classify", content=body)
        assert answer.status_code == 422

    async def test_a_large_body_is_refused(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/classify", content=b" " * 10_000)
        assert answer.status_code == 413

    async def test_a_request_that_takes_too_long_is_a_504(
        self, client: httpx.AsyncClient, example: ModuleType
    ) -> None:
        example.app.state.timeout = -1.0
        answer = await client.post("/classify", json=IMAGES[0].tolist())
        assert answer.status_code == 504
        assert "error" in answer.json()

    async def test_the_run_of_a_client_that_goes_is_cancelled(
        self,
        client: httpx.AsyncClient,
        example: ModuleType,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        class Endless:
            inputs = example.app.state.model.inputs

            async def run(self, *given: object, **how: object) -> None:
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()

        monkeypatch.setattr(example.app.state, "model", Endless())
        body = [{"type": "http.request", "body": IMAGES[0].tobytes()}]
        sent = []

        async def receive() -> dict[str, object]:
            if body:
                return body.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, object]) -> None:
            sent.append(message)

        headers = [(b"content-type", BYTES["content-type"].encode())]
        scope = {"type": "http", "method": "POST", "path": "/classify"}
        await example.app({**scope, "headers": headers}, receive, send)
        assert ended.is_set()
        assert sent[0]["status"] == 499

    async def test_without_a_driver_it_is_a_503(
        self, client: httpx.AsyncClient
    ) -> None:
        assert (await client.get("/health")).status_code == 200
        await self.server.__aexit__(None, None, None)
        answer = await client.post("/classify", json=IMAGES[0].tolist())
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert (await client.get("/health")).status_code == 503
        await self.server.__aenter__()


@contextmanager
def web_server(driver: Path) -> Iterator[str]:
    """Uvicorn with the application, in a process on a port that was free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        command = [sys.executable, "-m", "uvicorn", "app:app", "--log-level", "warning"]
        with subprocess.Popen(
            [*command, "--fd", str(listener.fileno())],
            cwd=FOLDER,
            env={**os.environ, "DIGITS_SOCKET": str(driver), "DIGITS_TIMEOUT": "20"},
            pass_fds=[listener.fileno()],
        ) as process:
            try:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                wait_until_healthy(url)
                yield url
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(20)


def wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + 30
    while httpx.get(f"{url}/health", timeout=30, trust_env=False).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run_client(url: str) -> subprocess.CompletedProcess[str]:
    return python(FOLDER / "client.py", url, "60", timeout=60)


def test_driver_application_and_client_work_together_and_survive_a_crash(
    tmp_path: Path,
) -> None:
    path = tmp_path / "driver.sock"
    with driver_process(path) as first, web_server(path) as url:
        done = run_client(url)
        assert done.returncode == 0, done.stderr
        assert "of 60 right" in done.stdout
        first.kill()
        with driver_process(path):
            wait_until_healthy(url)
            done = run_client(url)
            assert done.returncode == 0, done.stderr
