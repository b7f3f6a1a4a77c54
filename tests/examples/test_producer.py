"""examples/producer: a camera in C, and one in Python, that a model watches."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.processes import executed, python

FOLDER = Path(__file__).parents[2] / "examples" / "producer"


def watch(language: str, **environment: str) -> subprocess.CompletedProcess[str]:
    before = {name for name in os.listdir("/dev/shm") if "pictures" in name}
    done = python(
        "watch.py", language, cwd=FOLDER, env={**os.environ, **environment}, timeout=60
    )
    assert not {name for name in os.listdir("/dev/shm") if "pictures" in name} - before
    return done


@pytest.mark.parametrize("language", ["c", "python"])
def test_pictures_of_a_camera_are_classified(language: str) -> None:
    if language == "c" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    done = watch(language)
    assert done.returncode == 0, done.stderr
    share, _, rest = done.stdout.partition("% of ")
    assert float(share) > 97
    assert rest == "360 right\n"


def test_a_language_that_there_is_none_of_is_a_line() -> None:
    assert watch("rust").stderr == "usage: python watch.py c|python\n"


def test_it_says_what_is_missing_without_a_compiler(tmp_path: Path) -> None:
    done = watch("c", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "no C compiler (cc): try `python watch.py python`" in done.stderr


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_camera_compiles_without_a_warning_and_says_what_is_wrong(
    tmp_path: Path,
) -> None:
    program = tmp_path / "camera"
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2"]
    subprocess.run(
        ["cc", *flags, "-o", str(program), "camera.c", "-lrt", "-pthread"],
        cwd=FOLDER,
        check=True,
    )
    done = executed(program, "/asyncnn-nobody", "camera.c", cwd=FOLDER)
    assert done.returncode == 1
    assert done.stderr == "camera: /asyncnn-nobody: No such file or directory\n"
