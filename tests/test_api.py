"""The package as its users see it."""

import re
from pathlib import Path

import asyncnn
from tests.processes import python

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_exported_name_is_there_and_sorted() -> None:
    assert list(asyncnn.__all__) == sorted(asyncnn.__all__)
    for name in asyncnn.__all__:
        assert getattr(asyncnn, name) is not None


def test_nothing_public_is_left_out() -> None:
    public = {
        name
        for name, value in vars(asyncnn).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").startswith("asyncnn.")
    }
    assert public <= set(asyncnn.__all__)


def test_targets_of_make_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make (\w+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_an_application_without_logging_sees_no_output() -> None:
    code = (
        "import logging, asyncnn.logs\n"  # as all that logs does, or its package
        "logging.getLogger('asyncnn.x').error('hidden')\n"
    )
    ran = python("-c", code, check=True)
    assert ran.stderr == ""


def test_importing_is_quick_and_starts_nothing() -> None:
    code = (
        "import threading, asyncnn\n"
        "assert threading.active_count() == 1\n"
        "import sys; print(*sorted(sys.modules))\n"
    )
    ran = python("-c", code, check=True)
    loaded = set(ran.stdout.split())
    heavy = {"hypothesis", "sklearn", "scipy", "ai_edge_litert", "rich", "typer"}
    assert not loaded & heavy
