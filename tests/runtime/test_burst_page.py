"""The page about bursts, as a reader tries it out."""

from pathlib import Path

import pytest

from tests.pages import code_blocks, output_of

PAGE = Path(__file__).parents[2] / "docs" / "bursts.md"


@pytest.mark.parametrize("code", code_blocks(PAGE.read_text()))
def test_its_code_runs(code: str, tmp_path: Path) -> None:
    assert "probabilities" in output_of(code, tmp_path)
