"""The changelog knows the version, and what users of the one before it change."""

import re
from pathlib import Path

import asyncnn

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
BEFORE = (ROOT / "tests" / "public_api_0_1.txt").read_text()
"""The list of public names as it was in 0.1.0; see test_public_api.py."""

_NAME = re.compile(r"(?:class |enum |async )*([\w.]+)")


def entries(listed: str) -> dict[str, str]:
    """Return what a list says of each name; members are ``Class.member``."""
    said: dict[str, str] = {}
    owner = ""
    for line in filter(None, listed.splitlines()):
        found = _NAME.match(line.strip())
        assert found
        if line.startswith(" "):
            said[f"{owner}.{found[1]}"] = line.strip()
        else:
            owner = found[1].rpartition(".")[2]
            said[owner] = line
    return said


def test_the_newest_heading_is_the_version() -> None:
    headings = re.findall(r"^## (\S+)", CHANGELOG, re.MULTILINE)
    assert headings[0] == asyncnn.__version__
    assert headings == sorted(headings, reverse=True)


def test_no_merge_has_left_its_marks() -> None:
    assert not re.findall(r"^(?:<{7}|={7}|>{7})", CHANGELOG, re.MULTILINE)


def test_each_public_name_that_changed_has_a_note() -> None:
    (notes,) = re.findall(r"^### Upgrading from 0.1.0$(.*?)^##", CHANGELOG, re.M | re.S)
    noted = set(re.findall(r"`([\w.]+)`", notes))
    now = entries((ROOT / "tests" / "public_api.txt").read_text())
    changed = {name for name, said in entries(BEFORE).items() if now.get(name) != said}
    assert changed
    silent = {
        name
        for name in changed
        # A class says what its constructor does.
        if not {name, ".".join(dict.fromkeys(name.split(".")))} & noted
    }
    assert not silent, f"CHANGELOG.md has no note on {sorted(silent)}"
