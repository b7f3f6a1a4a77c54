"""Following a page finds what a reader would trip over."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import walk
from tests.processes import executed

SUM = "```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n"
COMPOUND = "```python\nfor x in range(2):\n    print(x)\n{}x\n```\n"


def walked(page: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "page.md").write_text(page)
    command = [sys.executable, str(Path(walk.__file__)), "page.md", *options]
    return executed(*command, cwd=folder, timeout=60)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(f"{SUM}\n```text\n2\n```\n", id="names last from block to block"),
        pytest.param(
            "```python\nimport asyncio\nawait asyncio.sleep(0)\n```\n", id="await"
        ),
        pytest.param(COMPOUND.format("\n"), id="an empty line ends a compound"),
        pytest.param(
            "```python\n# x.py\ny = 2\n```\n```python\nimport x\n```\n", id="file"
        ),
        pytest.param("```console\n$ echo one two\none ...\n```\n", id="command"),
        pytest.param('```toml\na = "b"\n```\n', id="toml"),
        pytest.param("```text\nof no code\n```\n", id="text by itself"),
    ],
)
def test_a_page_that_can_be_followed(page: str, tmp_path: Path) -> None:
    ran = walked(page, tmp_path)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def test_what_installs_is_followed_if_asked_for(tmp_path: Path) -> None:
    page = "```console\n$ pip --nothing-like-it\n```\n"
    left_out = walked(page, tmp_path)
    assert left_out.returncode == 0
    assert left_out.stdout == f"{walk.LEFT_OUT}pip --nothing-like-it\n"
    followed = walked(page, tmp_path, "--installing")
    assert followed.returncode == 1
    assert "no such option" in followed.stderr


@pytest.mark.parametrize(
    ("page", "line"),
    [
        pytest.param(f"{SUM}\n```text\n3\n```\n", 9, id="another output"),
        pytest.param("a\n```python\n1 / 0\n```\n", 2, id="an error"),
        pytest.param(COMPOUND.format(""), 1, id="no empty line below a compound"),
        pytest.param(
            "```python\nimport asyncio\nasyncio.run(1)\n```\n", 1, id="program"
        ),
        pytest.param("```console\n$ false\n```\n", 1, id="a command that fails"),
        pytest.param("```console\n$ echo 1\n2\n```\n", 1, id="another answer"),
        pytest.param("```toml\na\n```\n", 1, id="no TOML"),
    ],
)
def test_a_page_that_cannot_be_followed(page: str, line: int, tmp_path: Path) -> None:
    ran = walked(page, tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.endswith(f"page.md, line {line}\n")


def test_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    page = (
        "```python\n# x.py\nimport not_installed\n```\n"
        "```console\n$ pip install x\n$ python x.py\n```\n"
    )
    ran = walked(page, tmp_path)
    assert ran.returncode == 0
    assert ran.stdout.splitlines() == [
        "left out: not_installed is not installed",
        "left out: pip install x",
        "left out: python x.py, as there is no x.py",
    ]


def test_a_part_and_what_is_given(tmp_path: Path) -> None:
    (tmp_path / "given.py").write_text("x = 2\n")
    page = "```python\n1 / 0\n```\n## A\n```python\n# no heading\nx\n```\n### B\n"
    page += "```console\n$ false\n```\n## C\n```python\n1 / 0\n```\n"
    options = ("--part", "A", "--given", "given.py", "--without-shell")
    assert walked(page, tmp_path, *options).returncode == 0
    (tmp_path / "given.py").write_text("async def close():\n    1 / 0\n\n")
    assert "ZeroDivisionError" in walked("", tmp_path, *options[2:]).stderr
    assert [(part.heading, part.level) for part in walk.parts_of(page)] == [
        ("A", 2),
        ("B", 3),
        ("C", 2),
    ]
