"""Files of many operators are read in small steps, between which all is as ever."""

import gc
from collections.abc import Callable

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Memory, OperationType
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import Steps, completed
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.tflite.importer import importing_tflite
from tests.runtime.tflite.files import Op, T, write

OPERATORS = 2000
FEW = 64
"""Operators of a file that one step may look at."""

Import = Callable[[Memory], Steps[NamedModel]]


def tflite_file() -> bytes:
    tensors = [T(name=f"t{number}") for number in range(OPERATORS + 1)]
    operators = [
        Op("ABS" if number % 2 else "NEG", [tensors[number]], [tensors[number + 1]])
        for number in range(OPERATORS)
    ]
    return write(operators, tensors[:1], tensors[-1:])


def onnx_file() -> bytes:
    pytest.importorskip("onnx", reason="onnx is not installed")
    from onnx import helper

    from tests.runtime.onnx.files import model, tensor

    nodes = [
        helper.make_node("Abs" if k % 2 else "Neg", [f"t{k}"], [f"t{k + 1}"])
        for k in range(OPERATORS)
    ]
    ends = [tensor("t0", (1, 4))], [tensor(f"t{OPERATORS}", (1, 4))]
    content: bytes = model(nodes, *ends).SerializeToString()
    return content


def importing_onnx(memory: Memory) -> Steps[NamedModel]:
    from asyncnn.runtime.onnx import importing_onnx

    return importing_onnx(memory)


KINDS: dict[str, tuple[Callable[[], bytes], Import]] = {
    "tflite": (tflite_file, importing_tflite),
    "onnx": (onnx_file, importing_onnx),
}


@pytest.fixture(params=KINDS)
def file(request: pytest.FixtureRequest) -> tuple[Memory, Import]:
    content, importing = KINDS[request.param]
    return from_buffer(np.frombuffer(content(), np.uint8)), importing


def test_a_step_takes_few_operators(file: tuple[Memory, Import]) -> None:
    memory, importing = file
    steps, count = importing(memory), 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as end:
        named = end.value
    assert count >= OPERATORS / FEW
    types = [operation.type for operation in named.model.main.operations]
    assert types == [OperationType.NEG, OperationType.ABS] * (OPERATORS // 2)
    assert named.model.main == load(memory.buffer or b"", strict=True).model.main


def test_what_was_left_can_be_loaded_anew(file: tuple[Memory, Import]) -> None:
    memory, importing = file
    for taken in (0, 1, 20, 60):
        steps = importing(memory)
        for _ in range(taken):
            next(steps)
        steps.close()
    assert len(completed(importing(memory)).model.main.operations) == OPERATORS


def test_numpy_complains_between_two_steps_as_it_did_before(
    file: tuple[Memory, Import],
) -> None:
    memory, importing = file
    with np.errstate(all="raise"):
        before = np.geterr()
        for _ in importing(memory):
            assert np.geterr() == before


def test_the_collector_comes_back_with_the_end_of_a_large_file(
    file: tuple[Memory, Import],
) -> None:
    memory, importing = file
    usual = gc.get_threshold()
    steps = importing(memory)
    seen = {gc.get_threshold() for _ in steps}
    assert len(seen) == 2, "full collections go on while it is read"
    assert gc.get_threshold() == usual
    steps = importing(memory)
    while gc.get_threshold() == usual:
        next(steps)
    steps.close()
    assert gc.get_threshold() == usual


def test_an_operator_in_the_middle_is_named_as_ever() -> None:
    tensors = [T(name=f"t{number}") for number in range(101)]
    operators = [
        Op("ABS", [tensors[number]], [tensors[number + 1]]) for number in range(100)
    ]
    operators[70] = Op("ABS", [T(name="never computed")], [tensors[71]])
    content = write(operators, tensors[:1], tensors[-1:])
    with pytest.raises(InvalidArgumentError, match=r"operator 70 \(ABS\), .*'t71'"):
        load(content)
