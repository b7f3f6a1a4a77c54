"""What is computed for a client of a web application ends when the client has gone."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect
from asyncnn.service.process import running_driver
from asyncnn.web import CLIENT_CLOSED_REQUEST, CancelOnDisconnect, Message
from tests.waits import cancelled

HTTP = {"type": "http"}
DISCONNECT = {"type": "http.disconnect"}
START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b"done"}
MORE = {"type": "http.response.body", "body": b"some", "more_body": True}


def body_of(*parts: bytes) -> list[Message]:
    """Return the messages of a request's body."""
    return [
        {"type": "http.request", "body": part, "more_body": more < len(parts)}
        for more, part in enumerate(parts, 1)
    ]


class Server:
    """A server's side of one request; the client stays until `hang_up`."""

    def __init__(self, *body: Message) -> None:
        self.received = 0
        self.sent: list[Message] = []
        self._body = list(body)
        self._gone = asyncio.Event()

    def hang_up(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if self._body:
            self.received += 1
            return self._body.pop(0)
        await self._gone.wait()
        return DISCONNECT

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message == END:
            self.hang_up()  # as servers do

    @property
    def statuses(self) -> list[int]:
        return [each["status"] for each in self.sent if "status" in each]

    async def serve(self, app: Any, scope: Message = HTTP) -> None:
        async with asyncio.timeout(20):
            await CancelOnDisconnect(app)(scope, self.receive, self.send)


class TestMessages:
    async def test_a_request_and_its_answer_are_as_without_it(self) -> None:
        messages = body_of(b"a", b"b", b"c")
        server = Server(*messages)

        async def app(scope: Message, receive: Any, send: Any) -> None:
            assert scope is HTTP
            assert [await receive() for _ in messages] == messages
            await send(START)
            await send(MORE)
            await send(END)
            assert [await receive(), await receive()] == [DISCONNECT] * 2

        await server.serve(app)
        assert server.sent == [START, MORE, END]

    async def test_no_more_than_two_messages_are_read_ahead(self) -> None:
        messages = body_of(*[b"x"] * 10)
        server = Server(*messages)

        async def app(scope: Message, receive: Any, send: Any) -> None:
            for taken, message in enumerate(messages):
                for _ in range(20):
                    await asyncio.sleep(0)
                assert server.received <= taken + 2
                assert await receive() == message

        await server.serve(app)

    async def test_a_message_that_is_looked_for_is_the_one_received(self) -> None:
        looked, comes = asyncio.Event(), asyncio.Event()
        messages = body_of(b"late", b"later")

        class Late(Server):
            async def receive(self) -> Message:
                looked.set()
                await comes.wait()
                return await super().receive()

        async def app(scope: Message, receive: Any, send: Any) -> None:
            await looked.wait()
            asyncio.get_running_loop().call_soon(comes.set)
            assert [await receive() for _ in messages] == messages
            await send(START)
            await send(END)

        server = Late(*messages)
        await server.serve(app)
        assert server.sent == [START, END]

    @pytest.mark.parametrize("kind", ["websocket", "lifespan"])
    async def test_what_is_no_request_is_left_alone(self, kind: str) -> None:
        server, scope = Server(), {"type": kind}

        async def app(*given: Any) -> None:
            assert given == (scope, server.receive, server.send)

        await server.serve(app, scope)

    @pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)])
    async def test_an_error_of_the_application_is_raised_as_it_is(
        self, error: BaseException
    ) -> None:
        async def app(*_: Any) -> None:
            raise error

        with pytest.raises(type(error)) as raised:
            await Server().serve(app)
        assert raised.value is error

    async def test_who_cancels_it_cancels_the_application(self) -> None:
        begun, ended = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(Server().serve(endless(begun, ended)))
        await begun.wait()
        await cancelled(task)
        assert ended.is_set()


def endless(
    begun: asyncio.Event, ended: asyncio.Event, *sent: Message
) -> Callable[..., Awaitable[None]]:
    """Return an application that sends something and then never ends."""

    async def app(scope: Message, receive: Any, send: Any) -> None:
        try:
            for message in sent:
                await send(message)
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    return app


