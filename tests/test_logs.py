import logging
import os
from collections.abc import Iterator

import pytest

import asyncnn
from asyncnn import logs
from tests.networks import addition
from tests.processes import python

TAGS = ["model", "compilation", "execution", "cpuexe", "manager", "driver", "memory"]


@pytest.fixture(autouse=True)
def everything_is_off_afterwards() -> Iterator[None]:
    yield
    logs.set_tags("")


def those_on() -> list[str]:
    return [tag.name for tag in logs.TAGS.values() if tag.is_on]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", []),
        ("1", TAGS),
        ("all", TAGS),
        ("model", ["model"]),
        ("driver model", ["model", "driver"]),
        ("execution,cpuexe:memory", ["execution", "cpuexe", "memory"]),
        (" model ,, ", ["model"]),
        ("model all", TAGS),
    ],
)
def test_a_setting_turns_its_tags_on_and_the_others_off(
    setting: str, expected: list[str]
) -> None:
    logs.set_tags("all")
    logs.set_tags(setting)
    assert those_on() == expected


def test_an_unknown_tag_is_an_error_and_the_others_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs.set_tags("modle,driver")
    assert those_on() == ["driver"]
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "'modle'" in record.message


def test_a_message_is_logged_with_its_fields_only_while_its_tag_is_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs.DRIVER("not heard")
    logs.set_tags("driver")
    logs.DRIVER("prepared", operations=3)
    logs.MEMORY("not heard")
    (record,) = caplog.records
    assert record.message == "prepared operations=3"
    assert record.name == "asyncnn.logs.driver"
    assert vars(record)["tag"] == "driver"
    assert vars(record)["fields"] == {"operations": 3}


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("memory", "memory: mapped size=7\n"),
        ("model", ""),
        ("bogus", "ASYNCNN_VLOG: there is no tag 'bogus'; known: model, compilation"),
    ],
)
def test_the_environment_decides_what_a_process_shows(setting: str, told: str) -> None:
    code = "from asyncnn import logs; logs.MEMORY('mapped', size=7)"
    environment = os.environ | {logs.VARIABLE: setting}
    done = python("-c", code, env=environment, check=True)
    assert told in done.stderr
    assert bool(told) is bool(done.stderr)


async def test_every_tag_has_something_to_say_of_a_run_in_a_driver_process(
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(logs.VARIABLE, "all")
    logs.set_tags("all")
    async with asyncnn.connect() as device:
        prepared = await device.prepare(addition(4))
        x = asyncnn.shared_array(4)
        await prepared.run([x, x])
    told = {vars(record)["tag"] for record in caplog.records if hasattr(record, "tag")}
    shown = capfd.readouterr().err
    silent = [tag for tag in TAGS if tag not in told and f" {tag}: " not in f" {shown}"]
    assert silent == []
