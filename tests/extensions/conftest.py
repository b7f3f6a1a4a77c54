"""Devices that have the extension of these tests."""

from asyncnn.devices import DeviceSettings
from tests.extensions.vendor import vendor
from tests.places import WAYS, device_at

SETTINGS = DeviceSettings(extensions=(vendor,))


device = device_at(*WAYS, settings=SETTINGS)
