"""What is kept repeats the error of one operation."""

from pathlib import Path

import numpy as np

import asyncnn
from asyncnn.hal.types import OperationType
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.differing.evidence import Evidence, keep
from asyncnn.tools.differing.finding import Finding
from tests.tools.differing.test_extracts import folding
from tests.tools.differing.test_finding import (
    between,
    branching,
    looping,
    places,
    plus,
    running_sum,
)


async def kept(
    named: NamedModel, type_: OperationType, path: Path, samples: int = 1
) -> Evidence:
    """Keep what repeats a fault of one kernel, while there is one."""
    evidence: list[Evidence] = []

    async def save(found: Finding) -> None:
        assert places(found)[0] == places(found)[1]
        assert found.to_look_into is not None
        evidence.append(await keep(found.to_look_into, path, ("one", "other"), ()))

    await between(named, type_, plus(0.5), samples=samples, then=save)
    return evidence[0]


def operations(evidence: Evidence) -> list[int]:
    return [each.type for each in asyncnn.load(evidence.model).model.main.operations]


async def test_an_operation_of_a_loop(tmp_path: Path) -> None:
    evidence = await kept(looping(), OperationType.MUL, tmp_path / "kept.npz")
    assert evidence.place == "0/body/1"
    assert evidence.repeats
    assert operations(evidence) == [OperationType.MUL]
    with np.load(evidence.inputs) as arrays:
        assert set(arrays) == {"input_0", "output_0"}
        expected = arrays["input_0"] * np.float32(0.5) + np.float32(0.5)
        np.testing.assert_array_equal(arrays["output_0"], expected)


async def test_an_operation_of_a_branch(tmp_path: Path) -> None:
    evidence = await kept(branching(), OperationType.EXP, tmp_path / "kept.npz")
    assert evidence.place == "0/then/0"
    assert evidence.repeats
    assert operations(evidence) == [OperationType.EXP]
    assert asyncnn.load(evidence.model).model.referenced == ()


async def test_an_operation_on_state(tmp_path: Path) -> None:
    named = running_sum()
    evidence = await kept(named, OperationType.ADD, tmp_path / "kept.npz", samples=3)
    assert evidence.repeats
    model = asyncnn.load(evidence.model)
    assert not model.states
    assert [info.name for info in model.inputs] == ["x", "sum"]
    with np.load(evidence.inputs) as arrays:
        assert set(arrays) == {"input_0.x", "input_0.sum", "output_0"}


async def test_an_operation_on_constants_alone_needs_no_inputs(tmp_path: Path) -> None:
    evidence = await kept(folding(), OperationType.RESHAPE, tmp_path / "kept.npz")
    assert evidence.place == "0"
    assert evidence.repeats
    assert asyncnn.load(evidence.model).inputs == ()
    assert "--input" not in evidence.command
    assert evidence.command.endswith("--between one,other")
