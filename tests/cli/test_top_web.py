"""The page of ``asyncnn top --web``, in a browser and beside it."""

import asyncio
import errno
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.parse
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from playwright.async_api import Page, expect

from asyncnn.cli.top_web import REPORT, DriverWatch, LivePage, LiveReport
from asyncnn.devices import (
    ClientStatistics,
    DeviceStatistics,
    ModelStatistics,
    ReferenceDevice,
)
from asyncnn.hal.types import Priority
from asyncnn.http_server import HttpServer
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server
from asyncnn.service.process import running_driver
from tests.browser import browsing
from tests.cli.conftest import Ran
from tests.cli.test_top import statistics, work
from tests.memory.foreign import leaks, traces
from tests.networks import chain
from tests.processes import python
from tests.waits import until

Command = Callable[..., Ran]
T = TypeVar("T")
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>throw 1</script>"
SOON_MS = 15_000


@asynccontextmanager
async def top(path: Path, *options: str) -> AsyncIterator[tuple[Process, str]]:
    """Run the command; yield it and the address that it prints."""
    command = [sys.executable, "-m", "asyncnn", "top", "--web", "0"]
    process = await asyncio.create_subprocess_exec(
        *command, "--interval", "0.1", "--socket", path, *options, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"watching \S+ at (http://\S+/)\n", line)
        assert found, line
        yield process, found[1]
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def working(path: Path) -> AsyncIterator[None]:
    """Run two models on the driver at ``path`` for the block, again and again."""
    async with connect(path) as device:
        small = await device.prepare(chain(2, 8), priority=Priority.HIGH)
        large = await device.prepare(chain(30, 8), priority=Priority.LOW)

        async def work() -> None:
            while True:
                for model in (small, small, large):
                    await model.run({"x": np.zeros(8, np.float32)})
                await asyncio.sleep(0.005)

        task = asyncio.create_task(work())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def shown(page: Page, url: str) -> AsyncIterator[None]:
    """Show a page for the block, and leave it before it is served no longer."""
    await page.goto(url)
    yield
    await page.goto("about:blank")


