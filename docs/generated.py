"""Pages of which a part, between two marks, is made by a program."""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
"""The checkout, whose code and tests the pages are about."""


class GeneratedPart(msgspec.Struct, frozen=True):
    """What stands in ``page`` between the lines ``begin`` and ``end``."""

    page: Path
    begin: str
    end: str

    def replaced(self, text: str, part: str) -> str:
        """Return ``text``, the page's, with ``part`` in its place.

        :raises ValueError: if it has no such place.
        """
        before, begin, rest = text.partition(f"{self.begin}\n")
        _, end, after = rest.partition(f"{self.end}\n")
        if not (begin and end):
            raise ValueError(
                f"{self.page} has no lines {self.begin!r} and {self.end!r}"
            )
        return f"{before}{begin}\n{part}\n{end}{after}"

    def main(
        self, render: Callable[[], str], arguments: Sequence[str] | None = None
    ) -> int:
        """Write the part, or check it; return the exit status."""
        name = self.page.name
        parser = argparse.ArgumentParser(description=f"Write docs/{name}.")
        parser.add_argument("--check", action="store_true", help="only compare")
        options = parser.parse_args(arguments)
        text = self.page.read_text()
        made = self.replaced(text, render())
        if not options.check:
            self.page.write_text(made)
        elif made != text:
            sys.stderr.write(f"docs/{name} is out of date; run `make docs`\n")
            return 1
        return 0


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table and an empty one."""
    yield f"| {' | '.join(header)} |"
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""
