"""Writes the figures of the node tests into ``docs/onnx.md``, by running them.

Run it from a checkout: ``python -m docs.onnx_page``; with ``--check`` it writes
nothing and exits with 1 if the figures are out of date. The rest of the page is written
by hand.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import onnx

from docs.generated import ROOT, GeneratedPart, table
from tests.runtime.onnx.node_cases import OUTSIDE, Judged, judge_all, node_tests

PAGE = ROOT / "docs" / "onnx.md"

PART = GeneratedPart(
    PAGE,
    "<!-- the figures of the node tests: make docs -->",
    "<!-- the end of the figures -->",
)


def render(judged: Sequence[Judged]) -> str:
    """Return the figures and the table by operator."""
    states = Counter(one.state for one in judged)
    inside = len(judged) - states["outside"]
    fixed = Counter(one.fixed for one in judged if one.state == "passed")
    lines = [
        f"The package onnx {onnx.__version__} has {len(judged)} node tests. "
        f"{inside} fall inside of",
        f"the HAL's operations and types. Of these **{states['passed']} pass** "
        f"({states['passed'] / inside:.1%}), {states['refused']} are",
        f"refused by name, and {states['wrong']} give wrong results.",
        "",
        f"{fixed[0]} pass with no input fixed, {fixed[1]} with all but the first one "
        f"fixed, as they",
        f"are in models, and {fixed[2]} with all fixed. The other {states['outside']} "
        "tests are not applicable:",
        "",
        *table(("not applicable because", "tests"), _reasons(judged)),
        *table(("operator", "passed", "refused", "not applicable"), _rows(judged)),
    ]
    return "\n".join(lines)


def _reasons(judged: Sequence[Judged]) -> Iterator[Sequence[str]]:
    counts = Counter(one.reason for one in judged if one.state == "outside")
    for reason, count in sorted(counts.items(), key=lambda row: (-row[1], row[0])):
        yield reason, str(count)


def _rows(judged: Sequence[Judged]) -> Iterator[Sequence[str]]:
    by_operator: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        by_operator[one.operator].append(one)
    for operator, ones in sorted(by_operator.items()):
        states = Counter(one.state for one in ones)
        reasons = Counter(one.reason for one in ones if one.state == "refused")
        refused = "; ".join(
            f"{count}: {reason}" for reason, count in sorted(reasons.items())
        )
        left = OUTSIDE.get(operator) or str(states["outside"] or "")
        yield operator, str(states["passed"] or ""), refused, left


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures, or check them; return the exit status."""
    return PART.main(lambda: render(judge_all(node_tests())), arguments)


if __name__ == "__main__":
    sys.exit(main())
