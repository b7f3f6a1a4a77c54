"""The package stays small enough to hold in the head: its files, names and circles."""

import ast
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

import asyncnn
from tests.processes import python

ROOT = Path(asyncnn.__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))

MEDIAN_LINES = range(120, 221)

SIBLINGS = (
    frozenset(
        {
            "burst",
            "cli",
            "devices",
            "hal/validate",
            "hal/versions",
            "memory",
            "qos",
            "runtime",
            "runtime/framework",
            "service",
            "service/client",
            "service/driver",
        }
    ),
    frozenset({"cli", "tools"}),
    frozenset({"tools/differing", "tools/profiling"}),
    frozenset(
        {
            "engine",
            "hal/operations",
            "kernels",
            "kernels/detection",
            "kernels/linear",
            "kernels/recurrent",
            "runtime/onnx",
            "runtime/tflite",
            "tools/conformance/random_graphs/families",
        }
    ),
)
"""Folders that show the same thing at another floor: an object of the HAL, a command
and its work, a family of operations.

Only among these may two files have one name.
"""

CLOSED = ("fmq", "metrics", "pipeline", "runtime.tflite")
"""Packages whose modules are private: the package itself has all that others use."""

Graph = Mapping[str, Iterable[str]]


def lines_of(file: Path) -> int:
    return len((ROOT / file).read_text().splitlines())


def name_of(file: Path) -> str:
    return ".".join(("asyncnn", *file.with_suffix("").parts)).removesuffix(".__init__")


MODULES = {name_of(file): ROOT / file for file in FILES}


def imported_by(module: str) -> Iterator[str]:
    """Yield what a module imports of the package, wherever in its text."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def part_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


@pytest.fixture(scope="module")
def imports() -> Graph:
    # The package itself shows what is below it; nothing below imports it back.
    return {name: set(imported_by(name)) for name in MODULES if name != "asyncnn"}


def circles_of(graph: Graph) -> list[list[str]]:
    """Return the strongly connected parts of more than one node (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    circles: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        path.append(node)
        for other in graph.get(node, ()):
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in path:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            start = path.index(node)
            circle, path[start:] = path[start:], []
            if len(circle) > 1:
                circles.append(circle)

    for node in graph:
        if node not in order:
            visit(node)
    return circles


def test_a_circle_would_be_found() -> None:
    graph = {"a": ["b"], "b": ["c", "d"], "c": ["b"], "d": ["a", "e"], "e": []}
    assert [sorted(circle) for circle in circles_of(graph)] == [["a", "b", "c", "d"]]


def test_no_file_imports_itself_by_way_of_others(imports: Graph) -> None:
    assert not circles_of(imports)


def test_no_package_imports_itself_by_way_of_others(imports: Graph) -> None:
    parts: dict[str, set[str]] = defaultdict(set)
    for module, others in imports.items():
        parts[part_of(module)] |= {part_of(other) for other in others}
    assert not circles_of(parts)


@pytest.mark.parametrize("package", [f"asyncnn.{name}" for name in CLOSED])
def test_nothing_reaches_past_a_closed_package(package: str, imports: Graph) -> None:
    inner = f"{package}."
    reaching = {
        module
        for module, others in imports.items()
        if module != package and not module.startswith(inner)
        if any(other.startswith(inner) for other in others)
    }
    assert not reaching
    assert "__all__" in MODULES[package].read_text()


def test_what_applications_load_knows_no_tools(imports: Graph) -> None:
    knowing = {
        module
        for module, others in imports.items()
        if part_of(module) not in ("asyncnn.tools", "asyncnn.cli", "asyncnn.__main__")
        and any(part_of(other) == "asyncnn.tools" for other in others)
    }
    assert not knowing


def test_no_figure_is_more_than_it_may_be() -> None:
    # In a process: the trees of all files would weigh on what tests collect later.
    ran = python("-m", "tests.size", cwd=ROOT.parent)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_files_are_of_a_size_to_be_read_at_once() -> None:
    assert int(statistics.median(map(lines_of, FILES))) in MEDIAN_LINES


def test_two_files_of_one_name_play_the_same_role() -> None:
    folders: dict[str, set[str]] = defaultdict(set)
    for file in FILES:
        if file.name != "__init__.py":
            folders[file.name].add(file.parent.as_posix())
    mistakable = {
        name: sorted(places)
        for name, places in folders.items()
        if len(places) > 1 and not any(places <= siblings for siblings in SIBLINGS)
    }
    assert not mistakable
