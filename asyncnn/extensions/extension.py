"""How an extension is declared, and how one is found by name.

>>> spectral = Extension("com.example.spectral")
>>> COMPLEX = spectral.tensor_type("TENSOR_COMPLEX64", 0, np.complex64)
>>> MAGNITUDE = spectral.operation(
...     "MAGNITUDE",
...     0,
...     inputs=[Argument("spectrum", COMPLEX)],
...     outputs=[Argument("magnitude", OperandType.TENSOR_FLOAT32)],
...     shape=lambda operation: (operation.shape(0),),
...     prepare=lambda operation: stateless(lambda inputs, outputs: np.abs(...)),
... )
"""

import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from asyncnn.extensions.names import TYPE_NAME
from asyncnn.hal import types as hal
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, WrongTypeError
from asyncnn.hal.operands import AnyExtensionType, ExtensionOperandType
from asyncnn.hal.operations.bound import Array, ShapeRule
from asyncnn.hal.operations.signature import (
    V1_2,
    Argument,
    ArgumentLayout,
    Check,
    OperationSignature,
    TypeRow,
    row,
)
from asyncnn.hal.validate.model import EXTENSION_NAME
from asyncnn.kernels.kernel import Compute, ExtensionOperation, Prepare

Options: TypeAlias = Callable[[bytes], Iterable[float | Array]]
"""What the options of a custom operator are as further inputs of the operation.

A bool, int or float is a scalar, an array a constant tensor.
"""


class CustomOperator(msgspec.Struct, frozen=True):
    """The operation that a custom operator of model files is.

    Its inputs are the operator's, and then what ``options`` makes of the bytes
    of its options.
    """

    operation: ExtensionOperation
    options: Options


_NUMBER_MAX = 0xFFFF
_KINDS = "biufcV"


class Extension:
    """Types that a vendor adds to the HAL, under a name like ``com.example.spectral``.

    Their numbers are what drivers and applications have to agree on; like the name,
    they never change. Raise ``version`` whenever kernels compute something else, or
    pack other arrays: models cached by another version are not loaded.

    :raises InvalidArgumentError: if the name has no dot, or other characters than
        lowercase letters, digits, dots and underscores.
    """

    def __init__(self, name: str, *, version: str = "1") -> None:
        if not EXTENSION_NAME.fullmatch(name):
            raise InvalidArgumentError(f"{name!r} is not a name of an extension")
        self.name = name
        self.version = version
        self.operand_types: dict[int, ExtensionOperandType] = {}
        self.operation_types: dict[int, ExtensionOperation] = {}
        self.custom_operators: dict[tuple[str, int], CustomOperator] = {}

    def tensor_type(
        self, name: str, number: int, dtype: DTypeLike
    ) -> ExtensionOperandType:
        """Declare a type of tensors with elements of ``dtype``.

        :raises InvalidArgumentError: if name or number are taken or malformed, or
            elements of the dtype are not plain bytes.
        """
        return self._operand_type(name, number, dtype, is_tensor=True)

    def scalar_type(
        self, name: str, number: int, dtype: DTypeLike
    ) -> ExtensionOperandType:
        """Declare a type of single values of ``dtype``.

        :raises InvalidArgumentError: as `tensor_type`.
        """
        return self._operand_type(name, number, dtype, is_tensor=False)

    def _operand_type(
        self, name: str, number: int, dtype: DTypeLike, *, is_tensor: bool
    ) -> ExtensionOperandType:
        _check_free(self.operand_types, name, number)
        element = np.dtype(dtype)
        if element.kind not in _KINDS or element.names or not element.isnative:
            raise InvalidArgumentError(
                f"{name}: elements cannot be {element}",
                hint="take a native number, or np.void of as many bytes",
            )
        if not element.itemsize:
            raise InvalidArgumentError(f"{name}: elements have no bytes")
        type_ = ExtensionOperandType(self.name, name, number)
        type_.dtype = element
        type_.is_tensor = is_tensor
        self.operand_types[number] = type_
        return type_

    def operation(
        self,
        name: str,
        number: int,
        *,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument],
        shape: ShapeRule,
        rows: Sequence[TypeRow] = (),
        checks: Sequence[Check] = (),
        prepare: Prepare | None = None,
        compute: Compute | None = None,
    ) -> ExtensionOperation:
        """Declare an operation, in the language of the HAL's own.

        Arguments have a type of the HAL or of any extension, or a type variable that
        each of ``rows`` gives a type. Models that break this are refused. Give
        ``compute`` instead of ``prepare`` if output shapes depend on the data, both if
        they may, and neither where the operation is used but not computed.

        :raises InvalidArgumentError: if name or number are taken or malformed, or there
            are type variables but no rows.
        """
        _check_free(self.operation_types, name, number)
        operation = ExtensionOperation(self.name, name, number)
        operation.signature = OperationSignature(
            operation,
            tuple(rows) or (_only_row(name, (*inputs, *outputs)),),
            (ArgumentLayout(tuple(inputs), tuple(outputs), since=V1_2),),
            shape,
            tuple(checks),
        )
        operation.prepare = prepare
        operation.compute = compute
        self.operation_types[number] = operation
        return operation

    def custom_operator(
        self,
        name: str,
        operation: ExtensionOperation,
        *,
        options: Options = lambda data: (),
        version: int = 1,
    ) -> None:
        """Say which operation a custom operator of model files is, such as TFLite's.

        ``options`` reads the bytes that the file has for it; `FlexOptions` and
        `packed_integers` read the usual kinds. What it raises of `InvalidArgumentError`
        refuses the file.

        :param name: what files call it.
        :param version: version of the operator that is meant.
        :raises InvalidArgumentError: if the operation is not of this extension, or the
            operator is declared twice.
        """
        if self.operation_types.get(operation.number) is not operation:
            raise InvalidArgumentError(f"{operation.name} is not of {self.name}")
        if (name, version) in self.custom_operators:
            raise InvalidArgumentError(f"{name} is declared twice")
        self.custom_operators[name, version] = CustomOperator(operation, options)

    def described(self) -> hal.Extension:
        """Return what the HAL says of an extension that a device has."""
        return hal.Extension(
            self.name,
            tuple(
                [
                    hal.ExtensionOperandTypeInformation(
                        number, type_.is_tensor, type_.dtype.itemsize
                    )
                    for number, type_ in sorted(self.operand_types.items())
                ]
            ),
        )

    def __repr__(self) -> str:
        return f"<Extension {self.name} {self.version}>"


