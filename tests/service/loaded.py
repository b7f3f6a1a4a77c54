"""An extension by which a driver process tells what it has loaded, when it ends."""

import atexit
import os
import sys
from pathlib import Path

from asyncnn.extensions import Extension

LOADED = Extension("com.example.loaded")
PLACE = f"{__name__}:LOADED"
VARIABLE = "ASYNCNN_TEST_LOADED"
"""Environment variable with the path of the file to write."""


def _write(path: str) -> None:
    Path(path).write_text("\n".join(sys.modules))


if VARIABLE in os.environ:
    atexit.register(_write, os.environ[VARIABLE])
