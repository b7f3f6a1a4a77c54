"""What is published is complete, says what it is, and runs where nothing else is."""

import re
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import asyncnn
from tests.distributions import ROOT, Distributions
from tests.processes import executed

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]

COMPILED = {
    "asyncnn/_turn.abi3.so",
    "asyncnn/engine/_job.abi3.so",
    "asyncnn/fmq/_ring.abi3.so",
    "asyncnn/hal/validate/_prescan.abi3.so",
    "asyncnn/kernels/_compiled.abi3.so",
    "asyncnn/runtime/_arrays.abi3.so",
    "asyncnn/service/driver/_calls.abi3.so",
    "asyncnn/tflite/_scan.abi3.so",
}


def files_of(wheel: Path) -> set[str]:
    return {name for name in ZipFile(wheel).namelist() if not name.endswith("/")}


def described(wheel: Path, name: str) -> Message:
    (path,) = (each for each in files_of(wheel) if each.endswith(f".dist-info/{name}"))
    return Parser().parsestr(ZipFile(wheel).read(path).decode())


def tracked() -> set[str]:
    ran = executed("git", "ls-files", cwd=ROOT)
    if ran.returncode:
        pytest.skip("this is no checkout")
    return {name for name in ran.stdout.splitlines() if (ROOT / name).exists()}


def test_the_source_distribution_has_all_that_a_checkout_has(
    distributions: Distributions,
) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {
            member.name.partition("/")[2]
            for member in archive.getmembers()
            if member.isfile()
        }
    assert tracked() <= names
    made = {name for name in names - tracked() if ".egg-info/" not in name}
    assert made == {"PKG-INFO", "setup.cfg"}


@pytest.mark.parametrize("kind", ["wheel", "pure_wheel"])
def test_a_wheel_has_what_runs_and_nothing_else(
    distributions: Distributions, kind: str
) -> None:
    wheel: Path = getattr(distributions, kind)
    names = {name for name in files_of(wheel) if ".dist-info/" not in name}
    compiled = COMPILED if kind == "wheel" else set()
    assert names == compiled | {
        name
        for name in tracked()
        if name.startswith("asyncnn/") and not name.endswith((".c", ".h"))
    }


def test_the_tags_say_where_a_wheel_runs(distributions: Distributions) -> None:
    tags = described(distributions.wheel, "WHEEL").get_all("Tag")
    assert tags
    assert all(re.match(r"cp311-abi3-manylinux", tag) for tag in tags)
    assert described(distributions.pure_wheel, "WHEEL").get_all("Tag") == [
        "py3-none-any"
    ]


def test_a_wheel_describes_itself(distributions: Distributions) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wheel in distributions.wheel, distributions.pure_wheel:
        metadata = described(wheel, "METADATA")
        assert metadata["Version"] == asyncnn.__version__
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata.get_all("License-File") == ["LICENSE"]
        assert metadata["Description-Content-Type"] == "text/markdown"
        urls = [f"{name}, {url}" for name, url in project["urls"].items()]
        assert metadata.get_all("Project-URL") == urls
        classifiers = metadata.get_all("Classifier") or []
        for minor in (11, 12, 13, 14):
            assert f"Programming Language :: Python :: 3.{minor}" in classifiers
        assert not [each for each in classifiers if each.startswith("License")]


def test_links_of_the_description_lead_into_the_repository(
    distributions: Distributions,
) -> None:
    page = described(distributions.wheel, "METADATA").get_payload()
    assert isinstance(page, str)
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    into = re.compile(
        rf"{re.escape(source['Source'])}/(?:blob|raw)"
        rf"/v{re.escape(asyncnn.__version__)}/([^#]+)"
    )
    targets = re.findall(r"\]\(([^)\s]+)", page) + re.findall(r'src="([^"]+)"', page)
    assert len(targets) > 20
    for target in targets:
        found = into.match(target)
        assert target.startswith(("#", "https://"))
        assert found is None or (ROOT / found[1]).exists(), target
    assert sum(bool(into.match(target)) for target in targets) > 20


def succeeding(
    command: list[str | Path], folder: Path, variables: Mapping[str, str]
) -> str:
    ran = executed(*command, cwd=folder, env=variables)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_demo_runs_where_nothing_else_is_and_no_compiler(
    distributions: Distributions, installing: dict[str, str], tmp_path: Path
) -> None:
    installing.pop("PIP_CONSTRAINT")
    succeeding([sys.executable, "-m", "venv", "empty"], tmp_path, installing)
    programs = tmp_path / "empty" / "bin"
    pip: list[str | Path] = [programs / "pip", "--quiet"]
    for kind, file in distributions._asdict().items():
        succeeding([*pip, "install", file], tmp_path, installing)
        told = succeeding([programs / "asyncnn", "--version"], tmp_path, installing)
        assert told == f"{asyncnn.__version__}\n"
        shown = succeeding([programs / "asyncnn", "demo"], tmp_path, installing)
        assert "accuracy" in shown
        for compiled in (
            "from asyncnn.fmq.ring import *; print(Ring is not PythonRing)",
            "from asyncnn.engine.job import *; print(Job is not None)",
        ):
            asked: list[str | Path] = [programs / "python", "-c", compiled]
            assert succeeding(asked, tmp_path, installing) == f"{kind == 'wheel'}\n"
        succeeding([*pip, "uninstall", "--yes", "asyncnn"], tmp_path, installing)
