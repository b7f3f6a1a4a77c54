"""docs/security.md names a test for each of its claims, which exists."""

import re

from tests.test_contributing import MENTIONED, MENTIONS, SECURITY

ROWS = [
    line
    for line in re.findall(r"^\| .*", SECURITY, re.MULTILINE)
    if not line.endswith("| Held by |") and not line.startswith("| ---")
]
FEWEST_ROWS = 50


def test_each_row_names_what_holds_it() -> None:
    assert len(ROWS) >= FEWEST_ROWS
    for row in ROWS:
        held_by = row.strip("| ").split(" | ")[-1]
        tests = [
            name.rpartition(".")[2]
            for path, name in re.findall(MENTIONED, held_by)
            if path.startswith("tests/")
        ]
        assert all(name.startswith("test_") for name in tests), row
        assert tests or held_by == "the same test", row


def test_what_it_names_is_looked_for() -> None:
    assert set(re.findall(MENTIONED, SECURITY)) <= set(MENTIONS)
