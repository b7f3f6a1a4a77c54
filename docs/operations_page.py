"""Writes ``docs/operations.md``, the reference of all operations, from the table.

Run it from a checkout: ``python -m docs.operations_page``; with
``--check`` it writes nothing and exits with 1 if the page is out of date.
"""

import argparse
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path

from asyncnn import kernels
from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.hal.operands import AnyOperandType, AnyOperationType
from asyncnn.hal.operations import SIGNATURES, allowed_types
from asyncnn.hal.operations.signature import (
    Argument,
    ArgumentLayout,
    OperationSignature,
)
from asyncnn.hal.types import HalVersion, OperandType
from docs.generated import ROOT, table
from tests.derived.cases import derived_cases
from tests.derived.coverage import Pair, pair_of_row, pairs_of, pairs_with_vectors

PAGE = ROOT / "docs" / "operations.md"

SHORT_NAMES: dict[AnyOperandType, str] = {
    OperandType.TENSOR_FLOAT32: "f32",
    OperandType.TENSOR_FLOAT16: "f16",
    OperandType.TENSOR_INT32: "i32",
    OperandType.TENSOR_BOOL8: "b8",
    OperandType.TENSOR_QUANT8_ASYMM: "q8",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "q8s",
    OperandType.TENSOR_QUANT8_SYMM: "q8sym",
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: "q8pc",
    OperandType.TENSOR_QUANT16_SYMM: "q16s",
    OperandType.TENSOR_QUANT16_ASYMM: "q16a",
    OperandType.SUBGRAPH: "subgraph",
}
"""Types as tables write them."""

_INTRODUCTION = """\
# Operations

Every operation of HAL 1.0 to 1.3 and of the AIDL additions, as this driver validates,
computes and tests it. The page is generated from the table in `asyncnn.hal.operations`:
change the table and run `make docs`, not this file.

A version stands for the first one that allows something: 1.0 to 1.3 are HAL versions,
AIDL 2 and AIDL 3 are feature levels 6 and 7. Type variables such as `T` take their
types from one row of an operation's table of types, all from the same. *vectors* says
that cases of the public test suite exercise the row, *derived* that cases made from
them do (`tests.derived.cases`).
"""


def render(vectors: Path) -> str:
    """Return the page; ``vectors`` is the folder of the conformance vectors."""
    tested = _tested(vectors)
    blocks = [_INTRODUCTION, *_summary()]
    for signature in SIGNATURES.values():
        blocks += _section(signature, tested)
    return "\n".join(blocks)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it; return the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/operations.md.")
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--vectors", type=Path, default=_shared() / "vts")
    options = parser.parse_args(arguments)
    if not options.vectors.is_dir():
        parser.error(f"there are no vectors in {options.vectors}")
    page = render(options.vectors)
    if not options.check:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.stderr.write(f"{PAGE} is out of date; run `make docs`\n")
        return 1
    return 0


def _shared() -> Path:
    return Path(os.environ.get("ASYNCNN_SHARED", ROOT.parent / "shared"))


def _tested(vectors: Path) -> dict[Pair, str]:
    derived = frozenset().union(*map(pairs_of, derived_cases(vectors)))
    return dict.fromkeys(derived, "derived") | dict.fromkeys(
        pairs_with_vectors(vectors), "vectors"
    )


def _summary() -> Iterator[str]:
    yield "The table below writes types in short:\n"
    yield from table(
        ("short", "type"), ((short, f"`{t.name}`") for t, short in SHORT_NAMES.items())
    )
    yield from table(
        ("code", "operation", "since", "types"),
        (
            (
                str(int(type_)),
                f"[{type_.name}](#{type_.name.lower()})",
                _version(signature.since),
                _main_types(signature),
            )
            for type_, signature in SIGNATURES.items()
        ),
    )


