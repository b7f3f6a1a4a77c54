from asyncnn.runtime.tflite import branches
from asyncnn.runtime.tflite.importer import CONVERTERS
from docs.tflite_page import BY_HAND, PAGE, main
from tests.runtime.tflite.files import NUMBERS


def test_the_committed_tables_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_each_builtin_operator_has_one_line() -> None:
    lines = PAGE.read_text().splitlines()
    for name in NUMBERS:
        assert sum(line.startswith(f"| {name} |") for line in lines) == 1, name


def test_what_is_written_by_hand_is_imported() -> None:
    flow = {name for name in BY_HAND if name not in CONVERTERS}
    assert flow == set(branches.CONVERTERS)
