"""``asyncnn mlts`` measures, reports, redraws, and tells bad input in one line."""

import json
import webbrowser
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Page

from asyncnn.service.process import driver_process
from asyncnn.tools.mlts.suite_page import page_of
from asyncnn.tools.mlts.suite_records import read_report
from asyncnn.tools.pages.drawing import draw
from tests.browser import browsing
from tests.cli.conftest import Ran, asyncnn_command
from tests.tools.mlts.conftest import report, row, write_golden, write_model

Command = Callable[..., Ran]

__all__ = ("asyncnn_command",)

QUICK = (
    *("--device", "reference", "--transport", "inprocess", "--no-peers"),
    *("--path", "sync,burst", "--runs", "5"),
)


def test_a_run_is_printed_in_80_columns_and_written_in_each_form(
    asyncnn_command: Command, folder: Path, tmp_path: Path
) -> None:
    files = {kind: tmp_path / f"r.{kind}" for kind in ("json", "csv", "html")}
    options = [part for kind in files for part in (f"--{kind}", files[kind])]
    ran = asyncnn_command("mlts", folder, *QUICK, *options)
    assert ran.status == 0
    assert ran.err == ""
    lines = ran.out.splitlines()
    machine = next(k for k, line in enumerate(lines) if "energy" in line)
    assert max(map(len, lines[:machine])) <= 80
    assert lines[0].startswith("absolute: 0 kB of weights, judged by golden")
    for path in ("sync", "burst"):
        assert any(line.split()[:2] == ["reference", path] for line in lines)
    assert sum(line.split()[-1] == "accurate" for line in lines[:machine]) == 2
    assert [each.path for each in read_report(files["json"]).rows] == ["sync", "burst"]
    assert len(files["csv"].read_text().splitlines()) == 4
    assert files["html"].read_text().startswith("<!DOCTYPE html>")


def test_files_are_asked_for_before_anything_is_measured(
    asyncnn_command: Command, folder: Path, tmp_path: Path
) -> None:
    for kind in ("json", "csv", "html"):
        file = tmp_path / "nowhere" / "r"
        ran = asyncnn_command("mlts", folder, *QUICK, f"--{kind}", file)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err == f"asyncnn: {file}: No such file or directory\n"


def test_reports_are_reproduced_from_json(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    source = tmp_path / "r.json"
    report(row(), row("LiteRT", is_peer=True, path="call")).write(source)
    outcomes = []
    for name in ("one", "two"):
        files = [tmp_path / f"{name}.{kind}" for kind in ("csv", "html", "json")]
        options = [part for f in files for part in (f"--{f.suffix[1:]}", f)]
        ran = asyncnn_command("mlts", "--from", source, *options)
        assert ran.status == 0
        outcomes.append([file.read_bytes() for file in files])
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][2] == source.read_bytes()


def test_accuracy_out_of_tolerance_is_a_failure(
    asyncnn_command: Command, folder: Path, tmp_path: Path
) -> None:
    write_golden(write_model(folder, "off"), off_by=0.01)
    ran = asyncnn_command("mlts", folder, *QUICK, "--json", tmp_path / "r.json")
    assert ran.status == 1
    assert "OFF" in ran.out
    assert "reference sync: sample 0, y: 3 of 3 elements" in ran.out
    redrawn = asyncnn_command("mlts", "--from", tmp_path / "r.json")
    assert (redrawn.status, "OFF" in redrawn.out) == (1, True)
    wide = asyncnn_command("mlts", folder, *QUICK, "--atol", "0.1")
    assert wide.status == 0
    unjudged = asyncnn_command("mlts", folder, *QUICK, "--no-accuracy")
    assert unjudged.status == 0


