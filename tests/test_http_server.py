"""The small HTTP server: what it refuses, what it bounds, and how it ends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus

import pytest

from asyncnn import http_server
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.http_server import MAX_CONNECTIONS, HttpRequest, HttpResponse, HttpServer
from tests.memory.foreign import leaks, traces
from tests.service.test_descriptors import only
from tests.waits import until

GET = b"GET /here HTTP/1.1\r\nHost: anything\r\n\r\n"


HALF = GET[:-2]
LARGE = GET.replace(b"here", b"large")
LARGE_BYTES = 4 << 20
"""More than the system keeps for a peer that does not take it."""


async def greet(request: HttpRequest) -> HttpResponse:
    if request.path == "/large":
        return HttpResponse(HTTPStatus.OK, {}, bytes(LARGE_BYTES))
    if request.path != "/here":
        return HttpResponse(HTTPStatus.NOT_FOUND)
    return HttpResponse(HTTPStatus.OK, {"Content-Type": "text/plain"}, b"hello")


@pytest.fixture
async def served() -> AsyncIterator[HttpServer]:
    before = traces()
    async with HttpServer(greet, timeout_s=600) as served:
        yield served
    await until(lambda: not leaks(before))


async def connected(
    served: HttpServer,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(http_server.LOOPBACK, served.port)


async def ask(served: HttpServer, request: bytes) -> tuple[int, bytes, bytes]:
    """Return the status, headers and body of the answer to ``request``."""
    reader, writer = await connected(served)
    writer.write(request)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


async def test_an_answer_has_its_fields_and_body(served: HttpServer) -> None:
    status, head, body = await ask(served, GET)
    assert (status, body) == (200, b"hello")
    assert b"Content-Type: text/plain" in head
    assert b"Content-Length: 5" in head


async def test_an_answer_that_fails_is_logged_and_told_as_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(request: HttpRequest) -> HttpResponse:
        raise ValueError("secret")

    async with HttpServer(fail) as served:
        for _ in range(3):
            status, head, body = await ask(served, GET)
            assert (status, body) == (500, b"")
            assert b"secret" not in head
    (record,) = caplog.records  # not one for each request
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


async def test_head_is_told_what_get_would_be_but_the_body(served: HttpServer) -> None:
    status, head, body = await ask(served, GET.replace(b"GET", b"HEAD"))
    assert (status, body) == (200, b"")
    assert b"Content-Length: 5" in head


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /here?name=x HTTP/1.0\r\n\r\n", 200),
        (b"POST /here HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /here HTTP/1.1\r\n\r\n", 405),
        (b"GET /here\r\n\r\n", 400),
        (b"GET /here HTTP/2.0\r\n\r\n", 400),
        (b"\0\xff\r\n\r\n", 400),
        (b"GET /here HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    ],
)
async def test_other_requests_are_answered_by_a_status(
    served: HttpServer, request_: bytes, status: int
) -> None:
    assert (await ask(served, request_))[0] == status


async def test_what_is_no_request_is_hung_up_on() -> None:
    async with HttpServer(greet, timeout_s=0.05) as served:
        for sent in (b"", b"GET /he"):
            reader, writer = await connected(served)
            with closing(writer):
                writer.write(sent)
                assert await rest(reader) == b""


async def test_who_takes_no_answer_is_hung_up_on() -> None:
    asked = asyncio.Event()

    async def answer(request: HttpRequest) -> HttpResponse:
        asked.set()
        return await greet(request)

    async with HttpServer(answer, timeout_s=0.05) as served:
        reader, writer = await slow(served, LARGE)
        with closing(writer):
            await asked.wait()
            await until(lambda: not served.connections)
            assert len(await rest(reader)) < LARGE_BYTES


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Return all that comes until the server hangs up."""
    found = b""
    with suppress(ConnectionError):
        while received := await reader.read(1 << 16):
            found += received
    return found


