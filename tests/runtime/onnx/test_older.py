"""Operator set 6: the package's own models of it, and second operands at an axis."""

import glob
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.loader import load_model_tests

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import AsyncnnError
from asyncnn.runtime.device import Device
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from tests.runtime.onnx.files import imported, model, results, tensor, written
from tests.runtime.onnx.node_cases import judge

node = helper.make_node
RNG = np.random.default_rng(67)


@cache
def stored_tests() -> dict[str, Any]:
    """Return the tests that PyTorch's exporter wrote, by name, with their arrays."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kinds = ("pytorch-converted", "pytorch-operator")
        tests = [test for kind in kinds for test in load_model_tests(kind=kind)]
    return {test.name: _read(test) for test in tests}


def _read(test: Any) -> Any:
    proto = onnx.load(os.path.join(test.model_dir, "model.onnx"))
    weights = {tensor.name for tensor in proto.graph.initializer}
    inputs = [info for info in proto.graph.input if info.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    folders = sorted(glob.glob(f"{glob.escape(test.model_dir)}/test_data_set_*"))
    sets = [
        tuple(list(_tensors(folder, kind)) for kind in ("input", "output"))
        for folder in folders
    ]
    return replace(test, model=proto, data_sets=sets)


def _tensors(folder: str, kind: str) -> Iterator[Any]:
    for index in range(len(glob.glob(f"{glob.escape(folder)}/{kind}_*.pb"))):
        yield onnx.load_tensor(f"{folder}/{kind}_{index}.pb")


async def judged(names: list[str]) -> dict[str, str]:
    """Return what became of tests, by name."""
    async with ReferenceDevice() as hal:
        device = Device("reference", hal)
        return {n: (await judge(stored_tests()[n], device)).state for n in names}


async def test_stored_models_give_what_was_stored_with_them() -> None:
    names = sorted(stored_tests())
    assert len(names) > 100
    chosen = names[::8] + [n for n in names if "Conv3d" in n or "PReLU_3d" in n]
    states = await judged(chosen)
    assert set(states.values()) <= {"passed", "outside"}


@pytest.mark.exhaustive
async def test_all_stored_models_give_what_was_stored_with_them() -> None:
    states = await judged(sorted(stored_tests()))
    assert set(states.values()) <= {"passed", "outside"}
    assert sum(state == "passed" for state in states.values()) > 100


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 4), 1),
        ((3,), 1),
        ((2,), 0),
        ((2, 3), 0),
        ((4, 5), None),
        ((5,), None),
        ((3, 4), -3),
        ((1, 4), 1),
        ((1,), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_second_operand_lies_along_the_axes_that_the_node_names(
    shape: tuple[int, ...], axis: int | None, is_known: bool
) -> None:
    whole = (2, 3, 4, 5)
    x = RNG.standard_normal(whole).astype(np.float32)
    y = RNG.standard_normal(shape).astype(np.float32)
    options = {} if axis is None else {"axis": axis}
    proto = model(
        [node("Sub", ["x", "y"], ["z"], broadcast=1, **options)],
        [tensor("x", whole)] + ([] if is_known else [tensor("y", shape)]),
        ["z"],
        {"y": y} if is_known else {},
        opset=6,
    )
    first = len(whole) - len(shape) if axis is None else axis % len(whole)
    spread = y.reshape((*shape, *(1,) * (len(whole) - first - len(shape))))
    given = {} if is_known else {"y": y.reshape(shape or (1,))}
    found = await results(imported(proto), x=x, **given)
    np.testing.assert_allclose(found["z"], x - spread, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("shape", "options", "reason"),
    [
        ((5,), {}, "broadcast is 0"),
        ((4,), {"broadcast": 1}, "does not fit"),
        ((3, 4), {"broadcast": 1, "axis": 3}, "does not fit"),
        ((3, 4), {"broadcast": 1, "axis": -9}, "does not fit"),
        ((2, 3, 4, 5, 1, 1), {"broadcast": 1}, "does not fit"),
    ],
)
def test_operands_that_do_not_fit_are_errors(
    shape: tuple[int, ...], options: dict[str, int], reason: str
) -> None:
    proto = model(
        [node("Add", ["x", "y"], ["z"], **options)],
        [tensor("x", (2, 3, 4, 5)), tensor("y", shape)],
        ["z"],
        opset=6,
    )
    with pytest.raises(AsyncnnError, match=reason):
        imported(proto)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (node("Dropout", ["x"], ["y"]), "is_test is 0"),
        (
            node("Upsample", ["x"], ["y"], width_scale=2.0, height_scale=2.0),
            "older than operator set 7",
        ),
    ],
)
def test_what_means_something_else_today_is_refused(made: Any, reason: str) -> None:
    proto = model([made], [tensor("x", (1, 2, 4, 4))], ["y"], opset=6)
    with pytest.raises(UnsupportedOperatorError, match=reason):
        imported(proto)


async def test_dropout_in_its_test_phase_is_nothing() -> None:
    proto = written("float[3] x => float[] y", "y = Dropout<is_test=1>(x)", opset=6)
    found = await results(imported(proto), x=np.float32([1, 2, 3]))
    assert found["y"].tolist() == [1, 2, 3]
