"""Writes the table of operations into ``docs/accelerated.md``, from the rules.

Run it from a checkout: ``python -m docs.accelerated_page``; with ``--check`` it writes
nothing and exits with 1 if the table is out of date. The rest of the page is written by
hand.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from asyncnn.devices.litert.claims import NOT_CLAIMED, RULES
from docs.operations_page import ROOT, SHORT_NAMES, table

PAGE = ROOT / "docs" / "accelerated.md"

BEGIN = "<!-- the table of operations: make docs -->\n"
END = "<!-- the end of the table -->\n"


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


def with_table(page: str) -> str:
    """Return the page with its table made anew.

    :raises ValueError: if the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} has no lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/accelerated.md.")
    parser.add_argument("--check", action="store_true", help="only compare")
    options = parser.parse_args(arguments)
    page = PAGE.read_text()
    made = with_table(page)
    if not options.check:
        PAGE.write_text(made)
    elif made != page:
        sys.stderr.write(f"{PAGE} is out of date; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
