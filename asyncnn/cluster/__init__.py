"""Devices of a cluster as one: dispatch among replicas, and Ray to reach them.

`dispatch` decides which replica computes what, and when; it knows no clock, no loop and
no network, and so is the same in `simulation`. `hosting` is what runs in an actor: an
ordinary device. `links` reach actors by Ray, `cluster_device` and `cluster_model` are
the HAL's objects over them. Ray is imported when a device is opened, and not before.

>>> import asyncnn
>>> settings = asyncnn.cluster.ClusterSettings(replicas=4, idempotent=True)
>>> async def main(model, inputs):
...     async with asyncnn.open_device("ray://auto", replicas=settings) as device:
...         return await (await device.prepare(model)).run(inputs)
"""

from asyncnn.lazy import lazy_names as _lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncnn.runtime.cluster_settings import ClusterSettings as ClusterSettings
    from asyncnn.runtime.cluster_settings import DispatchSettings as DispatchSettings

__getattr__, __dir__, __all__ = _lazy_names(
    __name__, {"asyncnn.runtime.cluster_settings": "ClusterSettings DispatchSettings"}
)
