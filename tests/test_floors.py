"""Imports only go downward, and every part of the package stands on a floor."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncnn

ROOT = Path(asyncnn.__file__).parent

FLOORS = {
    "__main__": 8,
    "lazy": 1,
    "deadlines": 1,
    "http_server": 1,
    "input_files": 1,
    "output_files": 1,
    "offload": 1,
    "pacing": 1,
    "callbacks": 1,
    "turn": 1,
    "logs": 1,
    "interpreter_hooks": 1,
    "tracing": 1,
    "hal": 1,
    "memory": 2,
    "fmq": 2,
    "fences": 2,
    "kernels": 2,
    "extensions": 2,
    "tflite": 2,
    "qos": 3,
    "engine": 3,
    "execution": 3,
    "fenced_run": 3,
    "burst": 4,
    "devices": 4,
    "service": 5,
    "runtime": 6,
    "metrics": 6,
    "pipeline": 6,
    "cluster": 6,
    "web": 6,
    "oip": 7,
    "onnx_backend": 7,
    "tools": 7,
    "cli": 8,
}

MODULES = sorted(
    path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.parent != ROOT
) + sorted(
    path.relative_to(ROOT) for path in ROOT.glob("*.py") if path.stem != "__init__"
)


def part_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def imported_parts(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} uses a relative import"
            base = node.module or ""
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "asyncnn" and len(parts) > 1 and parts[1] in FLOORS:
                yield parts[1]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_a_module_imports_only_from_its_floor_or_below(module: Path) -> None:
    own = FLOORS[part_of(module)]
    above = {part for part in imported_parts(module) if FLOORS[part] > own}
    assert not above, f"{module} (floor {own}) imports {above}"


@pytest.mark.parametrize("part", ["kernels", "hal"])
def test_arithmetic_and_rules_know_nothing_of_event_loops(part: str) -> None:
    foreign = {"asyncio", "anyio", "socket", "threading"}
    for path in (ROOT / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not {name.split(".")[0] for name in names} & foreign, path


def test_no_file_is_longer_than_500_lines() -> None:
    folders = [ROOT, Path(__file__).parent, ROOT.parent / "examples"]
    long = {
        str(path): lines
        for folder in folders
        for path in folder.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 500
    }
    assert not long