def test_a_labelled_data_set_gives_top_k(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    from asyncnn.runtime.model_file import bundled_file

    digits = np.load(bundled_file("digits_test.npz"))
    images = digits["images"][:40].astype("f4").reshape(-1, 8, 8, 1) / 16
    labels = digits["labels"][:40]
    np.savez(tmp_path / "set.npz", inputs=images, labels=labels)
    model = bundled_file("digits_int8.asyncnn")
    options = (*QUICK, "--dataset", tmp_path / "set.npz")
    ran = asyncnn_command("mlts", model, *options, "--json", tmp_path / "r.json")
    assert ran.status == 0
    figures = json.loads((tmp_path / "r.json").read_text())["rows"][0]["accuracy"]
    assert figures["evaluator"] == "top-k"
    assert figures["figures"]["top_1"] > 0.9
    np.savez(
        tmp_path / "set.npz", inputs=images, labels=9 - labels, expected_top_1=0.95
    )
    ran = asyncnn_command("mlts", model, *options)
    assert ran.status == 1
    assert "95.00% was expected" in ran.out


def test_reference_models_are_measured_without_a_folder(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("ai_edge_litert")
    options = ("--builtin", "--filter", "asr*", *QUICK, "--path", "session")
    ran = asyncnn_command("mlts", *options, "--json", tmp_path / "r.json")
    assert ran.status == 0
    (found,) = read_report(tmp_path / "r.json").rows
    assert found.accuracy is not None
    assert found.accuracy.evaluator == "phone-error-rate"
    assert found.accuracy.samples == 40


def test_a_terminal_is_told_how_long_the_rest_takes(
    asyncnn_command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    told = asyncnn_command("mlts", folder, *QUICK).err
    assert "absolute, prepared; about" in told
    assert "100%  absolute, round 5 of 5; about 0 s left" in told
    assert told.endswith("\r\x1b[2K")


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            ((), "there is nothing to measure"),
            (("{empty}",), "there is no model in"),
            (("{empty}/nowhere",), "there is no folder"),
            (("{folder}", "--filter", "q*"), "no model matches 'q*'"),
            (("{folder}", "--device", "nothing"), "nothing"),
            (("{folder}", "--path", "slow"), "there is no path 'slow'"),
            (("{folder}", "--transport", "air"), "there is no transport 'air'"),
            (("{folder}", "--dataset", "{golden}"), "has no inputs"),
            (("{folder}", "--dataset", "{text}"), "not a readable .npz"),
            (("{unjudged}", "--accuracy"), "has nothing to judge it by"),
            (("--from", "{text}"), "is no report"),
            (("--from", "{empty}/gone.json"), "No such file"),
            (("{folder}", "--from", "{text}"), "--from measures nothing"),
            (("{folder}", "--history", "{text}"), "give --html"),
            (("{folder}", "--html", "x.html", "--history", "{text}"), "is no report"),
            (("{text}",), "text.json"),
        ],
    )
    def test_it_is_one_line(
        self,
        arguments: tuple[str, ...],
        problem: str,
        folder: Path,
        tmp_path: Path,
        asyncnn_command: Command,
    ) -> None:
        places = {"folder": folder, "golden": folder / "absolute.npz"}
        for name in ("empty", "unjudged"):
            places[name] = tmp_path / name
            places[name].mkdir()
        places["text"] = tmp_path / "text.json"
        places["text"].write_text("no report\n")
        write_model(places["unjudged"])
        ran = asyncnn_command("mlts", *(each.format(**places) for each in arguments))
        assert ran.status == 2
        assert ran.out == ""
        assert problem in ran.err
        assert ran.err.count("\n") == 1


@browsing
async def test_the_page_is_sorted_by_a_click_on_a_heading(
    page: Page, tmp_path: Path
) -> None:
    found = report(*(row(f"system {k}") for k in (2, 0, 1)))
    html = tmp_path / "r.html"
    html.write_text(draw(page_of(found, [report(row(), hour=8)])), encoding="utf-8")
    await page.goto(html.as_uri())
    table = page.locator("table").first
    heading = table.locator("th", has_text="system").first

    async def systems() -> list[str]:
        cells = await table.locator("tbody tr td:nth-child(2)").all_inner_texts()
        return [cell.strip() for cell in cells]

    ordered = [f"system {k}" for k in range(3)]
    assert await systems() != ordered
    await heading.click()
    once = await systems()
    await heading.click()
    assert sorted([once, await systems()]) == [ordered, ordered[::-1]]
    assert await page.locator("th", has_text="p99").count()


def test_a_driver_that_runs_is_measured(
    asyncnn_command: Command, folder: Path, tmp_path: Path
) -> None:
    options = ("--no-peers", "--path", "sync", "--runs", "5")
    with driver_process(tmp_path / "d.sock") as driver:
        ran = asyncnn_command(
            *("mlts", folder, *options, "--json", tmp_path / "r.json"),
            *("--socket", driver.path),
        )
    assert ran.status == 0, ran.err
    (found,) = read_report(tmp_path / "r.json").rows
    assert (found.system, found.transport) == (f"remote:{driver.path}", "remote")
    assert found.preparation is not None
    assert found.preparation.resident_kib is not None
    gone = asyncnn_command("mlts", folder, *options, "--socket", driver.path)
    assert gone.status == 2
    assert gone.err.startswith("asyncnn: no driver at")


def test_a_long_name_takes_nothing_from_the_figures(
    asyncnn_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "r.json"
    report(row("remote:/a" + "/folder" * 12)).write(source)
    outputs = []
    for width in ("60", "200"):  # which a pipe has, too
        monkeypatch.setenv("COLUMNS", width)
        outputs.append(asyncnn_command("mlts", "--from", source).out)
    narrow, wide = outputs
    assert all(" 130 us 329 us 402 us" in out for out in outputs), narrow
    assert "/folder" * 12 in wide


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_page_is_shown_in_a_browser(
    asyncnn_command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_browser: bool,
) -> None:
    shown: list[str] = []

    def show(address: str) -> bool:
        shown.append(address)
        return has_browser

    monkeypatch.setattr(webbrowser, "open", show)
    source, page = tmp_path / "r.json", tmp_path / "a page.html"
    report(row()).write(source)
    ran = asyncnn_command("mlts", "--from", source, "--html", page, "--open")
    assert ran.status == 0
    assert shown == [f"file://{tmp_path}/a%20page.html"]
    assert ran.err == ("" if has_browser else f"there is no browser to show {page}\n")
    ran = asyncnn_command("mlts", "--from", source, "--open")
    assert (ran.status, "give --html" in ran.err) == (2, True)
    assert len(shown) == 1
