"""What the pages say can be followed: code, links, commands."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from asyncnn.cli.app import app
from tests.walk import code_of

ROOT = Path(__file__).parents[1]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for folder in (ROOT, ROOT / "docs", *sorted((ROOT / "examples").iterdir()))
    for page in sorted(folder.glob("*.md"))
}


def anchors(page: str) -> set[str]:
    """Return what headings are called in links."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def links() -> Iterator[tuple[str, str, str]]:
    for name, page in PAGES.items():
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^):]*))?\)", page):
            yield name, target, anchor


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command with its options, of blocks of code and of the text."""
    for name, page in PAGES.items():
        parts = page.split("```")
        for block in parts[1::2]:
            for line in re.findall(
                r"^(?:\$ )?(asyncnn \w[^#|\n]*)", block, re.MULTILINE
            ):
                yield name, line
        for text in parts[::2]:
            for line in re.findall(r"`(asyncnn \w[^`]*)`", text):
                yield name, line


@pytest.mark.parametrize("name", PAGES)
def test_code_compiles(name: str) -> None:
    for code in code_of(PAGES[name]):
        compile(code, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(("name", "target", "anchor"), sorted(set(links())))
def test_links_lead_somewhere(name: str, target: str, anchor: str) -> None:
    path = (ROOT / name).parent / target if target else ROOT / name
    assert path.exists()
    assert not anchor or anchor in anchors(path.read_text())


def test_each_word_of_the_glossary_has_one_meaning() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGES["docs/glossary.md"], re.M)
    words = [word for first, _ in rows for word in first.split(", ")]
    words = [word for word in words if word not in ("Word", "---")]
    assert len(words) > 80
    assert sorted(words) == sorted(set(words))


def commands_below(command: Any) -> dict[str, Any]:
    """Return the commands of a group by name, none of another command."""
    if not isinstance(command, TyperGroup):
        return {}
    context = command.make_context("asyncnn", ["..."])
    names = command.list_commands(context)
    return {name: command.get_command(context, name) for name in names}


@pytest.mark.parametrize(("name", "line"), sorted(set(commands())))
def test_commands_and_their_options_exist(name: str, line: str) -> None:
    command = typer.main.get_command(app)
    for word in line.split()[1:]:
        if word.startswith("-"):
            continue
        if not isinstance(command, TyperGroup):
            break
        context = command.make_context("asyncnn", ["..."])
        _, command, _ = command.resolve_command(context, [word])  # fails for unknown
    known = {
        option
        for each in command.params
        for option in (*each.opts, *each.secondary_opts)
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", line)) <= known | {"--help"}


BROAD = re.compile(r"pkill|killall|pgrep -f|kill[^\n]*\$\(p(?:idof|grep)")


def texts() -> Iterator[Path]:
    """Yield what users read: pages, examples, and what the package itself says."""
    for folder in ("docs", "examples", "asyncnn"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".md", ".py", ".html", ".js"}:
                yield path
    yield from ROOT.glob("*.md")


def test_no_text_has_users_end_processes_by_a_name_that_others_share() -> None:
    assert BROAD.search("$ pkill python")
    broad = [str(path) for path in texts() if BROAD.search(path.read_text())]
    assert not broad
