"""Follows a page as a reader does: ``python tests/walk.py PAGE [--part HEADING]``.

Blocks are taken in the order of the page, in the folder where this is run:

- A block of ``python`` whose first line is a comment with a file name is saved there.
- One that calls ``asyncio.run`` is a program: it runs in a process of its own.
- Any other is typed at the asyncio prompt (``python -m asyncio``), which the page keeps
  from block to block: each statement is entered on its own, and awaited in a task of
  its own, as in a notebook.
- Commands of a block of ``console``, after ``$``, go to the shell one by one. What
  stands below a command has to be its output.
- A block of ``text`` below one of Python has to be what that has printed; ``...``
  stands for anything.
- ``toml`` has to be TOML.

``--part`` takes what stands below one heading only, ``--without-shell`` no commands.
``--given FILE`` types the Python of a file as soon as asyncnn is there and awaits its
``close()`` at the end, if it has one. What needs a package or a file that is not there
is left out, and said to be, as are commands that install; with ``--installing``, those
of ``pip`` are followed, too. Only the standard library is imported, so any interpreter
that has asyncnn, or installs it, can follow.
"""

import argparse
import ast
import asyncio
import codeop
import contextlib
import doctest
import importlib.util
import inspect
import io
import os
import re
import subprocess
import sys
import tomllib
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

TIME_LIMIT_S, INSTALLING_LIMIT_S = 60, 600
LEFT_OUT = "left out: "
INSTALLING = "pip "
OTHERS_COMMANDS = (INSTALLING, "make ")
"""Commands that install, which other tests try."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w-]+\.\w+)\n")
_OUTPUT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A block of code, and the line of the page that it begins in."""

    line: int
    language: str
    text: str


class Part(NamedTuple):
    """What stands below a heading, up to the next one of its level or above."""

    heading: str
    level: int
    start: int
    end: int


def parts_of(page: str) -> list[Part]:
    """Return the parts of a page; comments in its code are no headings."""
    text = _BLOCK.sub(lambda block: " " * len(block[0]), page)
    headings = list(re.finditer(r"^(#+) (.*)$", text, re.MULTILINE))
    parts = []
    for number, found in enumerate(headings):
        level = len(found[1])
        ends = [h.start() for h in headings[number + 1 :] if len(h[1]) <= level]
        parts.append(Part(found[2], level, found.end(), min(ends, default=len(page))))
    return parts


def blocks_of(page: str, heading: str | None = None) -> Iterator[Block]:
    """Yield the blocks of a page, or of what stands below one of its headings."""
    start, end = 0, len(page)
    if heading is not None:
        (part,) = (each for each in parts_of(page) if each.heading == heading)
        start, end = part.start, part.end
    for found in _BLOCK.finditer(page, start, end):
        yield Block(page.count("\n", 0, found.start()) + 1, found[1], found[2])


def code_of(page: str) -> list[str]:
    """Return the text of the blocks of Python in a page."""
    return [block.text for block in blocks_of(page) if block.language == "python"]


