"""Whether Ray itself starts on a machine, without anything of asyncnn."""

import subprocess
import sys
from functools import cache

import pytest

_START = """
import ray
ray.init(address="local", num_cpus=1, include_dashboard=False)
ray.shutdown()
"""


def require_ray() -> None:
    """Skip a test where a cluster of Ray's own does not come up."""
    problem = _problem()
    if problem:
        pytest.skip(f"Ray does not start here: {problem}")


@cache
def _problem() -> str:
    command = [sys.executable, "-c", _START]
    try:
        ran = subprocess.run(command, capture_output=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        return "it takes longer than 100 s"
    lines = ran.stderr.decode(errors="replace").strip().splitlines()
    return "" if ran.returncode == 0 else (lines or ["it says nothing"])[-1]
