"""Metrics over HTTP, for Prometheus to scrape."""

import logging
from http import HTTPStatus
from typing import Self

from prometheus_client.exposition import choose_encoder

from asyncnn.devices import IMeasured
from asyncnn.hal.errors import AsyncnnError
from asyncnn.http_server import HttpRequest, HttpResponse, HttpServer
from asyncnn.metrics.families import registry_of

logger = logging.getLogger(__name__)

PATH = "/metrics"


class MetricsEndpoint:
    """Answers ``GET /metrics`` on 127.0.0.1 with the numbers of ``device``.

    A context manager. With port 0 the system chooses one; `url` says which. Every user
    of this machine can read them, whereas a driver's socket shows them to its own user.

    Each scrape looks at the device anew; in between the endpoint costs it nothing. It
    serves on the loop that entered its context, and hangs up on its clients when the
    context is left. It does not own the device, which must be open for longer; while
    that is gone, a scrape is answered with 503.

    :raises InvalidArgumentError: if ``port`` is no port.
    :raises OSError: on entering, if the port is taken.
    """

    def __init__(self, device: IMeasured, port: int = 0) -> None:
        self._device = device
        self._server = HttpServer(self._answer, port)

    @property
    def url(self) -> str:
        """Where the metrics are, while the context is entered."""
        return self._server.url + PATH

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._server.__aexit__(*exception)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        if request.path != PATH:
            return HttpResponse(HTTPStatus.NOT_FOUND)
        try:
            statistics = await self._device.get_statistics()
        except AsyncnnError as error:
            logger.warning("no metrics: %s", error)
            return HttpResponse(HTTPStatus.SERVICE_UNAVAILABLE)
        encode, content_type = choose_encoder(request.fields["Accept"] or "")
        body = encode(registry_of(statistics))
        return HttpResponse(HTTPStatus.OK, {"Content-Type": content_type}, body)