async def slow(
    served: HttpServer, sent: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with little space, send, and take next to nothing that is answered."""
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(peer, (http_server.LOOPBACK, served.port))
    reader, writer = await asyncio.open_connection(sock=peer, limit=1024)
    writer.write(sent)
    return reader, writer


class TestRoom:
    """Many who keep the server waiting cost others nothing."""

    async def test_who_is_waited_for_longest_makes_room(
        self, served: HttpServer
    ) -> None:
        idle = [await connected(served) for _ in range(MAX_CONNECTIONS)]
        await until(lambda: served.connections == MAX_CONNECTIONS)
        assert (await ask(served, GET))[0] == 200
        for _, writer in idle:
            writer.write(GET)
        answers = [await rest(reader) for reader, _ in idle]
        assert [bool(answer) for answer in answers] == [False] + [True] * 31
        for _, writer in idle:
            writer.close()

    async def test_no_request_is_lost_beside_those_who_do_not_end_theirs_or_read(
        self, served: HttpServer
    ) -> None:
        with ExitStack() as hostile:

            async def come() -> None:
                for sent in (HALF, LARGE):
                    _, writer = await slow(served, sent)
                    hostile.callback(writer.transport.abort)
                    writers.append(writer)

            writers: list[asyncio.StreamWriter] = []
            for _ in range(200):
                await come()
            for _ in range(20):
                await come()  # as somebody has left for the last request
                await until(lambda: served.connections == MAX_CONNECTIONS)
                for writer in writers:
                    if not writer.is_closing():
                        writer.write(b"x")
                assert (await ask(served, GET))[::2] == (200, b"hello")

    async def test_no_request_is_lost_however_often_others_come(
        self, served: HttpServer
    ) -> None:
        async def come_again() -> None:
            while True:
                with suppress(ConnectionError):
                    reader, writer = await connected(served)
                    with closing(writer):
                        writer.write(HALF)
                        await reader.read()

        async with asyncio.TaskGroup() as group:
            hostile = [group.create_task(come_again()) for _ in range(100)]
            await until(lambda: served.connections == MAX_CONNECTIONS)
            for _ in range(10):
                assert (await ask(served, GET))[0] == 200
            for task in hostile:
                task.cancel()

    async def test_who_is_being_answered_keeps_its_place(self) -> None:
        begun, go_on = 0, asyncio.Event()

        async def slowly(request: HttpRequest) -> HttpResponse:
            nonlocal begun
            begun += 1
            await go_on.wait()
            return HttpResponse(HTTPStatus.OK)

        async with HttpServer(slowly, timeout_s=600) as served:
            asking = [
                asyncio.create_task(ask(served, GET)) for _ in range(MAX_CONNECTIONS)
            ]
            await until(lambda: begun == MAX_CONNECTIONS)
            waiting = [await connected(served) for _ in range(5)]
            for _, writer in waiting:
                writer.write(GET)
            go_on.set()
            answers = [answer[0] for answer in await asyncio.gather(*asking)]
            assert answers == [200] * MAX_CONNECTIONS
            for reader, writer in waiting:
                with closing(writer):
                    assert b" 200 OK\r\n" in await rest(reader)

    async def test_without_descriptors_newcomers_wait(
        self, served: HttpServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        with only(1):
            asking = asyncio.create_task(ask(served, GET))
            await until(lambda: caplog.records)
        assert (await asking)[0] == 200
        assert "nobody is accepted: [Errno 24]" in caplog.text


async def test_leaving_hangs_up_on_everybody() -> None:
    async with HttpServer(greet) as served:
        reader, writer = await connected(served)
        await until(lambda: served.connections == 1)
    async with asyncio.timeout(20):
        assert await rest(reader) == b""
    writer.close()
    with pytest.raises(ConnectionError):
        await connected(served)


async def test_a_port_that_is_taken_is_an_error(served: HttpServer) -> None:
    with pytest.raises(OSError, match="in use"):
        async with HttpServer(greet, served.port):
            pass


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("0.0.0.0", socket.gethostname()),
    ],
)
async def test_its_address_can_be_opened(host: str, shown: str) -> None:
    async with HttpServer(greet, host=host) as served:
        assert served.url == f"http://{shown}:{served.port}"


async def test_an_address_of_version_6_has_brackets() -> None:
    assert HttpServer(greet, 80, host="::1").url == "http://[::1]:80"


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidArgumentError, match="no port"):
        HttpServer(greet, port)


class TestNames:
    """Requests for names that may be another's are refused where that matters."""

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("127.0.0.1", 200),
            ("127.0.0.1:80", 200),
            ("[::1]:80", 200),
            ("localhost:4000", 200),
            ("LocalHost", 200),
            ("robot:1", 200),
            (f"{socket.gethostname()}:80", 200),
            ("evil.example", 421),
            ("evil.example:80", 421),
            ("localhost.evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("[evil]", 421),
            ("", 421),
        ],
    )
    async def test_only_own_ones_are_answered(self, host: str, status: int) -> None:
        request = b"GET /here HTTP/1.1\r\nHost: %s\r\n\r\n" % host.encode()
        async with HttpServer(greet, only_for_names={"robot"}) as served:
            assert (await ask(served, request))[0] == status

    @pytest.mark.parametrize("hosts", [0, 2])
    async def test_a_request_names_one_host(self, hosts: int) -> None:
        request = b"GET /here HTTP/1.1\r\n" + b"Host: localhost\r\n" * hosts + b"\r\n"
        async with HttpServer(greet, only_for_names=()) as served:
            assert (await ask(served, request))[0] == 421

    async def test_elsewhere_the_name_says_nothing(self, served: HttpServer) -> None:
        assert (await ask(served, GET.replace(b"anything", b"evil.example")))[0] == 200
