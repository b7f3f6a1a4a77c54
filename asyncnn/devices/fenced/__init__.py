"""Fenced executions: each begins when its fences have signalled, and signals one.

Waiting takes no thread. Executions whose fences have signalled stand in a queue that is
worked off on the event loop, never one inside the other: a chain may be of any length.
A fence between two executions of one device is resolved here, without its callbacks.

Source: HAL 1.3/IPreparedModel.hal (executeFenced) and 1.3/IFencedExecutionCallback.hal.
"""

from asyncnn.devices.fenced.job import FencedJob, because
from asyncnn.devices.fenced.launching import FencedExecutions, active_fences

__all__ = ("FencedExecutions", "FencedJob", "active_fences", "because")
