"""Writes the table of operations into ``docs/accelerated.md``, from the rules.

Run it from a checkout: ``python -m docs.accelerated_page``; with ``--check`` it writes
nothing and exits with 1 if the table is out of date. The rest of the page is written by
hand.
"""

import sys
from collections.abc import Iterator, Sequence

from asyncnn.devices.litert.claims import NOT_CLAIMED, RULES
from docs.generated import ROOT, GeneratedPart, table
from docs.operations_page import SHORT_NAMES

PAGE = ROOT / "docs" / "accelerated.md"

PART = GeneratedPart(
    PAGE, "<!-- the table of operations: make docs -->", "<!-- the end of the table -->"
)


def render() -> str:
    """Return the tables of what is claimed and what is not."""
    lines = [
        *table(("operation", "types", "in TFLite", "not claimed"), _claimed()),
        *table(("left to the kernels", "because"), _left()),
    ]
    return "\n".join(lines)


def _claimed() -> Iterator[Sequence[str]]:
    for type_ in sorted(RULES):
        rule = RULES[type_]
        types = ", ".join(SHORT_NAMES[main] for main in rule.types)
        yield type_.name, types, rule.said, rule.refused


def _left() -> Iterator[Sequence[str]]:
    for type_ in sorted(NOT_CLAIMED):
        yield type_.name, NOT_CLAIMED[type_]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or check it; return the exit status."""
    return PART.main(render, arguments)


if __name__ == "__main__":
    sys.exit(main())
