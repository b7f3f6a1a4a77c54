"""What the pages say of limits is what the settings say."""

import re
from pathlib import Path

import msgspec
import pytest

from asyncnn.devices import DeviceSettings
from asyncnn.qos import Client, Policy, User
from asyncnn.runtime.device import DEFAULT_MAX_IN_FLIGHT
from asyncnn.service import ServiceLimits, UserLimits, wire
from asyncnn.service.driver import quotas

DOCS = Path(__file__).parents[2] / "docs"
PAGE, QOS = ((DOCS / name).read_text() for name in ("service.md", "qos.md"))
LIMITS = PAGE.partition("\n## Limits\n")[2].partition("\n## ")[0]
OF_CONNECTIONS, _, REST = LIMITS.partition("\n### Of a user\n")
OF_USERS = REST.partition("\n### ")[0]
TABLES = {ServiceLimits: OF_CONNECTIONS, UserLimits: OF_USERS}
UNITS = {"": 1, "s": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def number(text: str) -> float:
    value, _, unit = text.strip().partition(" ")
    return float(value) * UNITS[unit]


@pytest.mark.parametrize("limits", TABLES)
def test_limits_and_lines_are_the_same(
    limits: type[ServiceLimits | UserLimits],
) -> None:
    lines = re.findall(r"^\| `(max_\w+)` \| ([^|]+) \|", TABLES[limits], re.MULTILINE)
    assert {name: number(value) for name, value in lines} == msgspec.structs.asdict(
        limits()
    )


@pytest.mark.parametrize(
    "line",
    [
        f"`max_in_flight` of a device, {DEFAULT_MAX_IN_FLIGHT} for",
        f"`DeviceSettings.max_pending`, {DeviceSettings().max_pending} for all",
        f"`DeviceSettings.max_waiting`, {DeviceSettings().max_waiting} fenced",
        f"`DeviceSettings.max_bursts`, {DeviceSettings().max_bursts} open",
        f"`ServiceLimits.max_executions` ({ServiceLimits().max_executions})",
        f"`UserLimits.max_executions`\n({UserLimits().max_executions})",
        f"`Policy.slice_ns`, {Policy().slice_ns // 10**6} ms",
        f"`Policy.starvation_limit_ns`, {Policy().starvation_limit_ns // 10**6} ms",
        f"`Policy.starved_slice_ns`, {Policy().starved_slice_ns // 10**6} ms",
        f"`Policy.horizon_ns`, {Policy().horizon_ns // 10**9} s",
        f"`DeviceSettings.idle_after_s` ({DeviceSettings().idle_after_s:g} s)",
        f"`DeviceSettings.stuck_after_s` ({DeviceSettings().stuck_after_s:g} s)",
    ],
)
def test_the_scheduler_has_what_its_page_says(line: str) -> None:
    assert line in QOS


def test_clients_and_users_have_no_bound_of_their_own() -> None:
    assert Client("somebody").max_pending is None
    assert User("somebody").max_pending is None
    assert "`Client.max_pending`, none" in QOS
    assert "`User.max_pending`, none" in QOS


def test_parts_of_a_message_are_those_of_the_protocol() -> None:
    row = next(line for line in LIMITS.splitlines() if "`max_message_bytes`" in line)
    assert f"{wire.MAX_SLICES_BYTES // 2**20} MiB are operands" in row
    assert f"{wire.MAX_WHOLE_BYTES // 2**10} KiB all else" in row


def test_bound_requests_are_those_of_the_protocol() -> None:
    assert f"bound requests, of {wire.MAX_BOUND_BYTES // 2**10} KiB each" in LIMITS


def test_the_reserve_is_as_large_as_it_says() -> None:
    limits = ServiceLimits()
    count = limits.max_fds_per_message + 1 + quotas.FOR_ACCEPTING
    assert f"less {count} that are held back, {quotas.OWN_DESCRIPTORS} for" in LIMITS
    assert f"The {count} descriptors" in LIMITS
