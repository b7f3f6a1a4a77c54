from msgspec.structs import replace

from asyncnn.devices.support import supporting
from asyncnn.hal.types import OperationType
from asyncnn.pacing import completed
from tests.engine.test_control_flow import if_model
from tests.hal.validate.chains import chain


def test_one_can_stop_asking_every_hundred_operations() -> None:
    model = chain(1_000)
    assert sum(1 for _ in supporting(model)) >= 10
    assert completed(supporting(model)) == (True,) * 1_000


def test_one_can_stop_asking_within_subgraphs() -> None:
    body = chain(500).main
    model = replace(if_model((3,)), referenced=(body, body))
    assert sum(1 for _ in supporting(model)) >= 10


def test_only_what_runs_a_subgraph_without_kernels_does_not_run() -> None:
    model = if_model((3,))
    assert completed(supporting(model)) == (True,)
    body = model.referenced[0]
    oem = replace(body.operations[0], type=OperationType.OEM_OPERATION)
    wrong = replace(body, operations=(oem, *body.operations[1:]))
    model = replace(model, referenced=(wrong, *model.referenced[1:]))
    assert completed(supporting(model)) == (False,)
