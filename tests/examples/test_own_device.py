"""The package of examples/own_device: found by its entry point, used beside the CPU."""

import ast
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.processes import python

FOLDER = Path(__file__).parents[2] / "examples" / "own_device"


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the package is installed."""
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    facts = tmp_path / "own_device-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: own-device\nVersion: 1.0\n"
    )
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in each.items())
        for group, each in project["entry-points"].items()
    ]
    (facts / "entry_points.txt").write_text("".join(lines))
    paths = [str(tmp_path), str(FOLDER), *sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(environment: dict[str, str], *arguments: str) -> str:
    done = python(*arguments, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_program_runs_on_two_devices(installed: dict[str, str]) -> None:
    out = run(installed, str(FOLDER / "app.py"))
    assert out.splitlines() == [
        "2 operations on unary",
        "1 operation on reference",
        "2 operations on unary",
    ]


def test_it_is_listed_with_its_package(installed: dict[str, str]) -> None:
    devices = json.loads(run(installed, "-m", "asyncnn", "devices", "--json"))
    (found,) = [each for each in devices if each["name"] == "unary"]
    assert found["origin"] == "own-device"
    assert found["type"] == "ACCELERATOR"
    assert found["performance"]["TENSOR_FLOAT32"] == 0.5


def test_it_is_short() -> None:
    tree = ast.parse((FOLDER / "own_device.py").read_text())
    imports = (ast.Import, ast.ImportFrom)
    body = [node for node in tree.body[1:] if not isinstance(node, imports)]
    assert sum(node.end_lineno - node.lineno + 1 for node in body) < 100
