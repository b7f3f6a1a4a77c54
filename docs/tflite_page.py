"""Writes the table of builtin operators into ``docs/tflite.md``, from the test cases.

Run it from a checkout: ``python -m docs.tflite_page``; with ``--check`` it writes
nothing and exits with 1 if the table is out of date. What an operator becomes is what
the importer makes of the files that the tests compare with LiteRT. The rest of the page
is written by hand.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.types import OperationType
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite.functions import ALIASES
from asyncnn.runtime.tflite.scope import NOT_IMPORTED
from docs.generated import ROOT, GeneratedPart, table
from tests.runtime.tflite.importing import import_tflite

# By name, since the tests are not type-checked.
_layer_cases = import_module("tests.runtime.tflite.layer_cases")
CASES, TYPED_CASES = _layer_cases.CASES, _layer_cases.TYPED_CASES
NUMBERS = import_module("tests.runtime.tflite.files").NUMBERS

Case: TypeAlias = Any
T: TypeAlias = Any
PAGE = ROOT / "docs" / "tflite.md"

PART = GeneratedPart(
    PAGE, "<!-- the table of operators: make docs -->", "<!-- the end of the table -->"
)

BY_HAND = {
    "CALL": ("its operators, in place", ""),
    "STABLEHLO_COMPOSITE": ("the operators of its decomposition, in place", "float32"),
    "CALL_ONCE": ("nothing: it runs when the file is read", ""),
    "IF": ("IF", "bool"),
    "WHILE": ("WHILE", "bool"),
    "VAR_HANDLE": ("a state of the model", ""),
    "READ_VARIABLE": ("the state", ""),
    "ASSIGN_VARIABLE": ("the next state", ""),
    "RFFT2D": ("a composition of FULLY_CONNECTED", "float32"),
    "REAL": ("a part of the spectrum of RFFT2D", "complex64"),
    "IMAG": ("a part of the spectrum of RFFT2D", "complex64"),
    "COMPLEX_ABS": ("a composition of MUL, ADD, SQRT", "complex64"),
    "MULTINOMIAL": ("RANDOM_MULTINOMIAL", "float32"),
    "STABLEHLO_CLAMP": ("a composition of MAXIMUM, MINIMUM", "float32"),
}
"""Operators that other tests are about: what they become, and of which types."""

_CONSTANTS = {"RANGE", "BROADCAST_ARGS", "WHERE"}
"""Operators that are computed of constants, and refused else."""


_ORDER = (
    *("float32", "float16", "complex64", "int8 (quantised)", "uint8 (quantised)"),
    *("int8", "uint8", "int16 (quantised)", "int32", "int64", "bool"),
)
"""Types in the order of the last column."""


def render() -> str:
    """Return both tables: what is imported, and what is not."""
    imported = [(name, *entry) for name, entry in _imported().items()]
    imported += [(name, *entry) for name, entry in BY_HAND.items()]
    refused = [
        (name, reason)
        for name, reason in NOT_IMPORTED.items()
        if name not in _CONSTANTS
    ]
    lines = [
        *table(("operator", "becomes", "compared with LiteRT on"), _sorted(imported)),
        *table(("not imported", "because"), _sorted(refused)),
    ]
    return "\n".join(lines)


def _sorted(rows: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
    yield from sorted(rows, key=lambda row: NUMBERS[row[0]])


def _imported() -> dict[str, tuple[str, str]]:
    cases: dict[str, list[Case]] = defaultdict(list)
    for case in CASES:
        cases[case.operator.name].append(case)
    typed: dict[str, list[Case]] = defaultdict(list)
    for case in TYPED_CASES:
        typed[case.operator.name].append(case)
    return {
        name: (_becomes(name, of_name), ", ".join(_types([*of_name, *typed[name]])))
        for name, of_name in cases.items()
    }


def _becomes(name: str, cases: Iterable[Case]) -> str:
    """Return the operation of an operator, or those that it is composed of."""
    if name in _CONSTANTS:
        return "a constant, of constants; else not imported"
    forms = dict.fromkeys(map(_operations, cases))
    single = [operations[0] for operations in forms if len(operations) == 1]
    composed = dict.fromkeys(
        each for operations in forms if len(operations) > 1 for each in operations
    )
    parts = []
    if single:
        parts.append(" or ".join(dict.fromkeys(single)))
    if composed:
        listed = ", ".join(sorted(each for each in composed))
        parts.append(f"a composition of {listed}")
    like = ALIASES.get(name)
    return f"as {like}" if like else "; or ".join(parts)


def _operations(case: Case) -> tuple[str, ...]:
    model = import_tflite(from_buffer(case.file())).model
    return tuple(OperationType(each.type).name for each in model.main.operations)


def _types(cases: Iterable[Case]) -> list[str]:
    found: dict[str, None] = {}
    for case in cases:
        tensors = [t for t in case.operator.inputs if t is not None]
        running = [t for t in tensors if t.data is None and not t.variable]
        first = (running or tensors)[0]
        found.setdefault(_type(first))
    return sorted(found, key=_ORDER.index)


def _type(tensor: T) -> str:
    name = np.dtype(tensor.dtype).name
    return f"{name} (quantised)" if tensor.scale else name


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or check them; return the exit status."""
    return PART.main(render, arguments)


if __name__ == "__main__":
    sys.exit(main())
