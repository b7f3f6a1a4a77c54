"""The short form in which the tables of the families declare operations.

Types are rows, after the name of the operation and the version that brought them: ``NEG
1.0: F32 Q8; 1.2: F16`` has the types of the only variable ``T``, and ``ELU T/S 1.2:
F16/FLOAT16`` binds two variables at a time.

A layout lists arguments, and after ``->`` the outputs, if they are not one ``output``:

* ``first second: INT32`` are two arguments of a type, of a type variable, or of ``any``
  type; the type that is not said is ``T``;
* ``bias?`` may be omitted, ``input+`` occurs once or more, ``input*`` any times;
* ``[4]`` and ``[1-4]`` limit ranks, ``@1.2`` names the version that added arguments,
  ``= unit`` one of `QUANTIZATIONS`;
* inputs may also end at each ``|``; a version comes before a newer layout.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, chain

from asyncnn.hal.operands import AnyOperandType
from asyncnn.hal.operations import signature
from asyncnn.hal.operations.bound import ShapeRule
from asyncnn.hal.operations.signature import (
    AnyCheck,
    Argument,
    ArgumentLayout,
    OperationSignature,
    Quantization,
    TypeRow,
)
from asyncnn.hal.types import HalVersion, OperandType, OperationType

QUANTIZATIONS: dict[str, Quantization] = {
    "unit": {signature.Q8: (1 / 256, 0), signature.Q8S: (1 / 256, -128)},
    "signed_unit": {signature.Q8: (1 / 128, 128), signature.Q8S: (1 / 128, 0)},
    "lstm_result": {signature.Q8: (1 / 128, 128)},
    "lstm_memory": {signature.Q16S: (2.0**-11, 0)},
    "corners": {signature.Q16A: (1 / 8, 0)},
    "anchors": {signature.Q16S: (1 / 8, 0)},
    "flags": {signature.Q8: (1.0, 0)},
}
"""By names; ``unit`` is for results in [0, 1), ``signed_unit`` for ones in [-1, 1),
``corners`` of boxes count eighths of a pixel.
"""

_TYPES: dict[str, OperandType] = {
    name: type_
    for name, type_ in vars(signature).items()
    if isinstance(type_, OperandType)
} | {"SUBGRAPH": OperandType.SUBGRAPH}

_GROUP = re.compile(
    r"(?P<names>[\w?*+ ]+?)(: (?P<type>\w+))?( \[(?P<first>\d)(-(?P<last>\d))?\])?"
    r"( @(?P<since>[\w.]+))?( = (?P<quantization>\w+))?"
)
_AT_LEAST = {"*": 0, "+": 1}


def declare(
    operation: str, layouts: str | tuple[str, ...], shape: ShapeRule, *checks: AnyCheck
) -> OperationSignature:
    """Return the signature of an operation; the module says how texts are read.

    :raises ValueError, KeyError: if one cannot be read.
    """
    name, _, types = operation.partition(" ")
    texts = (layouts,) if isinstance(layouts, str) else layouts
    return OperationSignature(
        OperationType[name],
        tuple(_rows(types)),
        tuple(map(layout_of, texts)),
        shape,
        checks,
    )


def _rows(text: str) -> Iterator[TypeRow]:
    variables = "T"
    if not text.partition(" ")[0].endswith(":"):
        variables, _, text = text.partition(" ")
    for part in text.split("; "):
        first, _, rows = part.partition(": ")
        since = _version(first)
        for row in rows.split():
            types: Iterator[AnyOperandType] = map(_TYPES.__getitem__, row.split("/"))
            bound = zip(variables.split("/"), types, strict=True)
            yield TypeRow(since, dict(bound))


@cache
def _version(text: str) -> HalVersion:
    return HalVersion["V" + text.replace(".", "_") if text[:1].isdigit() else text]


def layout_of(text: str) -> ArgumentLayout:
    """Return the layout that a text says; see above for how.

    :raises ValueError: if it cannot be read.
    """
    since, _, newer = text.partition(": ") if text[:1].isdigit() else ("1.0", "", text)
    inputs, _, outputs = newer.partition(" -> ")
    parts = [_arguments(part) for part in inputs.split(" | ")]
    counts = tuple(accumulate(map(len, parts))) if len(parts) > 1 else ()
    taken = tuple(chain.from_iterable(parts))
    return ArgumentLayout(
        taken, _arguments(outputs or "output"), counts, _version(since)
    )


def _arguments(text: str) -> tuple[Argument, ...]:
    return tuple(chain.from_iterable(map(_group, text.split(", "))))


@cache
def _group(text: str) -> tuple[Argument, ...]:
    group = _GROUP.fullmatch(text)
    if group is None:
        raise ValueError(f"{text!r} declares no arguments")
    first, type_ = group["first"], group["type"] or "T"
    return tuple(
        Argument(
            name.rstrip("?*+"),
            None if type_ == "any" else _TYPES.get(type_, type_),
            tuple(range(int(first), int(group["last"] or first) + 1)) if first else (),
            name.endswith("?"),
            _version(group["since"] or "1.0"),
            _AT_LEAST.get(name[-1]),
            QUANTIZATIONS[group["quantization"]] if group["quantization"] else None,
        )
        for name in group["names"].split()
    )
