"""Floor 7: measures how this machine's devices do beside plain NumPy.

The HAL's `Capabilities` are ratios to the time that "the CPU" takes for the same
workload. That CPU is here a program as anyone would write it with NumPy, in `network`
and `few_operations` beside the model that it equals, on as many threads of
the BLAS as the device has. Devices read the result when they are opened; see
`asyncnn.devices.measured_capabilities`.

>>> measurement = await measure_capabilities()
>>> store_measurement(measurement)
"""

from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement as CapabilityMeasurement,
)
from asyncnn.devices.measured_capabilities import ReferenceWorkload as ReferenceWorkload
from asyncnn.devices.measured_capabilities import Surroundings as Surroundings
from asyncnn.devices.measured_capabilities import load_measurement as load_measurement
from asyncnn.devices.measured_capabilities import store_measurement as store_measurement
from asyncnn.tools.capabilities.calibration import (
    CapabilitiesReport as CapabilitiesReport,
)
from asyncnn.tools.capabilities.calibration import (
    measure_capabilities as measure_capabilities,
)
