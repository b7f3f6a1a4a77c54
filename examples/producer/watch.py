"""Classifies the pictures of a camera that is another program.

    python watch.py c
    python watch.py python

The first one compiles camera.c.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import asyncnn
from asyncnn.memory import FrameQueue
from asyncnn.tools.demo import MAX_GREY, load_digits_test, model_path

HERE = Path(__file__).parent
SHAPE = (1, 8, 8, 1)


def camera(language: str, folder: Path) -> list[str]:
    """Return the command of a camera."""
    if language == "python":
        return [sys.executable, str(HERE / "camera.py")]
    compiler = shutil.which("cc")
    if compiler is None:
        sys.exit("there is no C compiler (cc): try `python watch.py python`")
    program = str(folder / "camera")
    source = str(HERE / "camera.c")
    subprocess.run(
        [compiler, "-O2", "-o", program, source, "-lrt", "-pthread"], check=True
    )
    return [program]


async def watch(queue: FrameQueue, labels: np.ndarray) -> None:
    """Run the model on each picture and tell how many were right."""
    async with asyncnn.open_device() as device:
        model = await device.prepare(await asyncnn.load_model(model_path("float")))
        seen = right = 0
        async for picture in queue:
            (scores,) = (await model.run([picture])).values()
            right += int(scores.argmax()) == labels[seen]
            seen += 1
    print(f"{right / seen:.1%} of {seen} right")


async def film(command: list[str], queue: FrameQueue, recording: Path) -> None:
    """Run the camera until it has ended."""
    process = await asyncio.create_subprocess_exec(*command, queue.name, str(recording))
    try:
        if await process.wait():
            raise SystemExit(f"the camera has failed: {process.returncode}")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def main(language: str, folder: Path) -> None:
    """Have a camera play the test pictures."""
    images, labels = load_digits_test()
    recording = folder / "recording"
    (images.astype(np.float32) / MAX_GREY).tofile(recording)
    command = camera(language, folder)
    async with (
        FrameQueue(f"pictures-{os.getpid()}", SHAPE) as queue,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(watch(queue, labels))
        group.create_task(film(command, queue, recording))


if __name__ == "__main__":
    if sys.argv[1:] not in (["c"], ["python"]):
        sys.exit("usage: python watch.py c|python")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(sys.argv[1], Path(folder)))
