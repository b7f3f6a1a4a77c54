import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from asyncnn.devices import DeviceStatistics, ReferenceDevice
from asyncnn.hal.errors import DeviceUnavailableError, InvalidArgumentError
from asyncnn.metrics import MetricsEndpoint
from tests.memory.foreign import leaks, traces
from tests.waits import until


@pytest.fixture
async def served() -> AsyncIterator[MetricsEndpoint]:
    before = traces()
    async with ReferenceDevice() as device, MetricsEndpoint(device) as served:
        yield served
    await until(lambda: not leaks(before))


async def fetched(url: str, **fields: str) -> tuple[int, str, bytes]:
    """Return the status, the type of the content, and the content."""

    def fetch() -> tuple[int, str, bytes]:
        request = urllib.request.Request(url, headers=fields)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                kind = answer.headers["Content-Type"]
                return answer.status, kind, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, "", b""

    return await asyncio.to_thread(fetch)


async def test_metrics_are_plain_text_by_default(served: MetricsEndpoint) -> None:
    status, kind, body = await fetched(served.url)
    assert status == 200
    assert kind.startswith("text/plain")
    assert "asyncnn_threads" in {each.name for each in parse_text(body.decode())}


async def test_metrics_are_openmetrics_for_those_who_accept_it(
    served: MetricsEndpoint,
) -> None:
    accept = "application/openmetrics-text;version=1.0.0"
    _, kind, body = await fetched(served.url, Accept=accept)
    assert kind.startswith("application/openmetrics-text")
    assert {each.name for each in parse_openmetrics(body.decode())}


async def test_there_is_nothing_else(served: MetricsEndpoint) -> None:
    assert (await fetched(served.url.removesuffix("metrics")))[0] == 404


class LostDevice:
    async def get_statistics(self) -> DeviceStatistics:
        raise DeviceUnavailableError("the driver is gone")


async def test_a_device_that_is_gone_is_a_service_that_is_not_available() -> None:
    async with MetricsEndpoint(LostDevice()) as served:
        assert (await fetched(served.url))[0] == 503


def test_what_is_no_port_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no port"):
        MetricsEndpoint(LostDevice(), -1)
