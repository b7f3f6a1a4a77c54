"""What a newcomer reads first: docstrings of public packages, and their examples."""

import ast
import doctest
import inspect
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_public_api import PACKAGES

WITHOUT_EXAMPLE = {"asyncnn", "asyncnn.callbacks"}
"""That of the first takes a model file of the reader's."""

WITH_EXAMPLE = [name for name in PACKAGES if name not in WITHOUT_EXAMPLE]


@pytest.mark.parametrize("name", WITH_EXAMPLE)
def test_examples_can_be_copied_and_run(name: str) -> None:
    module = import_module(name)
    # Without the names of the module, as in an interpreter that was just started.
    (text,) = doctest.DocTestFinder(recurse=False).find(module, name, globs={})
    assert text.examples
    report: list[str] = []
    results = doctest.DocTestRunner().run(text, out=report.append)
    assert not results.failed, "".join(report)


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_listed_once(name: str) -> None:
    listed = import_module(name).__all__
    assert isinstance(listed, tuple)
    assert sorted(listed) == sorted(set(listed))


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names_are_documented(name: str) -> None:
    module = import_module(name)
    undocumented = [each for each in module.__all__ if not _documented(module, each)]
    assert not undocumented


def _documented(module: ModuleType, name: str) -> bool:
    if name == "__version__":
        return True
    value = getattr(module, name)
    if isinstance(value, type):
        return bool(vars(value).get("__doc__"))  # its own, not that of its base
    if inspect.isroutine(value):
        return bool(value.__doc__)
    return _is_documented_constant(module.__name__, name)


def _is_documented_constant(module: str, name: str) -> bool:
    """Return whether a docstring is right below the assignment, where that may be."""
    tree = _tree(module)
    for statement, below in pairwise(tree.body):
        is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if is_text and name in _assigned(statement):
            return True
    return any(
        _is_documented_constant(str(node.module), name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and any(name == alias.name for alias in node.names)
    )


@cache
def _tree(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None
    return ast.parse(Path(str(spec.origin)).read_text())


def _assigned(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Assign):
        return {each.id for each in statement.targets if isinstance(each, ast.Name)}
    if isinstance(statement, ast.AnnAssign):
        return {ast.unparse(statement.target)}
    return set()
