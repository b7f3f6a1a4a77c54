"""Pages in a browser: what a click, a word typed, a key and a pointer do."""

from itertools import product
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from asyncnn.tools.pages.drawing import draw
from asyncnn.tools.pages.scales import DASH
from tests.browser import browsing
from tests.tools.pages.samples import HOSTILE, hostile, whole

pytestmark = browsing


@pytest_asyncio.fixture(loop_scope="module")
async def opened(page: Page, tmp_path: Path) -> Page:
    """Return the page of all parts, opened as a file."""
    path = tmp_path / "page.html"
    path.write_text(draw(whole()), encoding="utf-8")
    await page.goto(path.as_uri())
    return page


def section(page: Page, title: str) -> Locator:
    heading = page.get_by_role("heading", name=title, exact=True, level=2)
    return page.locator("section", has=heading)


async def column(table: Locator, place: int) -> list[str]:
    texts = await table.locator(f"tbody tr > :nth-child({place})").all_inner_texts()
    return [text.replace("\u202f", "").strip() for text in texts]


SORTED = {
    "model": (
        ["model 2", "model 9", "model 10", "Model 11"],
        ["Model 11", "model 10", "model 9", "model 2"],
    ),
    "p50": (["9.50", "10.2", "1234", DASH], ["1234", "10.2", "9.50", DASH]),
    "runs": (["3", "7", "100", "12000"], ["12000", "100", "7", "3"]),
    "goal": (
        ["1.2 <= 2 met", "11 <= 2 missed", "-", DASH],
        ["-", "11 <= 2 missed", "1.2 <= 2 met", DASH],
    ),
}
"""Cells of each column of `samples.table`, ascending and descending."""


class TestTables:
    async def test_a_click_on_a_heading_sorts(self, opened: Page) -> None:
        table = section(opened, "Latency").locator("table")
        for place, (heading, (ascending, descending)) in enumerate(SORTED.items(), 1):
            before = await column(table, place)
            button = table.get_by_role("button", name=heading)
            for order, cells in (
                ("ascending", ascending),
                ("descending", descending),
                ("none", before),
            ):
                await button.click()
                assert await column(table, place) == cells
                cell = table.locator(f"thead th:nth-child({place})")
                await expect(cell).to_have_attribute("aria-sort", order)
            assert await table.locator('[aria-sort="none"]').count() == 4

    async def test_keys_sort_too_and_one_column_at_a_time(self, opened: Page) -> None:
        table = section(opened, "Latency").locator("table")
        await table.get_by_role("button", name="model").press("Enter")
        await table.get_by_role("button", name="runs").press("Space")
        assert await column(table, 3) == ["3", "7", "100", "12000"]
        assert await table.locator('[aria-sort="ascending"]').count() == 1

    async def test_words_filter_rows_however_they_are_sorted(
        self, opened: Page
    ) -> None:
        part = section(opened, "Latency")
        box = part.get_by_role("searchbox")
        visible = part.locator("tbody tr:visible > :first-child")
        for words, names in (
            ("Missed MODEL", ["Model 11"]),
            ("12000", ["model 9"]),
            ("nothing", []),
            ("", ["model 10", "model 9", "Model 11", "model 2"]),
            ("<=", ["model 10", "Model 11"]),
        ):
            await box.fill(words)
            assert await visible.all_inner_texts() == names
            said = f"{len(names)} of 4 rows" if words else ""
            await expect(part.locator("output")).to_have_text(said)
        await part.get_by_role("button", name="model").click()
        await part.get_by_role("button", name="model").click()
        assert await visible.all_inner_texts() == ["Model 11", "model 10"]


class TestPlots:
    async def test_the_pointer_reads_a_quantile_of_each_series(
        self, opened: Page
    ) -> None:
        part = section(opened, "Latencies")
        area = part.locator(".area")
        tip = part.locator(".tip")
        await expect(tip).to_be_hidden()
        box = await area.bounding_box()
        assert box is not None
        await area.hover(position={"x": box["width"] / 3, "y": box["height"] / 2})
        await expect(tip).to_be_visible()
        assert await tip.locator("b").inner_text() == "p50"
        read = [await line.inner_text() for line in await tip.locator("div").all()]
        told = await part.locator("tbody tr").all()
        for line, row in zip(read, told, strict=True):
            cells = await row.locator("th, td").all_inner_texts()
            assert [cells[0].strip(), cells[3]] == [
                text.strip() for text in line.split("\n")
            ]
        await opened.mouse.move(0, 0)
        await expect(tip).to_be_hidden()

    async def test_keys_go_from_run_to_run(self, opened: Page) -> None:
        part = section(opened, "Runs")
        area, tip = part.locator(".area"), part.locator(".tip")
        await area.focus()
        shown = []
        for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
            await area.press(key)
            shown.append((await tip.inner_text()).split())
        assert shown == [
            ["Tuesday", "one", DASH, "two", "2", "us"],
            ["Wednesday", "one", "30", "us", "two", "3", "us"],
            ["Wednesday", "one", "30", "us", "two", "3", "us"],
            ["Tuesday", "one", DASH, "two", "2", "us"],
        ]
        await area.press("Escape")
        await expect(tip).to_be_hidden()

    async def test_the_legend_picks_a_curve(self, opened: Page) -> None:
        part = section(opened, "Latencies")
        await part.locator('.legend [data-series="1"]').hover()
        chosen = part.locator(".line.chosen")
        await expect(chosen).to_have_count(1)
        await expect(chosen).to_have_attribute("data-series", "1")


