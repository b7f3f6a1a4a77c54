"""The driver process whose heart beats."""

from pathlib import Path

from asyncnn.devices import DeviceSettings
from asyncnn.runtime.device import connect
from asyncnn.tools.bench.responsiveness.driver import beating_driver
from tests.networks import addition


async def test_it_serves_clients_while_its_heart_beats(tmp_path: Path) -> None:
    path = tmp_path / "driver.sock"
    with beating_driver(path, DeviceSettings()) as driver:
        for _ in range(2):
            driver.start()
            async with connect(path) as device:
                await device.prepare(addition(4))
            pulse = driver.stop()
            assert pulse.beats > 0
            assert 0 <= pulse.p50_ms <= pulse.p99_ms <= pulse.longest_ms