async def fetched(url: str, method: str = "GET", **fields: str) -> tuple[int, bytes]:
    def fetch() -> tuple[int, bytes]:
        request = urllib.request.Request(url, headers=fields, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    return await asyncio.to_thread(fetch)


async def report_of(url: str) -> LiveReport:
    status, body = await fetched(url + REPORT)
    assert status == 200
    return msgspec.json.decode(body, type=LiveReport)


async def until_true(
    look: Callable[[], Awaitable[T]], wanted: Callable[[T], bool]
) -> T:
    """Look again and again until what is seen is as wanted; return it."""
    async with asyncio.timeout(SOON_MS / 1000):
        seen = await look()
        while not wanted(seen):
            await asyncio.sleep(0.05)
            seen = await look()
    return seen


async def fulfilled(url: str, wanted: Callable[[LiveReport], bool]) -> LiveReport:
    return await until_true(lambda: report_of(url), wanted)


async def number_in(page: Page, selector: str) -> int:
    return int((await page.inner_text(selector)).replace(",", ""))


FIGURE = re.compile(r"[\d.,]+")
DONE = "#work tbody tr:first-child td:nth-child(8)"


@browsing
async def test_a_browser_shows_what_the_driver_does(page: Page, tmp_path: Path) -> None:
    async with (
        running_driver(tmp_path / "driver") as driver,
        working(driver.path),
        top(driver.path) as (_, url),
        shown(page, url),
    ):
        await expect(page.locator("#state")).to_have_text("live", timeout=SOON_MS)
        await expect(page.locator("#device")).to_contain_text("asyncnn-reference")
        await expect(page.locator("#models tbody tr")).to_have_count(2)
        models = await page.inner_text("#models")
        assert "1: 2 operations" in models
        assert "HIGH" in models
        assert "2: 30 operations" in models
        assert f"pid {os.getpid()}" in await page.inner_text("#clients")
        before = await number_in(page, DONE)
        await until_true(lambda: number_in(page, DONE), lambda done: done > before)
        rate = page.locator(".card").first
        await expect(rate.locator(".now")).to_have_text(FIGURE, timeout=SOON_MS)
        line = page.locator(".card path.first").first
        drawn = partial(line.get_attribute, "d")
        await until_true(drawn, lambda path: (path or "").count("L") > 3)
        assert await rate.locator("svg").get_attribute("aria-label")


@pytest.mark.exhaustive
@browsing
async def test_headings_sort(page: Page, tmp_path: Path) -> None:
    async with (
        running_driver(tmp_path / "driver") as driver,
        working(driver.path),
        top(driver.path) as (_, url),
        shown(page, url),
    ):
        await expect(page.locator("#models tbody tr")).to_have_count(2, timeout=SOON_MS)
        first = page.locator("#models tbody tr:first-child td:first-child")
        # The small one runs twice as often.
        await expect(first).to_have_text("1: 2 operations", timeout=SOON_MS)
        button = page.locator("#models thead button", has_text="done")
        await button.click()
        await expect(first).to_have_text("2: 30 operations")
        heading = page.locator("#models th[aria-sort]")
        await expect(heading).to_have_text("done")
        await expect(heading).to_have_attribute("aria-sort", "ascending")
        await page.locator("#models thead button", has_text="model").press("Enter")
        await expect(first).to_have_text("1: 2 operations")


@browsing
async def test_the_page_outlives_the_driver(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "driver"
    async with running_driver(path) as driver, top(path) as (_, url), shown(page, url):
        await expect(page.locator("#state")).to_have_text("live", timeout=SOON_MS)
        await expect(page.locator("#banner")).to_be_hidden()
        driver.kill()
        await expect(page.locator("#state")).to_have_text("no driver", timeout=SOON_MS)
        await expect(page.locator("#banner")).to_contain_text("No driver for")
        report = await fulfilled(url, lambda report: "no driver at" in report.reason)
        assert report.gone_s is not None
        assert report.device is not None
        async with running_driver(path), working(path):
            state = page.locator("#state")
            await expect(state).to_have_text("driver 2", timeout=SOON_MS)
            await expect(page.locator("#banner")).to_be_hidden()
            await expect(page.locator("#models tbody tr")).to_have_count(2)
            report = await report_of(url)
            assert report.gone_s is None
            assert None in [point.pending for point in report.points]


@pytest.mark.exhaustive
@browsing
async def test_the_page_says_that_top_has_ended(page: Page, tmp_path: Path) -> None:
    """In a page of its own: that nobody answers is an error to the browser."""
    browser = page.context.browser
    assert browser is not None
    other = await browser.new_page()
    async with (
        running_driver(tmp_path / "driver") as driver,
        top(driver.path) as (process, url),
    ):
        await other.goto(url)
        await expect(other.locator("#state")).to_have_text("live", timeout=SOON_MS)
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        state = other.locator("#state")
        await expect(state).to_have_text("no answer", timeout=SOON_MS)
        await expect(other.locator("#banner")).to_contain_text("may have ended")


class HostileDevice(ReferenceDevice):
    async def get_statistics(self) -> DeviceStatistics:
        return DeviceStatistics(
            device=HOSTILE,
            threads=1,
            resident_bytes=1,
            preparations=work(1),
            executions=work(1, misses=1),
            models=(ModelStatistics(1, 1, 3, Priority.LOW, work(1), 1),),
            clients=(ClientStatistics(1, HOSTILE, 1.0, work(1), 1),),
        )


@browsing
async def test_names_are_text_whatever_is_in_them(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "driver"
    async with (
        HostileDevice() as device,
        Server(device, path),
        top(path) as (_, url),
        shown(page, url),
    ):
        first = page.locator("#clients tbody tr td").first
        await expect(first).to_have_text(f"1: {HOSTILE}", timeout=SOON_MS)
        assert HOSTILE in await page.inner_text("#device")
        assert not await page.locator("img").count()
        assert await page.title() != "taken"


@browsing
async def test_markup_that_gets_in_by_mistake_does_nothing(page: Page) -> None:
    watch = DriverWatch(Path("nowhere"), 1.0)
    live = LivePage(watch.report)
    browser = page.context.browser
    assert browser is not None
    other = await browser.new_page()  # a refusal is an error to the browser
    async with HttpServer(live.answer) as server:
        await other.goto(server.url + live.path)
        await other.evaluate("html => { document.body.innerHTML = html }", HOSTILE)
        await other.evaluate(
            "() => document.body.append(Object.assign("
            "document.createElement('script'), {text: 'document.title = 1'}))"
        )
        assert await other.title() == "asyncnn top"
        await other.close()


async def test_nobody_without_the_secret_is_told_anything(tmp_path: Path) -> None:
    async with (
        running_driver(tmp_path / "driver") as driver,
        top(driver.path) as (_, url),
        top(driver.path) as (_, other),
    ):
        root, secret, _ = url.rsplit("/", 2)
        assert len(secret) > 20
        assert secret not in other
        for path in ("/", f"/{REPORT}", f"/{secret[:-1]}/{REPORT}", "//", "/%00/"):
            status, body = await fetched(root + path)
            assert status == 404
            assert b"executions" not in body
        assert (await fetched(f"{url}../top.py"))[0] == 404
        assert (await fetched(f"{url}index.html"))[0] == 404
        assert (await fetched(url))[0] == 200


async def test_nobody_is_kept_from_it_by_those_who_only_connect(tmp_path: Path) -> None:
    async with (
        running_driver(tmp_path / "driver") as driver,
        top(driver.path) as (_, url),
    ):
        address = urllib.parse.urlsplit(url)
        with ExitStack() as idle:
            for _ in range(100):
                peer = socket.create_connection((address.hostname, address.port), 60)
                idle.enter_context(peer).sendall(b"GET / HTTP/1.1\r\n")
                await report_of(url)


async def test_foreign_names_and_methods_are_refused(tmp_path: Path) -> None:
    async with (
        running_driver(tmp_path / "driver") as driver,
        top(driver.path, "--host", "localhost") as (_, url),
    ):
        assert (await fetched(url + REPORT, Host="evil.example"))[0] == 421
        assert (await fetched(url + REPORT, Host="localhost:9"))[0] == 200
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert (await fetched(url + REPORT, method))[0] == 405


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)],
)
async def test_a_signal_ends_it_with_the_driver_there_or_gone(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with (
        running_driver(tmp_path / "driver") as driver,
        top(driver.path) as (here, _),
        top(driver.path) as (left, url),
    ):
        _, idle = await asyncio.open_connection("127.0.0.1", port_of(url))
        here.send_signal(number)
        assert await here.wait() == 0
        driver.kill()
        await fulfilled(url, lambda report: report.gone_s is not None)
        left.send_signal(number)
        assert await left.wait() == 0
        idle.close()


def port_of(url: str) -> int:
    return int(url.split("/")[2].rpartition(":")[2])


class TestBadInput:
    def test_no_driver(self, asyncnn_command: Command, tmp_path: Path) -> None:
        ran = asyncnn_command("top", "--web", 0, "--socket", tmp_path / "nothing")
        assert ran.status == 2
        assert "no driver at" in ran.err

    @pytest.mark.exhaustive
    async def test_a_port_that_is_taken(
        self, asyncnn_command: Command, tmp_path: Path
    ) -> None:
        async with (
            running_driver(tmp_path / "driver") as driver,
            top(driver.path) as (_, url),
        ):
            arguments = ("top", "--web", port_of(url), "--socket", driver.path)
            ran = await asyncio.to_thread(asyncnn_command_in_a_process, *arguments)
            assert ran.status == 2
            assert "in use" in ran.err
            assert ran.err.count("\n") == 1


def asyncnn_command_in_a_process(*arguments: object) -> Ran:
    ran = python("-m", "asyncnn", *arguments, timeout=30)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


class TestWatch:
    """What is told, looked at from within this process."""

    async def ended(self, running: "asyncio.Task[None]") -> None:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def test_nothing_is_left_however_the_driver_ends(
        self, tmp_path: Path
    ) -> None:
        before = traces()
        path = tmp_path / "driver"
        watch = DriverWatch(path, 0.01)
        page = LivePage(watch.report)
        async with HttpServer(page.answer) as server:
            running = asyncio.create_task(watch.run())
            url = server.url + page.path
            for looks in (1, 2):
                async with ReferenceDevice() as device, Server(device, path):
                    await until(lambda: watch.report().gone_s is None)
                    assert (await report_of(url)).drivers == looks
                await until(lambda: watch.report().gone_s is not None)
            await self.ended(running)
        await until(lambda: not leaks(before))
        assert len(asyncio.all_tasks()) == 1

    async def test_without_a_descriptor_it_goes_on_until_there_is_one(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "driver"
        async with ReferenceDevice() as device, Server(device, path):
            watch = DriverWatch(path, 0.01)
            error = OSError(errno.EMFILE, "Too many open files")
            with patch("asyncnn.cli.top_web.connected", side_effect=error):
                running = asyncio.create_task(watch.run())
                await until(lambda: "Too many open files" in watch.report().reason)
            await until(lambda: watch.report().gone_s is None)
            await self.ended(running)

    async def test_a_driver_that_does_not_answer_is_gone_until_it_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("asyncnn.cli.top_changes.ANSWER_TIMEOUT_S", 0.3)
        async with running_driver(tmp_path / "driver") as driver:
            watch = DriverWatch(driver.path, 0.01)
            running = asyncio.create_task(watch.run())
            await until(lambda: watch.report().gone_s is None)
            os.kill(driver.pid, signal.SIGSTOP)
            await until(lambda: "does not answer" in watch.report().reason)
            os.kill(driver.pid, signal.SIGCONT)
            await until(lambda: watch.report().gone_s is None)
            await self.ended(running)

    async def test_only_the_busiest_are_told_of_and_the_others_counted(
        self, tmp_path: Path
    ) -> None:
        class BusyDevice(ReferenceDevice):
            async def get_statistics(self) -> DeviceStatistics:
                return statistics(work(1), models=150, clients=120)

        async with BusyDevice() as device, Server(device, tmp_path / "driver"):
            watch = DriverWatch(tmp_path / "driver", 0.01)
            running = asyncio.create_task(watch.run())
            await until(lambda: watch.report().gone_s is None)
            await self.ended(running)
        told = watch.report().device
        assert told is not None
        assert (len(told.models), told.models_left) == (100, 50)
        assert (len(told.clients), told.clients_left) == (100, 20)
        assert told.models[0].number == 150
