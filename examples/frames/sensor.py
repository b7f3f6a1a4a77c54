"""A process that takes pictures. It is no client of a driver and knows no model.

Its pictures lie in an array with a few places, which `watch.py` finds by its name. A
socket tells whose turn it is: a place is the sensor's until it has sent its number, and
again when the number comes back. So nobody ever sees half a picture.

    python sensor.py NAME SOCKET
"""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter

import numpy as np
from numpy.typing import NDArray

import asyncnn
from asyncnn.tools.demo import MAX_GREY, load_digits_test

PLACES = 3
SHAPE = (1, 8, 8, 1)

Frames = NDArray[np.float32]


async def take_pictures(
    frames: Frames, reader: StreamReader, writer: StreamWriter
) -> None:
    """Write pictures to places that are free; tell which, and what they show."""
    free = list(range(PLACES))
    for image, digit in zip(*load_digits_test(), strict=True):
        place = free.pop() if free else (await reader.readexactly(1))[0]
        frames[place] = image.reshape(SHAPE) / MAX_GREY
        writer.write(f"{place} {digit}\n".encode())
        await writer.drain()
    writer.write_eof()


async def main(name: str, path: str) -> None:
    """Take pictures for one watcher."""
    done = asyncio.Event()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            await take_pictures(frames, reader, writer)
            await reader.read()  # until it has looked at the last ones
        finally:
            writer.close()
            done.set()

    async with asyncnn.named_array(name, (PLACES, *SHAPE)) as frames:
        server = await asyncio.start_unix_server(serve, path)
        async with server:
            print(f"pictures at {path}", flush=True)
            await done.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
