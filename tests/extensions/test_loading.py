"""Extensions by their names: places in modules, and what is installed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from asyncnn.extensions import (
    CustomOperators,
    Extensions,
    installed_extensions,
    load_extension,
)
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.opening_devices import connect, open_device
from tests.extensions import vendor as declared
from tests.extensions.installing import install
from tests.extensions.models import magnitude
from tests.extensions.vendor import vendor

PLACE = f"{declared.__name__}:vendor"
X = np.array([3 + 4j, 0, -1j], np.complex64)


def test_an_extension_is_found_by_its_place() -> None:
    assert load_extension(PLACE) is vendor


@pytest.mark.parametrize(
    "place", ["", "vendor", "no.such.module:vendor", "{}:nothing", "{}:COMPLEX"]
)
def test_what_is_no_extension_is_refused(place: str) -> None:
    with pytest.raises(InvalidArgumentError):
        load_extension(place.format(declared.__name__))


def test_an_installed_extension_is_found_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert vendor.name not in installed_extensions()
    install(monkeypatch, tmp_path / "one")
    assert vendor.name in installed_extensions()
    assert load_extension(vendor.name) is vendor


def test_what_is_installed_is_told_if_a_name_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path / "one")
    with pytest.raises(InvalidArgumentError, match=rf"mediapipe, {vendor.name}"):
        load_extension("com.example.other")


@pytest.mark.parametrize(
    ("place", "name", "problem"),
    [
        ("no.such.module:vendor", vendor.name, "no.such.module"),
        (f"{declared.__name__}:COMPLEX", vendor.name, "ExtensionOperandType"),
        (PLACE, "com.example.other", "installed as com.example.other"),
    ],
)
def test_what_is_installed_wrongly_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, name: str, problem: str
) -> None:
    install(monkeypatch, tmp_path / "one", place, name)
    with pytest.raises(InvalidArgumentError, match=problem):
        load_extension(name)


def test_a_name_that_is_installed_for_two_extensions_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path / "one")
    install(monkeypatch, tmp_path / "two", f"{declared.__name__}:other")
    with pytest.raises(InvalidArgumentError, match="more than once"):
        load_extension(vendor.name)


@pytest.mark.parametrize("place", [PLACE, vendor.name])
@pytest.mark.parametrize("transport", ["inprocess", "remote"])
async def test_a_device_is_opened_with_extensions_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, transport: str, place: str
) -> None:
    install(monkeypatch, tmp_path / "one")
    open_ = open_device if transport == "inprocess" else connect
    async with open_(extensions=[place]) as device:
        prepared = await device.prepare(magnitude())
        assert (await prepared.run([X]))["y"].tolist() == [5, 0, 1]


async def test_a_device_is_opened_with_extensions_themselves() -> None:
    async with open_device(extensions=[vendor]) as device:
        _, extensions = device.hal.get_supported_extensions()
    assert extensions == Extensions([vendor]).described()
    assert extensions[0] == vendor.described()


async def test_an_extension_that_is_not_installed_opens_no_device() -> None:
    with pytest.raises(InvalidArgumentError, match=r"com\.example\.nowhere"):
        async with open_device(extensions=["com.example.nowhere"]):
            pass


def test_what_is_installed_costs_nothing_until_it_is_asked_for() -> None:
    code = "import asyncnn, sys; assert 'importlib.metadata' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestCustomOperators:
    """Extensions that packages install for custom operators of model files."""

    def install(self, patch: pytest.MonkeyPatch, folder: Path, place: str) -> None:
        information = folder / "operators-1.dist-info"
        information.mkdir(parents=True)
        metadata = "Metadata-Version: 2.1\nName: operators\nVersion: 1\n"
        (information / "METADATA").write_text(metadata)
        entry = f"[asyncnn.custom_operators]\nTwist = {place}\n"
        (information / "entry_points.txt").write_text(entry)
        (folder / "twisting.py").write_text(TWISTING)
        patch.syspath_prepend(folder)

    def test_an_operator_is_found_by_its_name(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert CustomOperators().find("Twist", 1) is None
        self.install(monkeypatch, tmp_path, "twisting:twisting")
        found = CustomOperators().find("Twist", 1)
        assert found is not None
        assert found.operation.name == "TWIST"
        assert CustomOperators(["twisting:twisting"]).find("Twist", 1) == found

    def test_another_version_of_it_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.install(monkeypatch, tmp_path, "twisting:twisting")
        with pytest.raises(InvalidArgumentError, match="version 2 of Twist is not"):
            CustomOperators().find("Twist", 2)

    def test_one_that_cannot_be_imported_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.install(monkeypatch, tmp_path, "twisting:nothing")
        with pytest.raises(InvalidArgumentError, match="no extension at"):
            CustomOperators().find("Twist", 1)


TWISTING = """
from asyncnn.extensions import Argument, Extension
from asyncnn.hal.types import OperandType

F32 = OperandType.TENSOR_FLOAT32
twisting = Extension("com.example.twisting")
TWIST = twisting.operation(
    "TWIST",
    0,
    inputs=[Argument("x", F32)],
    outputs=[Argument("y", F32)],
    shape=lambda operation: (operation.shape(0),),
)
twisting.custom_operator("Twist", TWIST)
"""
