"""Floor 6: what devices do, in the words of Prometheus and OpenMetrics.

Needs the package ``prometheus-client``: ``pip install asyncnn[metrics]``. A device's
own records, which need nothing, come from `Device.statistics`.
"""

from asyncnn.metrics.endpoint import MetricsEndpoint
from asyncnn.metrics.families import DeviceCollector, openmetrics

__all__ = ("DeviceCollector", "MetricsEndpoint", "openmetrics")
