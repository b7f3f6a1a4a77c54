"""What a newcomer meets first: the first screen, ten questions, honest figures."""

import re
from pathlib import Path

import pytest

from tests.walk import blocks_of, parts_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SCREEN_LINES = 40


def section(page: str, anchor: str) -> str:
    """Return what stands below the heading that links call so."""
    (part,) = (
        part
        for part in parts_of(page)
        if re.sub(r"[^\w\- ]", "", part.heading.lower()).replace(" ", "-") == anchor
    )
    return page[part.start : part.end]


ROWS = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in section(README, "ten-questions").splitlines()
    if row.startswith("|")
][2:]
QUESTIONS = [pytest.param(answer, id=question) for question, answer in ROWS]


def test_the_first_screen_installs_and_runs_a_bundled_model() -> None:
    install, program, printed = list(blocks_of(README))[:3]
    assert install.text.startswith("$ pip install asyncnn")
    assert "asyncnn.bundled_file(" in program.text
    lines = [line for line in program.text.splitlines() if line]
    imports = [line for line in lines if line.startswith("import ")]
    assert len(lines) - len(imports) <= 10
    assert printed.language == "text"  # what it prints is compared, see test_page_code
    assert printed.line < SCREEN_LINES


def test_there_are_ten_questions() -> None:
    assert len(QUESTIONS) == 10


@pytest.mark.parametrize("answer", QUESTIONS)
def test_an_answer_is_one_click_away(answer: str) -> None:
    (link,) = re.findall(r"\]\(([^)]*)\)", answer)
    path, _, anchor = link.partition("#")
    page = (ROOT / path).read_text() if path else README
    text = section(page, anchor)
    # What the answer names is what the section shows.
    names = re.findall(r"`([^`]+)`", answer.partition("[")[0])
    words = [re.findall(r"asyncnn [\w-]+|[^ (]+", name)[0] for name in names]
    assert words
    shown = re.findall(r"`[^`]+`|```.*?```", text, re.S)
    for word in words:
        word = word.removeprefix("asyncnn.").removeprefix("prepared.")
        assert any(word in each for each in shown), f"{word} is not in {link}"


def test_words_that_are_introduced_are_in_the_glossary() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    known = set(
        re.findall(r"\w+", " ".join(re.findall(r"^\| ([^|]+) \|", glossary, re.M)))
    )
    tutorial = (ROOT / "docs/tutorial.md").read_text()
    introduced = re.findall(r"(?<!\*)\*(\w+)\*(?!\*)", README + tutorial)
    assert {"device", "driver", "HAL", "burst", "session"} <= set(introduced) <= known


def test_figures_are_those_of_the_page_of_benchmarks() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    measured = "".join(
        section(page, f"bench-{name}") for name in ("accelerated", "qos", "threads")
    )
    rows = re.findall(r"^\|.*\| ([^|]+) \|$", section(README, "beside-a-thread"), re.M)
    figures = [row for row in rows if re.match(r"\d", row)]
    assert len(figures) >= 8
    for figure in figures:
        for number in re.findall(r"\d+(?:\.\d+)?", figure):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d]|\.\d)", measured)
