"""The page that package indexes show leads into the repository, not beside itself."""

import runpy
from collections.abc import Callable

import pytest

from tests.distributions import ROOT

description: Callable[[str, str, str], str] = runpy.run_path(str(ROOT / "setup.py"))[
    "description"
]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("[a](docs/a.md)", "[a](R/blob/v1.2/docs/a.md)"),
        ("[a](a.md#part), [c](C)", "[a](R/blob/v1.2/a.md#part), [c](R/blob/v1.2/C)"),
        ("[`a`](a.md)", "[`a`](R/blob/v1.2/a.md)"),
        ("```python\nx[0](1)\n```", "```python\nx[0](1)\n```"),
        ("![a](docs/a.png)", "![a](R/raw/v1.2/docs/a.png)"),
        ('![a](a.svg "title")', '![a](R/raw/v1.2/a.svg "title")'),
        ('<img alt="a" src="a.svg">', '<img alt="a" src="R/raw/v1.2/a.svg">'),
        ("[a](#part)", "[a](#part)"),
        ("[a](https://a.org)", "[a](https://a.org)"),
        ("[![a](a.svg)](docs/a.md)", "[![a](R/raw/v1.2/a.svg)](R/blob/v1.2/docs/a.md)"),
        ("`x[0](1)` is code", "`x[0](1)` is code"),
    ],
)
def test_links_of_the_readme(written: str, shown: str) -> None:
    assert description(written, "R", "1.2") == shown
