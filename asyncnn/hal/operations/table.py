"""All operations by type, collected from the files of the families."""

from collections.abc import Mapping
from importlib import import_module
from itertools import chain
from types import MappingProxyType
from typing import cast

from asyncnn.hal.operands import (
    AnyOperandType,
    AnyOperationType,
    ExtensionOperationType,
)
from asyncnn.hal.operations.signature import OperationSignature
from asyncnn.hal.types import HalVersion, OperationType

FAMILIES = tuple(
    import_module(f"asyncnn.hal.operations.{name}")
    for name in (
        "axiswise",
        "control_flow",
        "convolution",
        "detection",
        "elementwise",
        "image",
        "joining",
        "lookup",
        "lstm",
        "matmul",
        "recurrent",
        "reshaping",
    )
)

SIGNATURES: Mapping[OperationType, OperationSignature] = MappingProxyType(
    {
        signature.type: signature
        for signature in sorted(
            chain.from_iterable(family.SIGNATURES for family in FAMILIES),
            key=lambda signature: signature.type,
        )
    }
)
"""Every operation but OEM_OPERATION, of which nothing is known."""


def signature_of(type_: AnyOperationType) -> OperationSignature | None:
    """Return what is known of an operation, also of an extension's."""
    if isinstance(type_, ExtensionOperationType):
        return cast("OperationSignature", type_.signature)
    return SIGNATURES.get(type_)


def allowed_types(type_: AnyOperationType) -> dict[AnyOperandType, HalVersion]:
    """Return the main types of an operation, each with the version that added it.

    The main type is the input's that gives its type to the output, as a rule
    input 0. OEM_OPERATION has none.
    """
    signature = signature_of(type_)
    added: dict[AnyOperandType, HalVersion] = {}
    for row in signature.rows if signature else ():
        added[row.main] = min(row.since, added.get(row.main, row.since))
    return added
