"""Asking for help is quick: what a command needs is imported when it is called."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import asyncnn
from asyncnn.cli.app import app
from tests.processes import python
from tests.test_documentation import commands_below

ROOT = Path(asyncnn.__file__).parent

HEAVY = {"anyio", "asyncio", "numpy", "rich.live", "rich.progress"}
LIGHT_PARTS = {
    "cli",
    "deadlines",
    "hal",
    "input_files",
    "interpreter",
    "logs",
    "output_files",
    "pacing",
    "tracing",
}

HELP = """
import sys, asyncnn
before = set(sys.modules)
from asyncnn.cli import main
sys.argv = ["asyncnn", *{arguments}, "--help"]
try:
    main()
finally:
    print(*(set(sys.modules) - before), file=sys.stderr)
"""


def options_of(*interpreter: str) -> list[str]:
    show = (
        "from typer.main import get_command; from asyncnn.cli.app import app\n"
        "from tests.test_documentation import commands_below\n"
        "for command in commands_below(get_command(app)).values():\n"
        "    print(*[(p.name, p.opts, p.secondary_opts) for p in command.params])"
    )
    ran = python(*interpreter, "-c", show, check=True)
    return ran.stdout.splitlines()


def test_options_are_the_same_without_docstrings() -> None:
    assert options_of("-OO") == options_of() != []


@pytest.mark.parametrize("arguments", [[], ["devices"]], ids=str)
def test_help_imports_nothing_but_the_options_of_commands(arguments: list[str]) -> None:
    """Beside what the package itself imports."""
    ran = python("-c", HELP.format(arguments=arguments), check=True)
    assert "Usage: asyncnn" in ran.stdout
    added = set(ran.stderr.split())
    assert "asyncnn.cli.devices" in added
    assert not added & HEAVY
    parts = {name.split(".")[1] for name in added if name.startswith("asyncnn.")}
    assert parts <= LIGHT_PARTS


VERSION = """
import sys
before = set(sys.modules)
from asyncnn.cli import main
sys.argv = ["asyncnn", "--version"]
main()
print(*(set(sys.modules) - before), file=sys.stderr)
"""


def test_the_version_imports_nothing_but_itself() -> None:
    """What takes longer is neither the command line nor logging, nor typing."""
    ran = python("-c", VERSION, check=True)
    assert ran.stdout == f"{asyncnn.__version__}\n"
    added = set(ran.stderr.split())
    own = {name for name in added if name.startswith("asyncnn")}
    assert own == {"asyncnn", "asyncnn.cli", "asyncnn.lazy"}
    assert not added & {"logging", "msgspec", "rich", "typer", "typing"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def helps(command: Any) -> Iterator[str]:
    """Yield what a command says of itself, and what those below it say."""
    yield command.help or ""
    for below in commands_below(command).values():
        yield from helps(below)


def test_descriptions_of_commands_fit_in_80_columns() -> None:
    lines = [line for text in helps(get_command(app)) for line in text.splitlines()]
    assert len(lines) > 30
    # Help keeps the lines as they are, with a blank on both sides.
    assert [line for line in lines if len(line.replace("\\", "")) > 78] == []


def test_only_commands_and_tools_print_to_terminals() -> None:
    printing = {
        path.relative_to(ROOT).parts[0]
        for path in ROOT.rglob("*.py")
        if {name.split(".")[0] for name in imported(path)} & {"typer", "rich"}
    }
    assert printing == {"cli", "tools"}


def test_an_interrupt_while_commands_are_imported_ends_it_silently() -> None:
    begin = "import sys; from asyncnn.cli import main; sys.meta_path.insert(0, Finder)"
    program = f"""
class Finder:
    @staticmethod
    def find_spec(*args):
        raise KeyboardInterrupt
{begin}; main()
"""
    ran = python("-c", program, "devices")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
