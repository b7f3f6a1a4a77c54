"""A producer that knows a frame queue by its documented layout alone.

    python foreign_producer.py NAME FRAMES STAGE

writes frames full of their numbers, stops in the midst of the last one at the STAGE,
says so, and waits to be killed; with the stage `end` it ends in order. NAME is the one
that POSIX knows.
"""

import fcntl
import mmap
import os
import signal
import struct
import sys

import numpy as np
import posix_ipc

STAGES = (
    "locked",
    "named",
    "counted",
    "taken",
    "half",
    "written",
    "numbered",
    "posted",
)


def run(name: str, frames: int, stage: str) -> None:
    def reached(here: str, number: int) -> None:
        if here == stage and number == frames:
            os.write(sys.stdout.fileno(), f"{here}\n".encode())
            signal.pause()

    fd = posix_ipc.SharedMemory(name).fd
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1, 1, 0)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
    reached("locked", frames)
    memory = mmap.mmap(fd, 0)
    words = np.frombuffer(memory, np.uint64, 512)
    places, frame_bytes, begin, stride = map(int, words[1:5])
    filled = posix_ipc.Semaphore(name + ".filled")
    free = posix_ipc.Semaphore(name + ".free")
    following = int(words[17]) + 1
    while words[33 + 2 * ((following - 1) % places)] == following:
        following += 1
    words[24] = os.getpid()
    reached("named", frames)
    words[25] += 1
    filled.release()
    reached("counted", frames)
    for index in range(1, frames + 1):
        number = following + index - 1
        place = (number - 1) % places
        free.acquire()
        reached("taken", index)
        while words[32 + 2 * place] != number:
            free.acquire()
        start = begin + place * stride
        values = np.full(frame_bytes // 4, number, np.float32).tobytes()
        memory[start : start + frame_bytes // 2] = values[: frame_bytes // 2]
        reached("half", index)
        memory[start : start + frame_bytes] = values
        reached("written", index)
        words[33 + 2 * place] = number
        reached("numbered", index)
        filled.release()
        reached("posted", index)
    words[24] = 0
    filled.release()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), sys.argv[3])
