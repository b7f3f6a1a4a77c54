"""The page of the HAL has each argument and each rule, with tests that exist."""

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

from asyncnn.hal import interfaces
from docs import hal_page
from docs.hal_page import INTERFACES, RULES, declared, entries, main, unproven


def test_the_committed_tables_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_each_argument_and_rule_has_tests_that_exist() -> None:
    assert unproven() == []


def test_every_interface_of_the_hal_is_looked_at() -> None:
    looked_at = {each for classes in INTERFACES.values() for each in classes}
    cited = {
        each
        for _, each in inspect.getmembers(interfaces, inspect.isclass)
        if each.__module__ == interfaces.__name__ and ".hal)" in (each.__doc__ or "")
    }
    assert len(cited) == 8
    assert cited <= looked_at


def test_rules_have_one_row_each() -> None:
    counts = Counter(entry.name for entry in entries(RULES))
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_rule_of_the_requirements_has_a_row(shared: Path) -> None:
    requirements = (shared / "spec" / "hal-requirements.md").read_text()
    wanted = re.findall(r"^\| ([A-Z]{1,2}-?\d+) \|", requirements, re.MULTILINE)
    assert len(wanted) > 200
    said = {entry.name for entry in entries(RULES)}
    numbered = {name for name in said if re.search(r"\d", name)}
    assert set(wanted) == numbered


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("slots: One that is", "IBurstCallback.get_memories.slots is not described"),
        ("- test_callbacks.py::TestOneShot::", "there is no tests/test_callbacks"),
        (
            "- hal/validate/test_model.py::test_consumers_are_counted",
            "there is no test",
        ),
    ],
)
def test_what_is_missing_is_told(
    line: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = f"{line}nothing" if line.endswith("::") else ""
    for name in ("METHODS", "RULES"):
        text = re.sub(
            rf"^{re.escape(line)}.*$", changed, getattr(hal_page, name), flags=re.M
        )
        monkeypatch.setattr(hal_page, name, text)
    assert any(problem in each for each in unproven())


def test_a_line_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line of a table"):
        list(entries("just words"))


def test_what_is_not_in_the_hal_is_left_out() -> None:
    found = set(declared())
    assert ("IBurstContext", "free_memory", "slot") in found
    assert ("IBurstContext", "cancel", "request") not in found
