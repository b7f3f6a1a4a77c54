"""Counts how large the package is, beside what it may be: ``python -m tests.size``.

`BOUNDS` has a figure in each line: what it is to become, the least that it was, and the
most that it may be. ``--lower`` writes there what has fallen. To raise one is by hand,
with the reason beside it.
"""

import ast
import gc
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import asyncnn

ROOT = Path(asyncnn.__file__).parent
BOUNDS = Path(__file__).with_name("size.txt")

SMALL_LINES = 60
LONG_LINES = 60
"""Of a function, beside its docstring."""
MANY_ARGUMENTS = 7
USUAL_FILES_OF_A_NAME = 2
EQUAL_LINES = 6
SLACK = 0.005
"""By which figures may grow without a word, as changes meet that know nothing of each
other; at least one, where the most is not zero."""

OBSCURE = re.compile(r"(?<![A-Za-z])(tell|told)|\b(that|those) of\b", re.IGNORECASE)
"""For notify, report or return, and for the noun itself."""

PARTS = ("tools", "runtime", "devices", "service")
VERSIONS_OF_THE_HAL = "hal/versions/"
"""Has the classes of `hal` once more, by the same names."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class File:
    """A module of the package, as text and as a tree."""

    def __init__(self, path: Path) -> None:
        self.path = path.relative_to(ROOT).as_posix()
        text = path.read_text()
        self.text = text.splitlines()
        self.tree = ast.parse(text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree: to walk it takes longer than what is done with it."""
        return list(ast.walk(self.tree))

    @cached_property
    def code(self) -> list[tuple[int, str]]:
        """Lines, with their numbers, but empty ones, comments and docstrings."""
        words = {
            number
            for node in self.nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
            for number in _lines_of(node)
        }
        lines = enumerate(map(str.strip, self.text), 1)
        return [
            (number, line)
            for number, line in lines
            if line and not line.startswith("#") and number not in words
        ]

    @property
    def statements(self) -> list[tuple[int, str]]:
        """Lines of code, but those of imports: merging these serves no reader."""
        imports = {
            number
            for node in self.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for number in _lines_of(node)
        }
        return [each for each in self.code if each[0] not in imports]

    @property
    def functions(self) -> Iterator[Function]:
        """Yield all, wherever they are."""
        return (each for each in self.nodes if isinstance(each, Function))

    @property
    def classes(self) -> Iterator[str]:
        """Yield the names of those of the module itself."""
        return (each.name for each in self.tree.body if isinstance(each, ast.ClassDef))


def _lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def lines_beside_docstring(function: Function) -> int:
    """Return how many lines a function has, from its ``def`` on."""
    first = function.body[0]
    is_documented = ast.get_docstring(function) is not None
    return len(_lines_of(function)) - is_documented * len(_lines_of(first))


def arguments_of(function: Function) -> int:
    """Return how many a caller may give."""
    given = function.args
    positional = [each.arg for each in (*given.posonlyargs, *given.args)]
    return (
        len(positional)
        - (positional[:1] in (["self"], ["cls"]))
        + len(given.kwonlyargs)
    )


def equal_places(codes: Iterable[list[tuple[int, str]]]) -> int:
    """Return how many pairs of places have some lines of code in common.

    Two places that go on being equal are one pair.
    """
    places: dict[Sequence[str], list[tuple[int, int]]] = defaultdict(list)
    for file, code in enumerate(codes):
        lines = [line for _, line in code]
        has_words = [any(map(str.isalpha, line)) for line in lines]
        for start in range(len(lines) - EQUAL_LINES + 1):
            window = tuple(lines[start : start + EQUAL_LINES])
            if sum(has_words[start : start + EQUAL_LINES]) > EQUAL_LINES // 2:
                places[window].append((file, start))
    pairs = {
        (one, other)
        for equal in places.values()
        for number, one in enumerate(equal)
        for other in equal[number + 1 :]
        if one[0] != other[0] or other[1] - one[1] >= EQUAL_LINES
    }
    return sum(
        ((file, start - 1), (other_file, other_start - 1)) not in pairs
        for (file, start), (other_file, other_start) in pairs
    )


def modules_of_a_driver() -> int:
    """Return how many modules of the package a driver process begins with."""
    code = "import sys, asyncnn.service.start; print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return sum(name.split(".")[0] == "asyncnn" for name in ran.stdout.split())


@cache
def package() -> tuple[File, ...]:
    """Return all files of the package."""
    return tuple(File(path) for path in sorted(ROOT.rglob("*.py")))


