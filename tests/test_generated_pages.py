"""Pages of which a part is made by a program."""

from pathlib import Path

import pytest

from docs.generated import GeneratedPart, table

WRITTEN = "# Words\n\n<!-- begin -->\n\nold\n<!-- end -->\nafter\n"


@pytest.fixture
def part(tmp_path: Path) -> GeneratedPart:
    page = tmp_path / "words.md"
    page.write_text(WRITTEN)
    return GeneratedPart(page, "<!-- begin -->", "<!-- end -->")


def test_a_page_that_differs_is_reported_and_written(
    part: GeneratedPart, capsys: pytest.CaptureFixture[str]
) -> None:
    assert part.main(lambda: "new", ["--check"]) == 1
    assert "words.md is out of date; run `make docs`" in capsys.readouterr().err
    assert part.page.read_text() == WRITTEN
    assert part.main(lambda: "new", []) == 0
    assert part.page.read_text() == WRITTEN.replace("old", "new")
    assert part.main(lambda: "new", ["--check"]) == 0


@pytest.mark.parametrize("text", ["# Words\n", "<!-- begin -->\n", "<!-- end -->\n"])
def test_a_page_without_a_place_is_an_error(part: GeneratedPart, text: str) -> None:
    with pytest.raises(ValueError, match="has no lines"):
        part.replaced(text, "new")


def test_a_table_is_followed_by_an_empty_line() -> None:
    assert list(table(("a", "b"), [("1", "2")])) == [
        "| a | b |",
        "| --- | --- |",
        "| 1 | 2 |",
        "",
    ]
