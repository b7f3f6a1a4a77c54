import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from asyncnn.devices import DeviceStatistics, ReferenceDevice
from asyncnn.hal.errors import DeviceUnavailableError, InvalidArgumentError
from asyncnn.metrics import MetricsEndpoint, endpoint
from tests.memory.foreign import leaks, traces
from tests.service.raw import until

GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"


@pytest.fixture
async def served() -> AsyncIterator[MetricsEndpoint]:
    before = traces()
    async with ReferenceDevice() as device, MetricsEndpoint(device) as served:
        yield served
    await until(lambda: not leaks(before))


def port_of(served: MetricsEndpoint) -> int:
    return int(served.url.removesuffix("/metrics").rpartition(":")[2])


async def connected(
    served: MetricsEndpoint,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(endpoint.HOST, port_of(served))


async def ask(served: MetricsEndpoint, request: bytes) -> tuple[int, bytes, bytes]:
    """Return the status, headers and body of the answer to ``request``."""
    reader, writer = await connected(served)
    writer.write(request)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


async def test_metrics_are_plain_text_by_default(served: MetricsEndpoint) -> None:
    status, head, body = await ask(served, GET)
    assert status == 200
    assert b"text/plain" in head
    assert f"Content-Length: {len(body)}".encode() in head
    assert "asyncnn_threads" in {each.name for each in parse_text(body.decode())}


async def test_metrics_are_openmetrics_for_those_who_accept_it(
    served: MetricsEndpoint,
) -> None:
    accept = b"Accept: application/openmetrics-text;version=1.0.0\r\n\r\n"
    _, head, body = await ask(served, GET[:-2] + accept)
    assert b"application/openmetrics-text" in head
    assert {each.name for each in parse_openmetrics(body.decode())}


async def test_head_is_told_what_get_would_be_but_the_body(
    served: MetricsEndpoint,
) -> None:
    status, head, body = await ask(served, GET.replace(b"GET", b"HEAD"))
    assert (status, body) == (200, b"")
    assert b"Content-Length: 0" not in head


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"GET /metrics?name=x HTTP/1.0\r\n\r\n", 200),
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2.0\r\n\r\n", 400),
        (b"\0\xff\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
    ],
)
async def test_other_requests_are_answered_by_a_status(
    served: MetricsEndpoint, request_: bytes, status: int
) -> None:
    assert (await ask(served, request_))[0] == status


async def test_what_is_no_request_is_hung_up_on(
    served: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_TIMEOUT_S", 0.05)
    for sent in (b"", b"GET /metr"):
        reader, writer = await connected(served)
        writer.write(sent)
        async with asyncio.timeout(5):
            assert await _rest(reader) == b""
        writer.close()
    assert (await ask(served, GET))[0] == 200


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_too_many_connections_are_hung_up_on(served: MetricsEndpoint) -> None:
    idle = [await connected(served) for _ in range(endpoint.MAX_CONNECTIONS)]
    await until(lambda: len(served._tasks) == endpoint.MAX_CONNECTIONS)
    reader, writer = await connected(served)
    async with asyncio.timeout(5):
        assert await _rest(reader) == b""
    for each in (writer, *(writer for _, writer in idle)):
        each.close()
    await until(lambda: not served._tasks)
    assert (await ask(served, GET))[0] == 200


async def test_leaving_hangs_up_on_everybody() -> None:
    async with ReferenceDevice() as device:
        async with MetricsEndpoint(device) as served:
            reader, writer = await connected(served)
            await until(lambda: served._tasks)
        async with asyncio.timeout(5):
            assert await _rest(reader) == b""
        writer.close()
        with pytest.raises(ConnectionError):
            await connected(served)


class LostDevice:
    async def get_statistics(self) -> DeviceStatistics:
        raise DeviceUnavailableError("the driver is gone")


async def test_a_device_that_is_gone_is_a_service_that_is_not_available() -> None:
    async with MetricsEndpoint(LostDevice()) as served:
        assert (await ask(served, GET))[0] == 503


async def test_a_port_that_is_taken_is_an_error(served: MetricsEndpoint) -> None:
    with pytest.raises(OSError, match="in use"):
        async with MetricsEndpoint(LostDevice(), port_of(served)):
            pass


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(InvalidArgumentError, match="no port"):
        MetricsEndpoint(LostDevice(), port)
