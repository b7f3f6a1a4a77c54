"""Classifies what another process writes, where it lies: nothing is copied on the way.

python watch.py NAME SOCKET
"""

import asyncio
import sys

import asyncnn
from asyncnn.tools.demo import model_path


async def main(name: str, path: str) -> None:
    """Run a model on each picture of `sensor.py` and tell how many were right."""
    frames = await asyncnn.open_named_array(name)
    reader, writer = await asyncio.open_unix_connection(path)
    async with asyncnn.connect() as device:
        model = await device.prepare(await asyncnn.load_model(model_path("float")))
        runs = [model.reusable([frame]) for frame in frames]
        seen = right = 0
        async for line in reader:
            place, digit = map(int, line.split())
            (scores,) = (await runs[place].run()).values()
            right += int(scores.argmax()) == digit
            seen += 1
            writer.write(bytes([place]))
    writer.close()
    print(f"{right / seen:.1%} of {seen} right")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
