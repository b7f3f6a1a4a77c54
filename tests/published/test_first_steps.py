"""The first page and the tutorial, followed as written where nothing is installed.

Once for each interpreter of the machine, in an empty environment, outside the source
tree and with no compiler: `pip` installs the wheel that the project publishes.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

import asyncnn
from tests import walk
from tests.distributions import ROOT
from tests.given_to_pages import GIVEN
from tests.interpreters import interpreters
from tests.processes import executed

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]

PAGES = ("README.md", "docs/tutorial.md")
INTERPRETERS = [pytest.param(path, id=name) for name, path in interpreters().items()]


@pytest.mark.parametrize("python", INTERPRETERS)
def test_pages_can_be_followed_from_the_first_line_on(
    python: Path, installing: dict[str, str], tmp_path: Path
) -> None:
    subprocess.run([python, "-m", "venv", tmp_path / "empty"], check=True)
    inside = tmp_path / "empty" / "bin" / "python"
    for page in PAGES:
        left_out = follow(page, inside, installing, tmp_path)
        # All else can be done with what the pages say to install.
        assert [line for line in left_out if not line.startswith("make ")] == []


def follow(
    page: str, python: Path, variables: dict[str, str], tmp_path: Path
) -> list[str]:
    """Follow a page; return what was left out."""
    folder = tmp_path / Path(page).stem
    folder.mkdir()
    model = asyncnn.bundled_file("digits_float.asyncnn")
    shutil.copy(model, folder / "model.tflite")
    shutil.copy(walk.__file__, folder)
    shutil.copy(ROOT / page, folder / "page.md")
    (folder / "given.py").write_text(GIVEN.get(page, ""))
    command = [python, "walk.py", "page.md", "--installing", "--given", "given.py"]
    environment = {**variables, "XDG_STATE_HOME": str(folder / "state")}
    ran = executed(*command, cwd=folder, env=environment)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    return [
        line.removeprefix(walk.LEFT_OUT)
        for line in said
        if line.startswith(walk.LEFT_OUT)
    ]
