from asyncnn.devices.litert.claims import NOT_CLAIMED, RULES
from docs.accelerated_page import PAGE, main


def test_the_committed_table_is_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_each_operation_has_a_line() -> None:
    lines = PAGE.read_text().splitlines()
    for type_ in (*RULES, *NOT_CLAIMED):
        assert sum(line.startswith(f"| {type_.name} |") for line in lines) == 1