def _check_free(
    taken: "dict[int, ExtensionOperandType] | dict[int, ExtensionOperation]",
    name: str,
    number: int,
) -> None:
    if not 0 <= number <= _NUMBER_MAX:
        raise InvalidArgumentError(f"{name}: number {number} does not fit in 16 bits")
    if not re.match(TYPE_NAME, name):
        raise InvalidArgumentError(f"{name!r} is not a name of a type")
    types: Sequence[AnyExtensionType] = tuple(taken.values())
    if number in taken or name in {type_.name for type_ in types}:
        raise InvalidArgumentError(f"{name} or its number {number} is declared twice")


def _only_row(name: str, arguments: Sequence[Argument]) -> TypeRow:
    """Return the row of an operation whose arguments have no type variables.

    Like the HAL's, it is named by the first type.
    """
    types = [argument.type for argument in arguments if argument.type is not None]
    if not types or any(isinstance(type_, str) for type_ in types):
        raise InvalidArgumentError(f"{name} has type variables, but no rows of types")
    main = next(type_ for type_ in types if not isinstance(type_, str))
    return row(V1_2, T=main)


if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

BROUGHT = {
    "asyncnn.mediapipe": "asyncnn.extensions.mediapipe:mediapipe",
    "org.asyncnn.onnx.nodes": "asyncnn.extensions.onnx_nodes:onnx_nodes",
}
"""Extensions that asyncnn itself has: every device of the project knows them.

They are imported when a model or a program asks for them. They have no operand types.
"""

CUSTOM_OPERATORS = "asyncnn.custom_operators"
"""Group of the entry points by which distributions install custom operators.

An entry point is named as the operator; its object is the extension.
"""

ENTRY_POINTS = "asyncnn.extensions"
"""Group of the entry points by which distributions install extensions.

An entry point is named as the extension.
"""


def installed_extensions() -> tuple[str, ...]:
    """Return the names of all that are installed, without importing any."""
    return tuple(sorted({*BROUGHT, *entry_points_in(ENTRY_POINTS).names}))


def load_extension(place: str) -> Extension:
    """Import an extension: ``package.module:attribute``, or an installed one's name.

    :raises InvalidArgumentError: if there is none.
    """
    if ":" not in place:
        return _installed(place)
    module, _, attribute = place.partition(":")
    return _loaded(place, lambda: getattr(import_module(module), attribute))


def load_extensions(given: Iterable[Extension | str]) -> list[Extension]:
    """Import those that are named; one name alone stands for itself.

    :raises InvalidArgumentError: if there is none of a name, or something is none.
    """
    if isinstance(given, str | Extension):
        given = [given]
    extensions = [
        load_extension(each) if isinstance(each, str) else each for each in given
    ]
    for each in extensions:
        if not isinstance(each, Extension):
            raise WrongTypeError(
                f"{each!r} is no extension",
                hint="give an asyncnn.Extension, or a name like "
                "package.module:attribute",
            )
    return extensions


def entry_points_in(group: str) -> "EntryPoints":
    """Return the entry points of a group, whatever their names."""
    # Takes tens of milliseconds to import, and is seldom needed.
    from importlib.metadata import entry_points

    return entry_points(group=group)


def _installed(name: str) -> Extension:
    if name in BROUGHT:
        return load_extension(BROUGHT[name])
    found = {
        point.value: point for point in entry_points_in(ENTRY_POINTS).select(name=name)
    }
    if not found:
        known = ", ".join(installed_extensions()) or "none"
        raise InvalidArgumentError(
            f"there is no installed extension {name!r}",
            hint=f"installed: {known}; others are given as package.module:attribute",
        )
    if len(found) > 1:
        raise InvalidArgumentError(
            f"{name} is installed more than once: {', '.join(sorted(found))}",
            hint="give the one that is meant as package.module:attribute",
        )
    ((value, point),) = found.items()
    extension = _loaded(value, point.load)
    if extension.name != name:
        raise InvalidArgumentError(f"{value} is {extension.name}, installed as {name}")
    return extension


def _loaded(place: str, load: Callable[[], Any]) -> Extension:
    try:
        extension = load()
    except AsyncnnError:  # some are a ValueError as well
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"there is no extension at {place!r}: {error}",
            hint="give the module and its attribute: package.module:attribute",
        ) from error
    if not isinstance(extension, Extension):
        raise InvalidArgumentError(f"{place} is a {type(extension).__name__}")
    return extension
