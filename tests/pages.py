"""Code of documents, as a reader tries it out."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from asyncnn.tools.demo import model_path


def code_blocks(text: str) -> list[str]:
    """Return the blocks of Python in a page."""
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def output_of(code: str, folder: Path) -> str:
    """Run code next to a file ``model.tflite``; return what it prints."""
    shutil.copy(model_path("float"), folder / "model.tflite")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
