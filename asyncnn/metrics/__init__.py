"""Floor 6: what devices do, in the words of Prometheus and OpenMetrics.

Needs the package ``prometheus-client``: ``pip install asyncnn[metrics]``. Without it
importing this package raises `ImportError`. A device's own records, which need nothing,
come from `asyncnn.Device.statistics`.

`openmetrics`
    the text of OpenMetrics 1.0 for one record of statistics
`MetricsEndpoint`
    answers ``GET /metrics`` on 127.0.0.1 for as long as its context lasts; ``asyncnn
    serve --metrics-port`` has one in a driver
`DeviceCollector`
    the same metrics for a registry of one's own

A record is one look at all numbers, taken anew for each scrape, and costs the device
nothing in between. The endpoint serves on the loop that entered its context, and hangs
up on its clients when the context is left; it does not own the device, which must be
open for longer. Every user of the machine can read it.

Counters are totals since the device was opened, times are seconds, sizes bytes. Names
begin with ``asyncnn_``:

=========================  ===========================================================
``threads``                worker threads at the moment
``resident_bytes``         memory of the whole process
``executions``             what became of executions: ``_queued``, ``_running``,
                           ``_total`` by status, ``_deadline_misses_total``,
                           ``_preemptions_total``, the histogram ``_latency_seconds``
``preparations``           the same of preparations
``model_executions``       the same of the executions of each model, with ``model_info``
                           and ``model_idle_bytes``
``client_executions``      and of each client, with ``client_info`` and
                           ``client_buffer_bytes``
=========================  ===========================================================

Devices, models and clients have families of their own, so that a sum over the labels of
one counts nothing twice.

`MetricsEndpoint` raises `InvalidArgumentError` for what is no port, and `OSError` on
entering if the port is taken. While the device is gone a scrape is answered with 503.

>>> import asyncio
>>> import urllib.request
>>> from asyncnn import open_device
>>> from asyncnn.metrics import MetricsEndpoint, openmetrics
>>> async def main():
...     async with open_device() as device:
...         print(openmetrics(await device.statistics()).splitlines()[-1])
...         async with MetricsEndpoint(device.hal) as endpoint:
...             text = await asyncio.to_thread(fetched, endpoint.url)
...             return [line for line in text.splitlines() if "_threads{" in line]
>>> def fetched(url):
...     with urllib.request.urlopen(url, timeout=5) as response:
...         return response.read().decode()
>>> asyncio.run(main())
# EOF
['asyncnn_threads{device="asyncnn-reference"} 0.0']
"""

from asyncnn.metrics.endpoint import MetricsEndpoint
from asyncnn.metrics.families import DeviceCollector, openmetrics

__all__ = ("DeviceCollector", "MetricsEndpoint", "openmetrics")
