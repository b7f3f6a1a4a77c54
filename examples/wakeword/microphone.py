"""A WAV file that is heard as a microphone is: in chunks, as time goes by."""

import asyncio
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
CHUNK = 1280
"""Samples of 80 ms, which all models take together."""

Samples = NDArray[np.float32]


def samples_of(path: Path) -> Samples:
    """Return the samples of a file, in the units of 16-bit integers.

    :raises ValueError: if it is not a WAV file of one channel, 16 bits and 16 kHz.
    """
    try:
        with wave.open(str(path), "rb") as file:
            form = file.getnchannels(), 8 * file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        reason = str(error) or "the file ends too early"
        raise ValueError(f"{path}: no WAV file: {reason}") from error
    if form != (1, 16, RATE):
        raise ValueError(
            f"{path}: {form[0]} channels of {form[1]} bits at {form[2]} Hz, not one of "
            f"16 bits at {RATE} Hz"
        )
    return np.frombuffer(data, "<i2").astype(np.float32)


async def chunks(samples: Samples, *, in_real_time: bool) -> AsyncIterator[Samples]:
    """Yield chunks of [1, `CHUNK`], the last one with silence after it.

    In real time each comes when its last sample would have been heard.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number, start in enumerate(range(0, len(samples), CHUNK), 1):
        chunk = np.zeros((1, CHUNK), np.float32)
        part = samples[start : start + CHUNK]
        chunk[0, : len(part)] = part
        if in_real_time:
            heard = started + number * CHUNK / RATE
            await asyncio.sleep(max(0.0, heard - loop.time()))
        yield chunk