def _main_types(signature: OperationSignature) -> str:
    return ", ".join(
        SHORT_NAMES[type_]
        + (f" ({_version(since)})" if since > signature.since else "")
        for type_, since in allowed_types(signature.type).items()
    )


def _section(signature: OperationSignature, tested: dict[Pair, str]) -> Iterator[str]:
    type_ = signature.type
    yield f"## {type_.name}\n"
    yield f"Code {int(type_)}, since {_version(signature.since)}. {_support(type_)}\n"
    yield from table(
        (*(f"`{name}`" for name in signature.rows[0].types), "since", "tested by"),
        (
            (
                *(f"`{operand.name}`" for operand in row.types.values()),
                _version(row.since),
                tested.get(pair_of_row(type_, row), "nothing"),
            )
            for row in signature.rows
        ),
    )
    for _, layouts in groupby(signature.layouts, key=lambda layout: layout.inputs):
        yield from _layouts(list(layouts))


def _layouts(alike: list[ArgumentLayout]) -> Iterator[str]:
    """Describe layouts that differ in nothing but their outputs."""
    inputs, _, _ = alike[0].describe_counts().rpartition(" and ")
    yield f"With {inputs}:\n"
    yield from table(
        ("input", "name", "type", "notes"),
        (
            (str(index), f"`{argument.name}`", _type(argument), _remarks(argument))
            for index, argument in enumerate(alike[0].inputs)
        ),
    )
    for layout in alike:
        since = f", since {_version(layout.since)}" if len(alike) > 1 else ""
        outputs = ", ".join(
            f"`{argument.name}` {_type(argument)}"
            + (f" ({remarks})" if (remarks := _remarks(argument)) else "")
            for argument in layout.outputs
        )
        _, _, count = layout.describe_counts().rpartition(" and ")
        yield f"{count}{since}: {outputs}.\n"


def _type(argument: Argument) -> str:
    match argument.type:
        case None:
            return "any"
        case OperandType() as type_:
            return f"`{type_.name}`"
        case variable:
            return f"`{variable}`"


def _remarks(argument: Argument) -> str:
    remarks = []
    if argument.ranks:
        remarks.append(f"rank {_ranks(argument.ranks)}")
    if argument.at_least is not None:
        remarks.append(f"{argument.at_least} or more of them")
    if argument.optional:
        remarks.append("may be omitted")
    if argument.since > HalVersion.V1_0:
        remarks.append(f"since {_version(argument.since)}")
    remarks += [
        f"`{type_.name}`: scale {scale:.9g}, zero point {zero_point}"
        for type_, (scale, zero_point) in (argument.quantization or {}).items()
    ]
    return "; ".join(remarks)


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return " or ".join(map(str, ranks))


def _support(type_: AnyOperationType) -> str:
    """Say which file computes an operation, and which one tests that file."""
    if type_ in CONTROL_FLOW:
        module = "asyncnn.engine.control_flow"
    elif type_ in kernels.supported_operations():
        module = _kernel_module(type_)
    else:
        return "The reference device does not compute it."
    _, part, *_, name = module.split(".")
    text = f"Computed by `{module}`"
    for tests in sorted((ROOT / "tests" / part).rglob(f"test_{name}.py")):
        return f"{text}, tested in `{tests.relative_to(ROOT)}`."
    return f"{text}."


def _kernel_module(type_: AnyOperationType) -> str:
    """Return the name of the module, not package, whose table has the kernel."""
    for info in pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}."):
        module = import_module(info.name)
        tables = (getattr(module, name, {}) for name in ("KERNELS", "DATA_DEPENDENT"))
        if not info.ispkg and any(type_ in table for table in tables):
            return info.name
    raise LookupError(f"no module has the kernel of {type_.name}")


def _version(version: HalVersion) -> str:
    if version >= HalVersion.AIDL_V1:
        return version.name.replace("_V", " ")
    return version.name.removeprefix("V").replace("_", ".")


if __name__ == "__main__":
    sys.exit(main())
