import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.runtime.device import Device
from docs.onnx_page import PAGE, PART, render
from tests.runtime.onnx.node_cases import judge, judge_all, node_tests, operator_of

LEAST_PASSING = 0.99


@pytest.mark.unrecorded
async def test_some_of_each_operator_are_right_or_refused() -> None:
    chosen = {operator_of(test): test for test in node_tests().values()}
    async with ReferenceDevice() as hal:
        device = Device("reference", hal)
        judged = [await judge(test, device) for test in chosen.values()]
    assert not [one.name for one in judged if one.state == "wrong"]
    assert sum(one.state == "passed" for one in judged) > 120


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_nearly_all_pass_and_none_is_wrong() -> None:
    judged = judge_all(node_tests())
    inside = [one for one in judged if one.state != "outside"]
    assert not [one.name for one in judged if one.state == "wrong"]
    passed = sum(one.state == "passed" for one in inside)
    assert passed >= LEAST_PASSING * len(inside)
    assert all(one.reason for one in judged if one.state == "refused")
    page = PAGE.read_text()
    assert PART.replaced(page, render(judged)) == page