def missing_module(code: str) -> str | None:
    """Return a module that the code imports and that is neither installed nor here."""
    for node in ast.walk(ast.parse(code)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            if not Path(f"{top}.py").exists() and not importlib.util.find_spec(top):
                return top
    return None


def inputs_of(code: str) -> Iterator[CodeType]:
    """Yield what the prompt takes as one input each, compiled.

    :raises SyntaxError: if the prompt would not take the code as it is pasted, such as
        a compound statement without an empty line below it.
    """
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    lines: list[str] = []
    for line in [*code.splitlines(), ""]:
        lines.append(line)
        compiled = compiler("\n".join(lines), "<page>")
        if compiled is not None:
            yield compiled
            lines = []
    if lines:
        raise SyntaxError(f"the prompt waits for more: {lines[-1]!r}")


class Reader:
    """Follows blocks; the prompt's variables last as long as it does."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, given: str = "", *, installs: bool
    ) -> None:
        self._loop = loop
        self._given = given
        self._installs = installs
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._printed: str | None = None
        """By the block above, if that was Python."""

    def follow(self, block: Block) -> None:
        """Do what a block says.

        :raises AssertionError: if that fails, or prints something else.
        """
        self._take_given()
        printed, self._printed = self._printed, None
        match block.language:
            case "python":
                self._python(block.text)
            case "console":
                self._console(block.text)
            case "text" if printed is not None:
                _compare(block.text, printed)
            case "toml":
                tomllib.loads(block.text)

    def _take_given(self) -> None:
        if self._given and importlib.util.find_spec("asyncnn"):
            given, self._given = self._given, ""
            self.type(given)

    def end(self) -> None:
        """Close what was given."""
        self._take_given()
        if "close" in self._names:
            self.type("await close()")

    def _python(self, code: str) -> None:
        file = _FILE.match(code)
        module = missing_module(code)
        if module:
            _leave_out(f"{module} is not installed")
        elif file:
            Path(file[1]).write_text(code)
        elif "asyncio.run(" in code:
            self._printed = _succeeding([sys.executable, "-W", "error", "-c", code])
        else:
            self.type(code)

    def type(self, code: str) -> None:
        """Enter code at the prompt of ``python -m asyncio``, whose loop runs."""
        out = io.StringIO()

        async def enter(compiled: CodeType) -> None:
            result = eval(compiled, self._names)
            if inspect.iscoroutine(result):
                await result

        for compiled in inputs_of(code):
            with contextlib.redirect_stdout(out):
                self._loop.run_until_complete(enter(compiled))
        self._printed = out.getvalue()

    def _console(self, text: str) -> None:
        for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, expected = command.partition("\n")
            line = line.partition(" # ")[0].strip()
            read = re.sub(r"--(?:output|save) \S+", "", line)
            files = re.findall(r"[\w-]+\.(?:py|npz)\b", read)
            absent = [each for each in files if not Path(each).exists()]
            if self._installs and line.startswith(INSTALLING):
                _succeeding(["bash", "-c", line], INSTALLING_LIMIT_S)
                importlib.invalidate_caches()
            elif line.startswith(OTHERS_COMMANDS):
                _leave_out(line)
            elif absent:
                _leave_out(f"{line}, as there is no {absent[0]}")
            else:
                printed = _succeeding(["bash", "-c", line])
                if expected.strip():
                    _compare(expected, printed)


def _leave_out(what: str) -> None:
    sys.stdout.write(f"{LEFT_OUT}{what}\n")


def _succeeding(command: list[str], limit_s: float = TIME_LIMIT_S) -> str:
    """Run a command and return what it prints; its programs are this interpreter's."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = subprocess.run(
        command,
        env={**os.environ, "PATH": programs, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def _compare(expected: str, printed: str) -> None:
    checker = doctest.OutputChecker()
    assert checker.check_output(expected, printed, _OUTPUT), (
        f"the page says:\n{expected}\nbut it is:\n{printed}"
    )


def main() -> None:
    """Follow a page; the first block that fails ends it, with its line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--part")
    parser.add_argument("--given", type=Path)
    parser.add_argument("--without-shell", action="store_true")
    parser.add_argument("--installing", action="store_true")
    options = parser.parse_args()
    page = options.page.read_text()
    sys.path.insert(0, "")
    with asyncio.Runner() as runner:
        given = options.given.read_text() if options.given else ""
        reader = Reader(runner.get_loop(), given, installs=options.installing)
        for block in blocks_of(page, options.part):
            if options.without_shell and block.language == "console":
                continue
            try:
                reader.follow(block)
            except BaseException:
                traceback.print_exc()
                sys.stderr.write(f"{options.page}, line {block.line}\n")
                sys.stderr.flush()
                os._exit(1)  # what the page has left open would only add to the words
        reader.end()


if __name__ == "__main__":
    main()
