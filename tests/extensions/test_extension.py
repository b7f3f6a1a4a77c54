"""How extensions are declared, and what the HAL is told of them."""

import numpy as np
import pytest

from asyncnn.extensions import Argument, Extension, Extensions
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ExtensionOperandTypeInformation, OperandType
from tests.extensions.vendor import COMPLEX, F32, MAGNITUDE, vendor


@pytest.mark.parametrize("name", ["vendor", "Com.a", "com.a b", "com-x.y", ""])
def test_a_name_is_lowercase_and_has_a_dot(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a name of an extension"):
        Extension(name)


def test_the_hal_is_told_of_operand_types() -> None:
    described = vendor.described()
    assert described.name == "com.example.vendor"
    assert described.operand_types == (
        ExtensionOperandTypeInformation(7, is_tensor=True, byte_size=8),
        ExtensionOperandTypeInformation(8, is_tensor=False, byte_size=8),
        ExtensionOperandTypeInformation(9, is_tensor=True, byte_size=3),
    )


@pytest.mark.parametrize(
    ("name", "number"), [("B", 1), ("A", 2), ("B", -1), ("B", 0x10000)]
)
def test_names_and_numbers_are_unique_and_of_16_bits(name: str, number: int) -> None:
    extension = Extension("com.example.unique")
    extension.tensor_type("A", 1, np.float64)
    with pytest.raises(InvalidArgumentError, match=name):
        extension.scalar_type(name, number, np.float64)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "line\n", "x" * 101])
def test_types_have_names_of_letters_and_digits(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a name of a type"):
        Extension("com.example.words").tensor_type(name, 0, np.float64)


def test_operations_and_operand_types_are_numbered_apart() -> None:
    extension = Extension("com.example.apart")
    type_ = extension.tensor_type("A", 1, np.float64)
    operation = extension.operation(
        "A", 1, inputs=[Argument("x", type_)], outputs=[], shape=lambda _: ()
    )
    assert type_ != operation


@pytest.mark.parametrize(
    "dtype", [object, "M8[s]", ">f4", "U4", "V0", [("re", "f4"), ("im", "f4")]]
)
def test_elements_are_plain_bytes(dtype: object) -> None:
    with pytest.raises(InvalidArgumentError, match="elements"):
        Extension("com.example.dtypes").tensor_type("A", 0, dtype)


def test_type_variables_need_rows() -> None:
    with pytest.raises(InvalidArgumentError, match="no rows"):
        Extension("com.example.rows").operation(
            "A", 0, inputs=[Argument("x", "T")], outputs=[], shape=lambda _: ()
        )


def test_a_type_is_equal_to_nothing_but_itself() -> None:
    again = Extension(vendor.name).tensor_type(COMPLEX.name, 7, np.complex64)
    assert again != COMPLEX
    assert COMPLEX not in list(OperandType)
    assert len({COMPLEX, again, MAGNITUDE, F32}) == 4


def test_a_device_cannot_have_an_extension_twice() -> None:
    with pytest.raises(InvalidArgumentError, match="twice"):
        Extensions([vendor, Extension(vendor.name)])