def listed() -> Mapping[str, list[str]]:
    """Return what each figure that counts single places counts."""
    files = package()
    names = Counter(file.path.rpartition("/")[2] for file in files)
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        if not file.path.startswith(VERSIONS_OF_THE_HAL):
            for name in file.classes:
                places[name].append(file.path)
    functions = [(file, each) for file in files for each in file.functions]
    return {
        "file names used more than twice": [
            f"{name}: {count}"
            for name, count in names.items()
            if count > USUAL_FILES_OF_A_NAME and name != "__init__.py"
        ],
        "files below 60 lines": [
            f"{file.path}: {len(file.text)}"
            for file in files
            if len(file.text) < SMALL_LINES
        ],
        "functions of more than 60 lines": [
            f"{file.path}: {each.name}: {lines}"
            for file, each in functions
            if (lines := lines_beside_docstring(each)) > LONG_LINES
        ],
        "functions with more than 7 arguments": [
            f"{file.path}: {each.name}: {count}"
            for file, each in functions
            if (count := arguments_of(each)) > MANY_ARGUMENTS
        ],
        "lines with tell, told, that of, those of": [
            f"{file.path}: {line.strip()}"
            for file in files
            for line in file.text
            if OBSCURE.search(line)
        ],
        "class names of several things": [
            f"{name}: {', '.join(where)}"
            for name, where in sorted(places.items())
            if len(where) > 1
        ],
    }


def counted() -> dict[str, int]:
    """Return each figure by its name."""
    files = package()
    lines = {file.path: len(file.text) for file in files}
    return {
        "files": len(files),
        "lines": sum(lines.values()),
        "lines of code": sum(len(file.code) for file in files),
        **{
            f"lines of {part}/": sum(
                count for path, count in lines.items() if path.startswith(f"{part}/")
            )
            for part in PARTS
        },
        **{name: len(places) for name, places in listed().items()},
        "pairs of places of six equal lines": equal_places(
            file.statements for file in files
        ),
        "modules that a driver begins with": modules_of_a_driver(),
    }


class Bound(NamedTuple):
    """What a figure is to become, the least that it was, the most that it may be."""

    goal: int
    least: int
    most: int
    reason: str
    """Why it is more than the least, empty if it is not."""

    @property
    def limit(self) -> int:
        """The most, with the slack."""
        return self.most + math.ceil(self.most * SLACK)


_HEAD = """\
# What `python -m tests.size` counts. `--lower` writes down what has fallen; who raises
# `most` leaves `least` as it is, and writes beside it why.
# figure | goal | least | most | why it is more than the least
"""


def bounds(text: str) -> dict[str, Bound]:
    """Read what `BOUNDS` has."""
    rows = (line.split("|") for line in text.splitlines() if not line.startswith("#"))
    return {
        name.strip(): Bound(int(goal), int(least), int(most), reason.strip())
        for name, goal, least, most, reason in rows
    }


def lowered(text: str, figures: Mapping[str, int]) -> str:
    """Return `BOUNDS` with what has fallen; a reason goes when it is needed no more."""
    lines = []
    for name, bound in bounds(text).items():
        most = min(bound.most, figures[name])
        least = min(bound.least, most)
        reason = bound.reason if most > least else ""
        lines.append(f"{name} | {bound.goal} | {least} | {most} | {reason}".rstrip())
    return _HEAD + "".join(f"{line}\n" for line in lines)


def mistakes(figures: Mapping[str, int], text: str) -> list[str]:
    """Return what is larger than it may be, and what was raised without a reason."""
    kept = bounds(text)
    unknown = figures.keys() ^ kept.keys()
    return [
        *(f"{name}: either not counted, or not in {BOUNDS.name}" for name in unknown),
        *(
            f"{name}: {figures[name]}, and {bound.most} is the most: less is better, "
            f"else raise it in {BOUNDS.name} and say why"
            for name, bound in kept.items()
            if figures.get(name, 0) > bound.limit
        ),
        *(
            f"{name}: raised from {bound.least} to {bound.most} without a reason"
            for name, bound in kept.items()
            if bound.most > bound.least and not bound.reason
        ),
    ]


def main() -> int:
    """Write the figures; return 1 if one is larger than it may be."""
    gc.disable()  # trees of a million nodes stay to the end
    figures, text = counted(), BOUNDS.read_text()
    if "--lower" in sys.argv:
        text = lowered(text, figures)
        BOUNDS.write_text(text)
    lines = []
    if "--list" in sys.argv:
        for name, places in listed().items():
            lines += [name, *(f"    {place}" for place in places)]
    width = max(map(len, figures))
    lines.append(f"{'':{width}}  {'now':>7}  {'most':>7}  {'goal':>7}")
    kept = bounds(text)
    for name, count in figures.items():
        bound = kept[name]
        lines.append(f"{name:{width}}  {count:7}  {bound.most:7}  {bound.goal:7}")
    wrong = mistakes(figures, text)
    sys.stdout.write("\n".join([*lines, *wrong]) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
