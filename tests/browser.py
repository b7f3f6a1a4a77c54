"""A headless browser in which tests open pages that the project draws or serves."""

import os
import shutil
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


browsing = pytest.mark.asyncio(loop_scope="module")
"""Tests with a `page` share the loop of their module: a browser starts for seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> "AsyncIterator[Browser]":
    """Run the machine's own Chromium, without a network beyond this machine."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        if os.environ.get("ASYNCNN_REQUIRE_BROWSER"):
            pytest.fail("no Chromium is installed")
        pytest.skip("no Chromium is installed")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        try:
            yield browser
        finally:
            await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: "Browser") -> "AsyncIterator[Page]":
    """Yield an empty page; the test fails if a script of it has raised an error.

    Such tests are `browsing`. Nothing is kept from one page to the next.
    """
    opened = await browser.new_page()
    errors = errors_of(opened)
    yield opened
    await opened.close()
    assert errors == []


def errors_of(page: "Page") -> list[str]:
    """Return a list to which all errors of a page are added from now on."""
    errors: list[str] = []

    def add(message: "ConsoleMessage") -> None:
        if message.type == "error":
            errors.append(message.text)

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", add)
    return errors
