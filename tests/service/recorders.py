"""Drivers in the test's process that record what they are asked for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from asyncnn.devices import ReferenceDevice
from asyncnn.devices.engine_device import EngineDevice
from asyncnn.service import RecordingSettings, Server
from asyncnn.service.driver.recorder import CallRecorder
from asyncnn.service.recorded_memory import read_memory
from asyncnn.service.recording import CallRecord, RecordedDriver, record_of

EVERYTHING = RecordingSettings(models=True, tensors=True, max_bytes=2**22)


@asynccontextmanager
async def recording_driver(
    path: Path,
    settings: RecordingSettings = EVERYTHING,
    kind: type[EngineDevice] = ReferenceDevice,
) -> AsyncIterator[CallRecorder]:
    """Serve a device, and note what clients call."""
    recorder = CallRecorder(settings, RecordedDriver("reference"))
    async with kind() as device, Server(device, path, recorder=recorder):
        yield recorder


def noted_by(recorder: CallRecorder) -> CallRecord:
    """Return what a driver has noted."""
    return record_of(read_memory(recorder.fd))
