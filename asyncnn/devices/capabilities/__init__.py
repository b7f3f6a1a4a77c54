"""What the reference device says of its performance.

The HAL's figures are ratios to "the CPU". This device runs on the CPU, so all are 1
unless they were measured on this machine, as `asyncnn.tools.capabilities` does. What
was
measured is kept in a file that devices read when they are made, and holds until the
library or what is below it changes.

Source: 1.0/types.hal (PerformanceInfo) and 1.3/types.hal (Capabilities).
"""

from asyncnn.devices.capabilities.measurement import (
    ExecTimes,
    Measurement,
    ReferenceWorkload,
    Surroundings,
)
from asyncnn.devices.capabilities.stored import (
    default_path,
    known_capabilities,
    load_measurement,
    store_measurement,
)
from asyncnn.devices.capabilities.table import capabilities_of, reference_capabilities

__all__ = (
    "ExecTimes",
    "Measurement",
    "ReferenceWorkload",
    "Surroundings",
    "capabilities_of",
    "default_path",
    "known_capabilities",
    "load_measurement",
    "reference_capabilities",
    "store_measurement",
)
