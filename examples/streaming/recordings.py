"""Recordings as WAV files, with the keys pressed beside them as JSON.

``python examples/streaming/recordings.py line.wav --seed 7`` writes one to listen to.
"""

import argparse
import wave
from pathlib import Path

import msgspec
import numpy as np

from synthesis import RATE, Press, Recording, record

TRAINING_SEEDS = range(1000, 1400)
HELD_OUT_SEEDS = range(40)
"""Of the recordings to judge by; training sees none of them."""


def write(recording: Recording, path: Path) -> None:
    """Write ``path`` as a WAV file, and the keys beside it with suffix ``.json``."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(recording.samples.astype("<i2").tobytes())
    path.with_suffix(".json").write_bytes(msgspec.json.encode(recording.presses))


def read(path: Path) -> Recording:
    """Read a WAV file; its keys are unknown, so none, if there is no JSON beside it.

    :raises ValueError: if it is not mono, 16 bits, 8 kHz.
    """
    with wave.open(str(path), "rb") as file:
        form = file.getnchannels(), file.getsampwidth(), file.getframerate()
        if form != (1, 2, RATE):
            raise ValueError(
                f"{path}: {form[0]} channels of {8 * form[1]} bits at {form[2]} Hz, "
                f"not 1 of 16 bits at {RATE} Hz"
            )
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    keys = path.with_suffix(".json")
    presses: tuple[Press, ...] = ()
    if keys.exists():
        presses = msgspec.json.decode(keys.read_bytes(), type=tuple[Press, ...])
    return Recording(samples.astype(np.int16), presses)


def main() -> None:
    """Write the recording that a seed stands for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, metavar="FILE.wav")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=12.0)
    options = parser.parse_args()
    write(record(options.seed, options.seconds), options.path)


if __name__ == "__main__":
    main()
