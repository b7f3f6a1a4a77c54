"""The page of examples/service to draw a digit on, in a browser."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from asyncnn.service.process import driver_process
from tests.browser import browsing
from tests.examples.test_service import web_server

pytestmark = browsing

Stroke: TypeAlias = Sequence[tuple[float, float]]
"""Points from 0 to 1 across the field."""

SOON_MS = 15_000
NOTHING = "\N{EN DASH}"


def arc(
    x: float, y: float, radii: tuple[float, float], begin: float, end: float
) -> Stroke:
    """Return a part of an ellipse around a point; angles are degrees clockwise."""
    angles = [math.radians(begin + (end - begin) * n / 24) for n in range(25)]
    return [
        (x + radii[0] * math.cos(angle), y + radii[1] * math.sin(angle))
        for angle in angles
    ]


DIGITS: dict[int, list[Stroke]] = {
    0: [arc(0.5, 0.5, (0.22, 0.35), -90, 270)],
    2: [[*arc(0.5, 0.33, (0.2, 0.18), -170, 30), (0.3, 0.85), (0.72, 0.85)]],
    4: [[(0.45, 0.15), (0.28, 0.6), (0.75, 0.6)], [(0.62, 0.4), (0.58, 0.88)]],
    7: [[(0.3, 0.17), (0.72, 0.17), (0.45, 0.87)], [(0.4, 0.52), (0.68, 0.52)]],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the application is, with a driver behind it."""
    with driver_process() as driver, web_server(driver.path) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="module")
async def field(page: Page, url: str) -> Page:
    await page.goto(url)
    return page


async def draw(page: Page, strokes: Sequence[Stroke], size: float = 1.0) -> None:
    """Draw with the mouse, the whole in a part of the field if ``size`` is below 1."""
    box = await page.locator("#paper").bounding_box()
    assert box is not None
    for stroke in strokes:
        places = [
            (box["x"] + x * size * box["width"], box["y"] + y * size * box["height"])
            for x, y in stroke
        ]
        await page.mouse.move(*places[0])
        await page.mouse.down()
        for place in places[1:]:
            await page.mouse.move(*place, steps=2)
        await page.mouse.up()


async def answered(page: Page, digit: int) -> None:
    answer = page.locator("#answer")
    await expect(answer).to_have_text(str(digit), timeout=SOON_MS)
    most = page.locator("tr.most")
    await expect(most.locator("th")).to_have_text(str(digit))
    share = await most.locator("td").last.inner_text()
    assert 50 < float(share.removesuffix(" %")) <= 100


async def test_a_digit_that_is_drawn_is_read(field: Page) -> None:
    for digit, strokes in DIGITS.items():
        await draw(field, strokes)
        await answered(field, digit)
        await field.click("#clear")
        await expect(field.locator("#answer")).to_have_text(NOTHING)
    assert await field.locator("#probabilities tr").count() == 10


async def test_it_does_not_matter_where_and_how_large(field: Page) -> None:
    await draw(field, DIGITS[2], size=0.4)
    await answered(field, 2)


async def test_a_digit_is_drawn_by_the_keyboard(field: Page) -> None:
    paper = field.get_by_label("Field to draw a digit in")
    await paper.focus()
    pen = field.locator("#pen")
    await expect(pen).to_have_text("Pen up, column 8 and row 4 of 16")
    for keys in ("ArrowLeft " * 3, "Space", "ArrowRight " * 6, "Space"):
        for key in keys.split():
            await field.keyboard.press(key)
    await expect(pen).to_have_text("Pen up, column 11 and row 4 of 16")
    await field.keyboard.press("Space")
    for key in ("ArrowDown ArrowDown ArrowLeft " * 4).split():
        await field.keyboard.press(key)
    await expect(pen).to_have_text("Pen down, column 7 and row 12 of 16")
    await answered(field, 7)
    await field.keyboard.press("Delete")
    await expect(field.locator("#answer")).to_have_text(NOTHING)


async def test_a_finger_draws(field: Page) -> None:
    box = await field.locator("#paper").bounding_box()
    assert box is not None
    session = await field.context.new_cdp_session(field)

    async def touch(kind: str, points: Sequence[tuple[float, float]]) -> None:
        places = [
            {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
            for x, y in points
        ]
        event = {"type": kind, "touchPoints": places}
        await session.send("Input.dispatchTouchEvent", event)

    (stroke,) = DIGITS[0]
    await touch("touchStart", [stroke[0]])
    for point in stroke[1:]:
        await touch("touchMove", [point])
    await touch("touchEnd", [])
    await answered(field, 0)


@pytest.mark.exhaustive
async def test_a_driver_that_is_gone_is_asked_again(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "driver.sock"
    browser = page.context.browser
    assert browser is not None
    other = await browser.new_page()  # an answer of 503 is an error to the browser
    with driver_process(path) as driver, web_server(path) as url:
        await other.goto(url)
        driver.kill()
        await draw(other, DIGITS[4])
        problem = other.locator("#problem")
        await expect(problem).to_contain_text("no driver", timeout=SOON_MS)
        with driver_process(path):
            await answered(other, 4)
            await expect(problem).to_be_hidden()
        await other.close()
