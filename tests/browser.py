"""A headless browser in which tests open pages that the project draws or serves."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@asynccontextmanager
async def running_browser() -> "AsyncIterator[Browser]":
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


@asynccontextmanager
async def page_in(browser: "Browser") -> "AsyncIterator[Page]":
    """Give an empty page; it is an error if a script of it has raised one."""
    opened = await browser.new_page()
    errors = errors_of(opened)
    try:
        yield opened
    finally:
        await opened.close()
    assert errors == []


@pytest.fixture
async def page() -> "AsyncIterator[Page]":
    """Yield an empty page of a browser of its own, which takes seconds to start."""
    async with running_browser() as browser, page_in(browser) as page:
        yield page


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser_of_module() -> "AsyncIterator[Browser]":
    """Yield a browser for a module whose tests share a loop."""
    async with running_browser() as browser:
        yield browser


def errors_of(page: "Page") -> list[str]:
    """Return a list to which all errors of a page are added from now on."""
    errors: list[str] = []

    def add(message: "ConsoleMessage") -> None:
        if message.type == "error":
            errors.append(message.text)

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", add)
    return errors