class TestGraphs:
    async def test_a_click_on_a_node_shows_what_is_known_of_it(
        self, opened: Page
    ) -> None:
        part = section(opened, "Operations")
        await part.locator('[data-node="3"]').click()
        panel = part.locator("aside")
        text = (await panel.inner_text()).split("\n")
        assert text[:2] == ["ADD", "20 us"]
        for line in ("kernel 3", "partition 1", "RELU (1x4)", "SOFTMAX (1x4)"):
            assert line in text
        await expect(part.locator(".edge.near")).to_have_count(3)
        await (
            panel.get_by_role("button", name="CONV_2D")
            .or_(panel.get_by_role("button", name="RELU"))
            .click()
        )
        await expect(panel.locator("h3")).to_have_text("RELU")
        await expect(part.locator(".node.chosen")).to_have_attribute("data-node", "2")
        # Arrow keys walk along edges.
        await part.locator('[data-node="0"]').click()
        heading = part.locator("aside h3")
        for key, name in (
            ("ArrowDown", "CONV_2D"),
            ("ArrowDown", "RELU"),
            ("ArrowUp", "CONV_2D"),
        ):
            await opened.keyboard.press(key)
            await expect(heading).to_contain_text(name)

    async def test_a_node_is_found_by_its_words(self, opened: Page) -> None:
        part = section(opened, "Operations")
        box = part.get_by_role("searchbox")
        await box.fill("kernel 4")
        await expect(part.locator(".node.found")).to_have_attribute("data-node", "4")
        await expect(part.locator("output")).to_have_text("1 of 5")
        await box.press("Enter")
        await expect(part.locator("aside h3")).to_have_text("SOFTMAX")

    async def test_buttons_and_the_wheel_zoom(self, opened: Page) -> None:
        part = section(opened, "Operations")
        svg = part.locator(".canvas svg")

        async def width() -> float:
            return float(await svg.get_attribute("width") or 0)

        before = await width()
        await part.get_by_role("button", name="Larger").click()
        larger = await width()
        assert larger == pytest.approx(1.3 * before)
        await part.get_by_role("button", name="Smaller").click()
        assert await width() == pytest.approx(before)
        await part.locator(".canvas").hover()
        await opened.keyboard.down("Control")
        await opened.mouse.wheel(0, -100)
        await opened.keyboard.up("Control")
        await expect(svg).not_to_have_attribute("width", str(before))
        assert await width() > before

    async def test_a_mouse_drags_the_box_without_choosing(self, opened: Page) -> None:
        part = section(opened, "Operations")
        for _ in range(4):
            await part.get_by_role("button", name="Larger").click()
        canvas = part.locator(".canvas")
        top = await canvas.evaluate("box => box.scrollTop = 100")
        box = await canvas.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        await opened.mouse.move(x, y)
        await opened.mouse.down()
        await opened.mouse.move(x, y + 60, steps=5)
        await opened.mouse.up()
        assert await canvas.evaluate("box => box.scrollTop") == top - 60
        await expect(part.locator(".node.chosen")).to_have_count(0)


async def test_every_width_and_colour_scheme_can_be_read(opened: Page) -> None:
    for width, is_dark in product((360, 1200), (False, True)):
        await opened.set_viewport_size({"width": width, "height": 800})
        await opened.emulate_media(color_scheme="dark" if is_dark else "light")
        assert await opened.evaluate("document.documentElement.scrollWidth") <= width
        text, ground = [
            await opened.evaluate(
                "name => { const [r, g, b] = getComputedStyle(document.body)[name]"
                ".match(/[0-9.]+/g).map(Number); return (r + g + b) / 765 }",
                name,
            )
            for name in ("color", "backgroundColor")
        ]
        assert abs(text - ground) > 0.7
        assert (text > ground) == is_dark


async def test_names_that_are_markup_run_nothing(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(draw(hostile()), encoding="utf-8")
    await page.goto(path.as_uri())
    await page.locator("thead button").click()
    await page.get_by_label("Filter rows").fill("script")
    await page.locator("[data-node]").first.click()
    for area in await page.locator(".area").all():
        await area.hover()
    assert await page.locator("img").count() == 0
    assert await page.title() == HOSTILE
    assert HOSTILE in (await page.locator("aside h3").text_content() or "")


async def test_it_is_read_without_scripts(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(draw(whole()), encoding="utf-8")
    browser = page.context.browser
    assert browser is not None
    context = await browser.new_context(java_script_enabled=False)
    still = await context.new_page()
    await still.goto(path.as_uri())
    await expect(still.locator("tbody tr").first).to_contain_text("model 10")
    await expect(still.get_by_role("searchbox")).to_have_count(0)
    assert await still.locator(".node").count() == 5


async def test_a_script_that_is_not_the_page_s_own_is_not_run(
    page: Page, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    other = "<script>document.title = 'run'</script><img src='http://[::1]/x'>"
    path.write_text(draw(whole()).replace("</h1>", f"</h1>{other}"), encoding="utf-8")
    browser = page.context.browser
    assert browser is not None
    changed = await browser.new_page()
    failures: list[str | None] = []
    changed.on("requestfailed", lambda request: failures.append(request.failure))
    await changed.goto(path.as_uri())
    await expect(changed.get_by_label("Filter rows")).to_be_visible()
    assert await changed.title() == "A page"
    assert failures == ["csp"]
