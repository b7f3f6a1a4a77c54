"""How tests call what a benchmark measures, and on which CPU."""

import inspect
import os
from typing import Any

from asyncnn.tools.bench.rounds import Call

CPU = min(os.sched_getaffinity(0))


async def answer(call: Call) -> Any:
    """Call it, and await the result of one that has to be awaited."""
    result = call()
    return await result if inspect.isawaitable(result) else result
