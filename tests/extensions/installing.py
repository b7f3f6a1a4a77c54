"""Distributions that have extensions, as pip would install them."""

from pathlib import Path

import pytest

from tests.extensions import vendor as module
from tests.extensions.vendor import vendor

ROOT = Path(__file__).parents[2]


def install(
    patch: pytest.MonkeyPatch,
    folder: Path,
    place: str = f"{module.__name__}:vendor",
    name: str = vendor.name,
    group: str = "asyncnn.extensions",
) -> None:
    """Make what is installed in a group known to this process and those it starts."""
    information = folder / f"{folder.name}-1.dist-info"
    information.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {folder.name}\nVersion: 1\n"
    (information / "METADATA").write_text(metadata)
    entry = f"[{group}]\n{name} = {place}\n"
    (information / "entry_points.txt").write_text(entry)
    patch.syspath_prepend(folder)
    patch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
