"""Types of extensions as numbers of a model, and back."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.extensions import Extension, Extensions, numbered
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ExtensionNameAndPrefix, HalVersion, Model, Operand
from asyncnn.hal.versions import compliant_with
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.extensions.vendor import COMPLEX, F32, MAGNITUDE, vendor
from tests.networks import addition

EXTENSIONS = Extensions([vendor])


def magnitude() -> NamedModel:
    builder = ModelBuilder()
    x = builder.input("x", COMPLEX, (2,))
    builder.output(builder.operation(MAGNITUDE, [x], Operand(F32, (2,))), "y")
    return builder.build()


def test_a_model_names_the_extensions_that_it_uses() -> None:
    model = magnitude().model
    assert model.extension_name_to_prefix == (ExtensionNameAndPrefix(vendor.name, 1),)
    assert model.main.operands[0].type == 0x1_0007
    assert model.main.operations[0].type == 0x1_0001


def test_a_model_without_extensions_stays_as_it_is() -> None:
    model = addition(4).model
    assert numbered(model) is model
    assert EXTENSIONS.resolved(model) is model


def test_each_extension_gets_a_prefix() -> None:
    other = Extension("com.example.other").tensor_type("BYTES", 0, np.uint8)
    builder = ModelBuilder()
    builder.input("a", COMPLEX, (1,))
    builder.input("b", other, (1,))
    model = builder.build().model
    assert [entry.prefix for entry in model.extension_name_to_prefix] == [1, 2]
    assert [operand.type >> 16 for operand in model.main.operands] == [1, 2]


def with_prefix(prefix: int) -> Model:
    """Return a model of another builder's, whose prefixes are none of ours."""
    model = EXTENSIONS.resolved(magnitude().model)
    names = (
        ExtensionNameAndPrefix("com.example.unused", 1),
        ExtensionNameAndPrefix(vendor.name, prefix),
    )
    return numbered(replace(model, extension_name_to_prefix=names))


@pytest.mark.parametrize("prefix", [2, 0x7FFF, 0xFFFF])
def test_prefixes_are_the_models_own(prefix: int) -> None:
    model = with_prefix(prefix)
    assert model.main.operands[0].type == prefix << 16 | 7
    resolved = EXTENSIONS.resolved(model)
    assert resolved.main.operands[0].type is COMPLEX
    assert resolved.main.operations[0].type is MAGNITUDE
    assert numbered(resolved) == model


def test_a_new_extension_gets_a_prefix_that_is_free() -> None:
    other = ExtensionNameAndPrefix("com.example.other", 0xFFFF)
    model = EXTENSIONS.resolved(magnitude().model)
    names = (other, ExtensionNameAndPrefix("com.example.another", 1))
    model = numbered(replace(model, extension_name_to_prefix=names))
    assert model.extension_name_to_prefix[2] == ExtensionNameAndPrefix(vendor.name, 2)


def test_what_is_not_known_stays_a_number() -> None:
    assert Extensions().resolved(magnitude().model) == magnitude().model
    narrow = Extension(vendor.name)
    assert Extensions([narrow]).resolved(magnitude().model) == magnitude().model


def test_a_model_from_elsewhere_learns_its_dtypes() -> None:
    bare = NamedModel.of(magnitude().model, ["x"], ["y"])
    known = bare.knowing([vendor])
    assert known.inputs[0].dtype == np.complex64
    assert known.model == bare.model
    assert known == magnitude()


def test_a_saved_model_is_the_same_once_its_dtypes_are_known(tmp_path: Path) -> None:
    asyncnn.save(magnitude(), tmp_path / "model")
    loaded = asyncnn.load(tmp_path / "model")
    with pytest.raises(InvalidArgumentError, match="0x10007"):
        _ = loaded.inputs[0].dtype
    assert loaded.knowing([vendor]) == magnitude()


@pytest.mark.parametrize("version", HalVersion)
def test_models_have_extensions_since_hal_1_2(version: HalVersion) -> None:
    assert compliant_with(magnitude().model, version) is (version >= HalVersion.V1_2)
