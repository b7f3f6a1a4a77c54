"""What a page's scripts raise is seen by the test that opened it."""

from playwright.async_api import Page

from tests.browser import browsing, errors_of

pytestmark = browsing


async def test_a_page_runs_its_scripts(page: Page) -> None:
    await page.set_content("<p></p><script>document.title = 6 * 7</script>")
    assert await page.title() == "42"


async def test_errors_of_scripts_are_kept(page: Page) -> None:
    browser = page.context.browser
    assert browser is not None
    other = await browser.new_page()
    errors = errors_of(other)
    await other.set_content(
        "<script>console.error('told'); throw Error('raised')</script>"
    )
    assert errors == ["told", "raised"]
