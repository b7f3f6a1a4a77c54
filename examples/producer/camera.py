"""What camera.c does, in Python: plays a recording into a frame queue.

python camera.py QUEUE RECORDING
"""

import sys

import numpy as np

from asyncnn.memory import FrameWriter


def main(name: str, recording: str) -> None:
    """Write each picture; wait where all places are taken."""
    with FrameWriter(name) as queue:
        for frame in np.fromfile(recording, queue.dtype).reshape(-1, *queue.shape):
            queue.write(frame)


if __name__ == "__main__":
    main(*sys.argv[1:])
