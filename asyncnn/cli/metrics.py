"""What commands do with metrics, whose package need not be installed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType

from asyncnn.cli.console import console
from asyncnn.devices import DeviceStatistics, IMeasured
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.runtime.device import Device


def openmetrics(statistics: DeviceStatistics) -> str:
    """Return a record as the text of OpenMetrics.

    :raises InvalidArgumentError: if the package for that is not installed.
    """
    text: str = _metrics().openmetrics(statistics)
    return text


@asynccontextmanager
async def metrics_served(device: Device, port: int | None) -> AsyncIterator[None]:
    """Serve the metrics of ``device`` over HTTP for the block, unless port is None.

    :raises InvalidArgumentError: if the package for that is not installed.
    :raises GeneralFailureError: if the device keeps no statistics.
    """
    if port is None:
        yield
        return
    if not isinstance(device.hal, IMeasured):
        raise GeneralFailureError(f"{device.name} keeps no statistics")
    async with _metrics().MetricsEndpoint(device.hal, port) as endpoint:
        console().print(f"metrics at {endpoint.url}", soft_wrap=True)
        yield


def _metrics() -> ModuleType:
    try:
        import asyncnn.metrics
    except ImportError as error:
        raise InvalidArgumentError(
            f"metrics need the package prometheus-client: {error}",
            hint="install it with: pip install asyncnn[metrics]",
        ) from error
    return asyncnn.metrics