class TestDisconnect:
    @pytest.mark.parametrize("body", [[], body_of(b"")], ids=["coming", "unread"])
    async def test_it_cancels_what_has_sent_nothing(self, body: list[Message]) -> None:
        begun, ended, server = asyncio.Event(), asyncio.Event(), Server(*body)
        serving = asyncio.create_task(server.serve(endless(begun, ended)))
        await begun.wait()
        server.hang_up()
        await serving
        assert ended.is_set()
        assert server.statuses == [CLIENT_CLOSED_REQUEST]

    async def test_it_ends_an_answer_that_has_begun(self) -> None:
        begun, ended, server = asyncio.Event(), asyncio.Event(), Server(*body_of(b""))
        serving = asyncio.create_task(server.serve(endless(begun, ended, START, MORE)))
        await begun.wait()
        server.hang_up()
        await serving
        assert server.sent == [START, MORE]

    async def test_it_leaves_alone_what_is_done_after_the_answer(self) -> None:
        done, server = asyncio.Event(), Server(*body_of(b""))

        async def app(scope: Message, receive: Any, send: Any) -> None:
            await send(START)
            await send(END)
            for _ in range(20):
                await asyncio.sleep(0)
            done.set()

        await server.serve(app)
        assert done.is_set()
        assert server.sent == [START, END]

    async def test_an_application_that_waits_for_the_body_is_not_told(self) -> None:
        server = Server()
        server.hang_up()

        async def app(scope: Message, receive: Any, send: Any) -> None:
            raise AssertionError(await receive())  # frameworks raise an error at that

        await server.serve(app)
        assert server.statuses == [CLIENT_CLOSED_REQUEST]

    async def test_shielded_work_ends_first(self) -> None:
        server, saved = Server(), asyncio.Event()

        async def app(scope: Message, receive: Any, send: Any) -> None:
            with anyio.CancelScope(shield=True):
                server.hang_up()
                for _ in range(20):
                    await asyncio.sleep(0)
                saved.set()
            await asyncio.Event().wait()

        await server.serve(app)
        assert saved.is_set()

    async def test_a_server_that_takes_no_answer_any_more_is_no_error(self) -> None:
        class Closed(Server):
            async def send(self, message: Message) -> None:
                raise ConnectionResetError

        server = Closed()
        server.hang_up()
        await server.serve(endless(asyncio.Event(), asyncio.Event()))


CLIENT = """
import socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    peer.sendall(sys.argv[2].encode().replace(b"~", b"\\r\\n"))
    while peer.recv(1 << 16):
        pass
"""
REQUESTS = {
    "get": "GET /endless HTTP/1.1~Host: x~~",
    "post": "POST /endless HTTP/1.1~Host: x~Content-Length: 2~~{}",
    "stream": "GET /stream HTTP/1.1~Host: x~~",
    "burst": "GET /burst HTTP/1.1~Host: x~~",
    "upload": "POST /upload HTTP/1.1~Host: x~Content-Length: 1000~~{}",
}


@asynccontextmanager
async def asking(socket: Path, requests: Iterable[str]) -> AsyncIterator[list[Process]]:
    """Have a process send each request; kill them, if nobody has."""
    async with AsyncExitStack() as stack:
        started = []
        for each in requests:
            command = [sys.executable, "-c", CLIENT, str(socket), each]
            process = await asyncio.create_subprocess_exec(*command)
            stack.push_async_callback(process.wait)
            stack.callback(killed, process)
            started.append(process)
        yield started


def killed(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def running_in(device: Device) -> int:
    executions = (await device.statistics()).executions
    return executions.running + executions.queued


async def until_running(device: Device, wanted: Callable[[int], bool]) -> None:
    async with asyncio.timeout(60):
        while not wanted(await running_in(device)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def served(name: str, folder: Path, driver: Path) -> AsyncIterator[Path]:
    """Serve an application of `tests.web_applications`; yield its socket."""
    socket, log = folder / "web.sock", folder / "log"
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "uvicorn"]
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            *(f"tests.web_applications:{name}", "--uds", str(socket)),
            cwd=Path(__file__).parents[1],
            env={**os.environ, "DRIVER": str(driver)},
            stdout=stderr,
            stderr=stderr,
        )
    try:
        async with asyncio.timeout(60):
            while await status_of(socket) != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield socket
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        await process.wait()
    told = log.read_text()
    assert "Traceback" not in told, told
    assert "ERROR" not in told, told


async def status_of(socket: Path) -> int:
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        try:
            return (await client.get("/quick", timeout=60)).status_code
        except httpx.ConnectError:
            return 0


@pytest.mark.parametrize(
    "name", ["plain", "starlette", "inside", "outside", "of_routes"]
)
async def test_nothing_is_computed_for_clients_that_were_killed(
    name: str, tmp_path: Path
) -> None:
    computing = ["get"] if name == "plain" else ["get", "post", "stream", "burst"]
    idle = [] if name == "plain" else ["upload"]
    async with (
        running_driver() as driver,
        connect(driver.path) as device,
        served(name, tmp_path, driver.path) as socket,
        asking(socket, [REQUESTS[each] for each in computing + idle]) as clients,
    ):
        await until_running(device, lambda count: count == len(computing))
        assert await status_of(socket) == 200
        for process in clients:
            process.kill()
        await until_running(device, lambda count: not count)
        assert await status_of(socket) == 200
