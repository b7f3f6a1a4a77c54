"""The node tests of the `onnx` package, kept: it computes them anew in each process.

That takes ten seconds. They are kept beside what pytest keeps, by the versions that
they are made by, of which this is the program: ``python -m`` of it, and a file.
"""

import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

ROOT = Path(__file__).parents[3]


def load_node_tests() -> list[Any]:
    """Return the tests, after they have been made if they are not there."""
    versions = f"{onnx.__version__}-{np.__version__}-{sys.version_info.minor}"
    kept = ROOT / ".pytest_cache" / f"onnx-node-tests-{versions}"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        own = kept.with_name(f"{kept.name}-{os.getpid()}")
        # Others may come to it at the same time.
        subprocess.run([sys.executable, "-m", __name__, own], cwd=ROOT, check=True)
        own.replace(kept)
    tests: list[Any] = pickle.loads(kept.read_bytes())
    return tests


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    Path(sys.argv[1]).write_bytes(pickle.dumps(load_model_tests(kind="node")))
