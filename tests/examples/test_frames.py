"""The two processes of examples/frames, and the driver of one of them."""

import asyncio
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "frames"


async def script(name: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        name,
        *arguments,
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_pictures_of_a_sensor_are_classified_where_they_lie(
    tmp_path: Path,
) -> None:
    name, path = f"frames-{os.getpid()}", tmp_path / "sensor.sock"
    async with asyncio.timeout(60):
        sensor = await script("sensor.py", name, str(path))
        try:
            assert sensor.stdout is not None
            assert await sensor.stdout.readline() == f"pictures at {path}\n".encode()
            watcher = await script("watch.py", name, str(path))
            out, error = await watcher.communicate()
            assert watcher.returncode == 0, error.decode()
            _, error = await sensor.communicate()
            assert sensor.returncode == 0, error.decode()
        finally:
            if sensor.returncode is None:
                sensor.kill()
                await sensor.wait()
    share, _, rest = out.decode().partition("% of ")
    assert float(share) > 97
    assert rest == "360 right\n"
