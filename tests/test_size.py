"""Counting the package, and bounds that fall but rise only with a reason."""

import ast

import pytest

from tests import size
from tests.size import Bound, bounds, lowered, mistakes

ROW = "files | 390 | 500 | {most} | {reason}\n"


def function(code: str) -> size.Function:
    (node,) = ast.parse(code).body
    assert isinstance(node, size.Function)
    return node


def test_lines_of_functions_are_those_beside_the_docstring() -> None:
    assert size.lines_beside_docstring(function("def f():\n  x = 1\n\n  return x")) == 4
    assert size.lines_beside_docstring(function('def f():\n  """Say\n  it."""')) == 1
    assert size.lines_beside_docstring(function('def f(\n  a):\n  """A."""\n  a')) == 3


@pytest.mark.parametrize(
    ("arguments", "count"),
    [("", 0), ("self", 0), ("cls, a", 1), ("a, /, self, *b, c=1, **d", 3)],
)
def test_arguments_are_what_callers_give(arguments: str, count: int) -> None:
    assert size.arguments_of(function(f"def f({arguments}): ...")) == count


def test_lines_of_code_are_neither_words_nor_empty(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(size, "ROOT", tmp_path)
    path = tmp_path / "module.py"
    path.write_text('"""Say\n\nit."""\n\nx = 1  # why\n# more\n"""What x is."""\n')
    assert size.File(path).code == [(5, "x = 1  # why")]


def code(*lines: str) -> list[tuple[int, str]]:
    return list(enumerate(lines))


def test_places_that_are_equal_are_one_pair_however_long() -> None:
    same = [f"x{i} = f({i})" for i in range(9)]
    assert size.equal_places([code("a", *same), code(*same, "b")]) == 1
    assert size.equal_places([code(*same, "a", *same)]) == 1
    assert size.equal_places([code(*same), code(*same), code(*same)]) == 3
    assert size.equal_places([code(*same[:5], "a"), code(*same[:5], "b")]) == 0


def test_a_bound_may_be_lowered_but_raised_only_with_a_reason() -> None:
    kept = ROW.format(most=500, reason="")
    assert mistakes({"files": 500}, kept) == mistakes({"files": 503}, kept) == []
    (mistake,) = mistakes({"files": 504}, kept)
    assert "504, and 500 is the most" in mistake
    raised = ROW.format(most=510, reason="")
    (mistake,) = mistakes({"files": 505}, raised)
    assert "without a reason" in mistake
    assert mistakes({"files": 505}, ROW.format(most=510, reason="a new part")) == []


def test_what_has_fallen_is_written_and_nothing_rises() -> None:
    raised = ROW.format(most=510, reason="a new part")
    assert bounds(lowered(raised, {"files": 520}))["files"].most == 510
    assert bounds(lowered(raised, {"files": 505}))["files"] == (
        Bound(390, 500, 505, "a new part")
    )
    assert bounds(lowered(raised, {"files": 450}))["files"] == Bound(390, 450, 450, "")


def test_a_figure_of_none_stays_none() -> None:
    assert Bound(0, 0, 0, "").limit == 0


def test_what_is_counted_and_what_is_bounded_are_the_same() -> None:
    (mistake,) = mistakes({}, ROW.format(most=500, reason=""))
    assert mistake.startswith("files: either not counted")
