"""Every block of code in the pages runs as it is, see `tests/walk.py`."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from tests import walk
from tests.given_to_pages import GIVEN
from tests.missing_peers import reason_of
from tests.processes import python
from tests.runtime.tflite.files import Op, T, write

ROOT = Path(__file__).parents[1]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
RECIPES = "docs/recipes.md"
PARTS = [part.heading for part in walk.parts_of(PAGES[RECIPES]) if part.level == 2]
WITH_COMMANDS = (
    "README.md",
    "docs/loadgen.md",
    "docs/profiling.md",
    "docs/tutorial.md",
)
"""Pages whose commands are run, too; test_documentation.py checks those of others."""

NEEDING = {
    "docs/onnx.md": "onnx",
    "docs/sessions.md": "onnx",
    "docs/tutorial.md": "ai_edge_litert",
}
"""Pages whose code needs a package that is not always installed."""

ELSEWHERE = {
    "docs/additions.md": "tests/test_contributing.py",
    "docs/model-files.md": "tests/runtime/test_model_files_page.py",
}
"""Pages whose code changes the package or needs many files, and what runs it."""

WALKED = [
    name
    for name, page in PAGES.items()
    if name not in (RECIPES, *ELSEWHERE) and walk.code_of(page)
]
LONG = ("docs/capabilities.md",)  # measures each type of operand


def follow(page: str, folder: Path, *options: str) -> None:
    """Have a process follow a page; skip the test for what has to be left out."""
    ran = python(
        *("-W", "error", ROOT / "tests/walk.py", ROOT / page, *options),
        cwd=folder,
        env={
            **os.environ,
            "ASYNCNN_DEVICE": "",  # what readers have
            "PYTHONPATH": os.pathsep.join(["", str(ROOT)]),
            "XDG_STATE_HOME": str(folder / "state"),
        },
        timeout=100,
    )
    told = RuntimeError(ran.stdout + ran.stderr)
    missing = reason_of(told) if ran.returncode else None
    if missing:
        pytest.skip(missing)
    assert ran.returncode == 0, ran.stderr
    left_out = [
        line.removeprefix(walk.LEFT_OUT)
        for line in ran.stdout.splitlines()
        if line.startswith(walk.LEFT_OUT)
        and not line.removeprefix(walk.LEFT_OUT).startswith(walk.OTHERS_COMMANDS)
    ]
    if left_out:
        pytest.skip("; ".join(left_out))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.exhaustive] if page in LONG else [])
        for page in WALKED
    ],
)
def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    if page in NEEDING:
        pytest.importorskip(NEEDING[page])
    model = asyncnn.bundled_file("digits_float.asyncnn")
    shutil.copy(model, tmp_path / "model.tflite")
    (tmp_path / "given.py").write_text(GIVEN.get(page, ""))
    shell = () if page in WITH_COMMANDS else ("--without-shell",)
    follow(page, tmp_path, "--given", "given.py", *shell)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", PARTS)
def test_a_recipe_can_be_followed(part: str, tmp_path: Path) -> None:
    x, y = T(np.float32, (1, 10)), T(np.float32, (1, 10))
    softmax = Op("SOFTMAX", [x], [y], "SoftmaxOptions", {"Beta": 1.0})
    (tmp_path / "model.tflite").write_bytes(write([softmax], [x], [y]))
    follow(RECIPES, tmp_path, "--part", part)


def test_each_block_of_the_recipes_is_in_a_part() -> None:
    blocks = [len(list(walk.blocks_of(PAGES[RECIPES], part))) for part in PARTS]
    assert min(blocks) >= 1
    assert sum(blocks) == len(list(walk.blocks_of(PAGES[RECIPES])))


def test_pages_that_are_run_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()
