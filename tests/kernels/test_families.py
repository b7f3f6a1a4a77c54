"""Families of kernels stand side by side, on what is common to all of them."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from asyncnn import kernels
from asyncnn.kernels import registry

ROOT = Path(kernels.__file__).parent
COMMON = {"compiled", "kernel", "numerics", "rounding"}
FAMILIES = (
    {path.stem for path in ROOT.glob("*.py")}
    | {path.parent.name for path in ROOT.glob("*/__init__.py")}
) - {*COMMON, "__init__", "registry"}
KIN = {"activation": {"arithmetic"}, "normalization": {"reduction"}}
"""Families that take what is element by element, or along axes, from another."""

PREFIX = f"{kernels.__name__}."


def imported(part: str) -> set[str]:
    """Return what the modules of ``part`` import of `asyncnn.kernels`."""
    names = [
        f"{node.module}.{alias.name}"
        for path in [*(ROOT / part).rglob("*.py"), *ROOT.glob(f"{part}.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    return {
        name.removeprefix(PREFIX).split(".")[0]
        for name in names
        if name.startswith(PREFIX)
    }


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_knows_no_other(family: str) -> None:
    assert imported(family) <= {family} | COMMON | KIN.get(family, set())


@pytest.mark.parametrize("part", sorted(COMMON))
def test_what_families_share_knows_none_of_them(part: str) -> None:
    assert imported(part) <= COMMON


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_registry_knows_what_every_family_computes(family: str) -> None:
    names = [path.stem for path in (ROOT / family).glob("*.py")]
    parts = [f"{family}.{name}" for name in names if name != "__init__"] or [family]
    tables = {part: vars(import_module(f"{PREFIX}{part}")) for part in parts}
    found = {
        (part, operation, kind == "DATA_DEPENDENT")
        for part, table in tables.items()
        for kind in ("KERNELS", "DATA_DEPENDENT")
        for operation in table.get(kind, ())
    }
    assert found
    known = {
        (registry.family_of(each), each, registry.is_data_dependent(each))
        for each in kernels.supported_operations()
    }
    assert found == {each for each in known if each[0] in parts}
