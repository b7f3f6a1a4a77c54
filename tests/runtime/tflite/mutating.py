"""Changes fields of a TFLite file at random, and has LiteRT run what is left of it.

Run in a process of its own, as a mistake ends that: it prints the number of each
mutant before it, and in the end how many ran.

    python -m tests.runtime.tflite.mutating FILE SEED FIRST COUNT
"""

import resource
import struct
import sys
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.litert.region_kernels import LiteRtRegions
from asyncnn.engine import Program
from asyncnn.engine.plan_execution import run_straight
from asyncnn.extensions import Extensions
from asyncnn.hal.errors import AsyncnnError
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import completed
from asyncnn.tflite.contents import reading_contents
from tests.runtime.tflite.importing import region_of_tflite

VALUES = (*range(9), 16, 100, 255, 1000, 65535, 2**31 - 1, -1, -2, -100)
MOST_BYTES = 6 << 30


def fields_of(data: bytes) -> np.ndarray:
    """Return the places of all that is no large constant."""
    whole = np.frombuffer(data, np.uint8)
    first = whole.ctypes.data
    is_field = np.ones(len(data), bool)
    for graph in completed(reading_contents(memoryview(data))).graphs:
        for tensor in graph.tensors:
            if tensor.data is not None and tensor.data.nbytes > 64:
                start = tensor.data.ctypes.data - first
                is_field[start : start + tensor.data.nbytes] = False
    return np.flatnonzero(is_field)


def mutant(data: bytes, places: np.ndarray, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.integers(1, 3)):
        at = int(rng.choice(places))
        if rng.random() < 0.5:
            changed[at] = int(rng.integers(256))
        else:
            at -= at % 4
            if at + 4 <= len(changed):
                struct.pack_into("<i", changed, at, int(rng.choice(VALUES)))
    return bytes(changed)


def main(path: str, seed: int, first: int, count: int) -> None:
    """Have a device look at mutants, as if a client had sent them."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = Path(path).read_bytes()
    sound, places = region_of_tflite(from_buffer(data)), fields_of(data)
    extensions = Extensions([LiteRtRegions(load_engine()).extension()])
    inputs = [np.ones(each.dimensions, each.dtype) for each in sound.inputs]
    have_run = 0
    for number in range(first, first + count):
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        changed = mutant(data, places, np.random.default_rng((seed, number)))
        pools = (from_buffer(changed),)
        try:
            program = Program(replace(sound.model, pools=pools), extensions=extensions)
            assert program.declared_shapes is not None
            plan = program.plan(program.declared_shapes)
            for value in (0, 1, 100):
                given = [np.full_like(each, value) for each in inputs]
                run_straight(program, plan, given, [None] * len(sound.outputs))
        except AsyncnnError:
            continue
        have_run += 1
    sys.stdout.write(f"ran {have_run}\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
