"""Devices by name, those of packages, and what cannot be opened as one device."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import asyncnn
from asyncnn import Device
from asyncnn.runtime.framework.device_registry import registered_devices
from tests.networks import addition
from tests.runtime.framework.mixed import (
    DEVICES,
    WHEREVER_BETTER,
    inputs,
    mixed,
)

BUILT_IN = asyncnn.device_names()

ENTRIES = """[asyncnn.devices]
works = asyncnn.devices.reference:ReferenceDevice
no-module = asyncnn_has_no_such_module:Device
no-function = math:pi
no-context = math:isnan
reference = math:pi
one,two = math:pi
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "brought-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: brought\nVersion: 1\n"
    )
    (information / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
class TestDevicesOfAPackage:
    async def test_one_is_opened_by_its_name(self) -> None:
        assert registered_devices()["works"].origin == "brought"
        async with asyncnn.open_device("works") as device:
            await device.prepare(addition(4))

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("no-module", "No module named 'asyncnn_has_no_such_module'"),
            ("no-function", "math:pi cannot be called"),
            ("no-context", "must be real number"),
        ],
    )
    async def test_a_broken_one_is_an_error_that_names_package_and_reason(
        self, name: str, words: str
    ) -> None:
        begin = f"^device '{name}' of brought cannot be used: .*{words}"
        with pytest.raises(asyncnn.GeneralFailureError, match=begin):
            async with asyncnn.open_device(name):
                pass

    async def test_broken_ones_are_left_out_of_all_devices(self) -> None:
        async with asyncnn.open_devices() as device:
            assert "works=" in device.version
            assert "no-module" not in device.version

    def test_a_name_that_cannot_be_used_is_logged_with_the_reason(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        names = asyncnn.device_names()
        assert names == (*BUILT_IN, "no-context", "no-function", "no-module", "works")
        assert "'reference' of brought is not used: asyncnn has a device" in caplog.text
        assert "'one,two' of brought is not used: a name has no comma" in caplog.text


@pytest.mark.parametrize(
    ("open_it", "words"),
    [
        (lambda: asyncnn.open_device("gpu"), r"no device 'gpu' \(known: reference, "),
        (lambda: asyncnn.open_device("framework:gpu"), "no device 'gpu'"),
        (lambda: asyncnn.open_devices("gpu"), "no device 'gpu'"),
        (lambda: asyncnn.open_devices(7), "7 is no device"),  # type: ignore[arg-type]
        (lambda: asyncnn.open_devices(partition=7), "partition is 7"),
        (lambda: asyncnn.open_devices(fallback="sometimes"), "known: forbid, partial"),
        (
            lambda: asyncnn.open_devices("sample-all", "sample-all"),
            r"two devices of a framework have the name 'sample-all' \(give each",
        ),
    ],
)
async def test_what_cannot_be_opened_says_why(
    open_it: Callable[[], AbstractAsyncContextManager[Device]],
    words: str,
) -> None:
    with pytest.raises(asyncnn.InvalidArgumentError, match=words):
        async with open_it():
            pass


async def test_a_model_that_no_device_supports_names_what_to_ask() -> None:
    async with asyncnn.open_device("sample-quant") as device:
        with pytest.raises(asyncnn.GeneralFailureError, match=r"asyncnn\.explain says"):
            await device.prepare(addition(4))


async def test_the_route_tells_which_device_has_computed() -> None:
    async with asyncnn.open_devices(*DEVICES, framework=WHEREVER_BETTER) as device:
        outputs = await (await device.prepare(mixed())).run(inputs())
    assert outputs.route is not None
    assert outputs.route.devices == (DEVICES[0], DEVICES[1], DEVICES[0])
    assert "operations on sample-quant" in str(outputs.route)
