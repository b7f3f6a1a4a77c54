"""Follows the pitch of a sound with a model that an extension's operations are part of.

The model runs on a device in this process and in a driver of its own, which both have
the extension; a device without it says what it lacks. With the name of a file, the
model is saved there for the command line.
"""

import asyncio
import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import asyncnn
from asyncnn.hal.types import Operand
from spectral import MAGNITUDE, SPECTROGRAM, TENSOR_COMPLEX64, spectral

RATE_HZ = 8000
SAMPLES = RATE_HZ
WINDOW, HOP = 512, 1024


def pitch_model() -> asyncnn.NamedModel:
    """Return a model that finds the strongest frequency of each window of a sound."""
    builder = asyncnn.ModelBuilder()
    sound = builder.input("sound", asyncnn.OperandType.TENSOR_FLOAT32, (1, SAMPLES))
    spectrogram = builder.operation(
        SPECTROGRAM,
        [sound, builder.scalar(WINDOW), builder.scalar(HOP)],
        Operand(TENSOR_COMPLEX64, (0, 0, 0)),
    )
    magnitude = builder.operation(
        MAGNITUDE, [spectrogram], Operand(asyncnn.OperandType.TENSOR_FLOAT32, (0, 0, 0))
    )
    strongest = builder.operation(
        asyncnn.OperationType.ARGMAX,
        [magnitude, builder.scalar(-1)],
        Operand(asyncnn.OperandType.TENSOR_INT32, (0, 0)),
    )
    builder.output(strongest, "bin")
    return builder.build()


def rising_sound() -> NDArray[np.float32]:
    """Return a second of a tone that rises from 500 to 2500 Hz."""
    seconds = np.arange(SAMPLES) / RATE_HZ
    phase = 2 * np.pi * (500 * seconds + 1000 * seconds**2)
    return np.sin(phase, dtype=np.float32).reshape(1, SAMPLES)


async def pitch(device: asyncnn.Device) -> list[int]:
    """Return the pitch of the sound in Hz, window by window."""
    prepared = await device.prepare(pitch_model())
    outputs = await prepared.run({"sound": rising_sound()})
    return [int(index) * RATE_HZ // WINDOW for index in outputs["bin"].reshape(-1)]


async def main() -> None:
    """Run the model on three devices and print what they say."""
    async with asyncnn.open_device(extensions=[spectral]) as device:
        print("in this process: ", *await pitch(device))
    # The driver has to find the module, too.
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    async with asyncnn.connect(extensions=["spectral:spectral"]) as device:
        print("in its driver:   ", *await pitch(device))
    async with asyncnn.open_device() as device:
        for operation in (await asyncnn.explain(device, pitch_model())).operations:
            if not operation.is_supported:
                print(f"elsewhere {operation.place}: {operation.reason}")


if __name__ == "__main__":
    asyncio.run(main())
    for path in sys.argv[1:]:
        asyncnn.save(pitch_model(), path)
