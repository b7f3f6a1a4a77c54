"""The page about bursts, as a reader tries it out."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncnn.demo.digits import model_path

PAGE = Path(__file__).parents[2] / "docs" / "bursts.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
)
def test_its_code_runs(code: str, tmp_path: Path) -> None:
    shutil.copy(model_path("float"), tmp_path / "model.tflite")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "probabilities" in ran.stdout
