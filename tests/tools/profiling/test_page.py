"""A profile as a page, and what a browser makes of it."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from playwright.async_api import Page as BrowserPage

from asyncnn.tools.pages import DrawnGraph, SortableTable, Text
from asyncnn.tools.pages.drawing import draw
from asyncnn.tools.profiling import Profile
from asyncnn.tools.profiling.page import headlines, page_of
from tests.browser import browsing
from tests.tools.profiling.made_up import OPERATIONS, PROFILE


def graph_of(profile: Profile) -> DrawnGraph:
    (graph,) = [p for p in page_of(profile, ()).parts if isinstance(p, DrawnGraph)]
    return graph


def tables_of(profile: Profile) -> dict[str, SortableTable]:
    parts = page_of(profile, profile.operations).parts
    return {part.title: part for part in parts if isinstance(part, SortableTable)}


def test_a_profile_is_the_same_after_json() -> None:
    encoded = msgspec.json.encode(PROFILE)
    again = msgspec.json.decode(encoded, type=Profile)
    assert again == PROFILE
    assert draw(page_of(again, again.operations)) == draw(page_of(PROFILE, OPERATIONS))


def test_the_longest_operation_has_the_strongest_colour() -> None:
    graph = graph_of(PROFILE)
    shares = [node.share for node in graph.nodes]
    assert shares == [1, 1 / 6, 5 / 60, 20 / 60, 45 / 60]
    assert graph.nodes[0].label == "0 CONV_2D\n~60 us"
    assert graph.nodes[3].label == "0 of 0 LESS\n20 us"
    assert graph.nodes[0].details["temporaries"] == "the engine's"
    assert len({node.group for node in graph.nodes}) == 2
    assert [edge[:2] for edge in graph.edges] == [
        *(("0", "1"), ("1", "2"), ("2", "3"), ("2", "4"))
    ]
    assert graph.edges[0][2] == "1x500"


def test_tables_are_of_what_there_is() -> None:
    tables = tables_of(PROFILE)
    assert [*tables] == [
        "Operations",
        "Partitions",
        "Segments of another engine",
        "Besides operations",
    ]
    rows = tables["Partitions"].rows
    assert rows[1][3:5] == (None, None)
    assert rows[1][-1] == "sample-minimal"
    plain = replace(PROFILE, partitions=PROFILE.partitions[:1], segments=())
    assert [*tables_of(plain)] == ["Operations", "Besides operations"]
    some = page_of(PROFILE, OPERATIONS[:2]).parts
    table = next(part for part in some if isinstance(part, SortableTable))
    assert len(table.rows) == 2
    assert "2 of 5" in table.note


@pytest.mark.parametrize(
    ("observing_us", "told"),
    [
        (10.0, "takes 210 us, as stages are longer then; 10 us to time operations are"),
        (0.4, "takes 210 us, as stages are longer then."),
    ],
)
def test_it_says_what_timing_takes_if_that_is_anything(
    observing_us: float, told: str
) -> None:
    text = " ".join(headlines(replace(PROFILE, observing_us=observing_us)))
    assert told in text
    assert " 0 us" not in text


def test_what_was_measured_and_what_was_shared_out_is_said() -> None:
    text = " ".join(headlines(PROFILE))
    assert "hands it to accelerated and reference" in text
    assert "70.0% of an observed run are operations; 99.5% are accounted" in text
    assert "shared out" in text
    assert "1 of the main subgraph's operations" in text
    alone = replace(PROFILE, operations=OPERATIONS[2:3], folded=0)
    assert "shared out" not in " ".join(headlines(alone))
    anew = replace(OPERATIONS[2], kernel="linear.convolution, anew")
    assert "anew" in " ".join(headlines(replace(PROFILE, operations=(anew,))))
    shown = [part for part in page_of(PROFILE, ()).parts if isinstance(part, Text)]
    assert [part.text for part in shown] == headlines(PROFILE)


@browsing
async def test_a_browser_shows_the_graph_and_sorts_the_table(
    page: BrowserPage, tmp_path: Path
) -> None:
    file = tmp_path / "profile.html"
    file.write_text(draw(page_of(PROFILE, OPERATIONS)))
    await page.goto(file.as_uri())
    assert await page.title() == "Profile of loop.tflite on framework"
    table = page.locator("table").first
    first = table.locator("tbody tr").first
    assert "CONV_2D" in await first.inner_text()
    heading = table.locator("th").nth(1)
    await heading.get_by_role("button").click()
    times = await table.locator("tbody tr td:nth-child(2)").all_inner_texts()
    ascending = sorted(map(float, times))
    assert [*map(float, times)] in (ascending, ascending[::-1])
    await page.get_by_text("0 CONV_2D", exact=True).first.click()
    body = await page.locator("body").inner_text()
    assert "36,000 bytes" in body
    assert "TWIST<b>" in body
