"""Words for types of extensions, with and without the extension itself."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.extensions import Argument, Extension, ExtensionNames, Vocabulary, joined
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from tests.extensions.models import magnitude
from tests.extensions.vendor import COMPLEX, F32, NONZERO, vendor
from tests.networks import addition

NAMES = ExtensionNames(vendor.name, {7: "TENSOR_COMPLEX64"}, {1: "MAGNITUDE"})


@pytest.fixture
def loaded(tmp_path: Path) -> NamedModel:
    asyncnn.save(magnitude(), tmp_path / "model")
    return asyncnn.load(tmp_path / "model")


def test_a_model_knows_the_names_of_what_it_uses() -> None:
    assert magnitude().extension_names == (NAMES,)


def test_names_survive_in_a_file(loaded: NamedModel) -> None:
    assert loaded.extension_names == (NAMES,)
    assert loaded.vocabulary.operand_type(0x1_0007) == (
        "com.example.vendor/TENSOR_COMPLEX64"
    )
    assert loaded.vocabulary.operation_type(0x1_0001) == "com.example.vendor/MAGNITUDE"


def test_a_file_of_a_model_without_extensions_mentions_none(tmp_path: Path) -> None:
    asyncnn.save(addition(4), tmp_path / "model")
    assert b"extension_names" not in (tmp_path / "model").read_bytes()


def test_what_has_no_name_has_a_number() -> None:
    words = Vocabulary(magnitude().model, ())
    assert words.operand_type(0x1_0007) == "com.example.vendor/7"
    assert words.operation_type(0x1_0001) == "com.example.vendor/1"
    assert words.extension_of(0x2_0001) is None
    assert "196609" in words.operation_type(0x3_0001)


def test_types_of_the_hal_have_their_own_names() -> None:
    words = magnitude().vocabulary
    assert words.operand_type(F32) == "TENSOR_FLOAT32"
    assert words.operation_type(OperationType.ADD) == "ADD"
    assert words.operand_type(OperandType.FLOAT32) == "FLOAT32"


def test_names_are_learnt_from_extensions() -> None:
    model = replace(magnitude(), extension_names=())
    assert model.knowing([vendor]).extension_names == (NAMES,)
    assert model.knowing([]).extension_names == ()


def test_names_of_extensions_that_are_not_there_are_kept(loaded: NamedModel) -> None:
    other = Extension("com.example.other")
    assert loaded.knowing([other]).extension_names == (NAMES,)


@pytest.mark.parametrize("kind", ["operand", "operation"])
def test_an_extension_that_gives_a_number_to_another_type_is_refused(
    loaded: NamedModel, kind: str
) -> None:
    changed = Extension(vendor.name)
    if kind == "operand":
        changed.tensor_type("TENSOR_COMPLEX128", COMPLEX.number, "c16")
    else:
        x = Argument("x", F32)
        changed.operation("PHASE", 1, inputs=[x], outputs=[x], shape=lambda _: ())
    with pytest.raises(InvalidArgumentError, match="is called both"):
        loaded.knowing([changed])


def test_names_are_joined_by_number() -> None:
    first = ExtensionNames(vendor.name, {7: "TENSOR_COMPLEX64"})
    second = ExtensionNames(vendor.name, {}, {2: NONZERO.name, 1: "MAGNITUDE"})
    other = ExtensionNames("com.example.another", {0: "A"})
    assert joined([first], [second, other]) == (
        other,
        ExtensionNames(
            vendor.name, {7: "TENSOR_COMPLEX64"}, {1: "MAGNITUDE", 2: "NONZERO"}
        ),
    )


@pytest.mark.parametrize("name", ["", "a b", "\x1b[31m", "x" * 101, "line\n"])
def test_a_file_cannot_have_just_any_name(tmp_path: Path, name: str) -> None:
    bad = ExtensionNames(vendor.name, {7: name})
    asyncnn.save(replace(magnitude(), extension_names=(bad,)), tmp_path / "model")
    with pytest.raises(InvalidArgumentError, match="malformed header"):
        load(tmp_path / "model")
