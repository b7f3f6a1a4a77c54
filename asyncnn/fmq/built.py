"""Which ring queues are made of: the compiled one where it was built.

The environment variable ``ASYNCNN_PURE_RING=1`` takes the one in Python all the same.
Both work on the same memory, so one end may have the one and its peer the other.
"""

import importlib
import os
from typing import TYPE_CHECKING

from asyncnn.fmq.ring import Ring as PythonRing


def _ring() -> type[PythonRing]:
    if os.environ.get("ASYNCNN_PURE_RING") == "1":
        return PythonRing
    try:
        compiled = importlib.import_module("asyncnn.fmq._ring")
    except ImportError:  # there was no compiler
        return PythonRing
    ring: type[PythonRing] = compiled.Ring
    return ring


if TYPE_CHECKING:
    Ring = PythonRing
else:
    Ring = _ring()

IS_COMPILED = Ring is not PythonRing
"""Whether queues use the compiled ring."""
