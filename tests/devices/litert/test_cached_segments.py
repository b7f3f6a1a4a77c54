"""Models of the accelerated engine from caches: the same, without being written."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.devices.litert import delegate as delegates
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import Engine
from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.plan_execution import run_straight
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    Model,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.runtime.model_file import load
from tests.devices.cache.folder import Folder
from tests.devices.cache.models import dense
from tests.engine.test_control_flow import IN, OUT, if_model, operand
from tests.networks import F32

MODELS = ("kws_ref_model", "vww_96_int8", "vww_96_float", "person_detect", "ad01_fp32")
DAMAGES = 100


@pytest.fixture
def folder(tmp_path: Path, engine: Engine) -> Folder:
    return Folder(tmp_path, LiteRtDelegate(engine, tmp_path / "weights"))


@pytest.fixture
def nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(*args: object) -> None:
        raise AssertionError("something is written")

    with monkeypatch.context() as patch:
        for name in ("written", "write_file"):
            patch.setattr(delegates, name, fail)
        yield


def outputs_of(program: Program) -> list[Array]:
    plan = program.plan(program.declared_shapes)
    random_ = np.random.default_rng(0)
    arrays = [
        random_.integers(0, 100, port.shape).astype(port.dtype) for port in plan.inputs
    ]
    return run_straight(program, plan, arrays, [None] * len(plan.outputs))


def models(shared: Path) -> Iterator[Model]:
    yield dense(quantized=True).model
    yield dense(quantized=False).model
    for name in MODELS:
        yield load(shared / "models" / f"{name}.tflite", strict=True).model


def test_they_are_loaded_as_they_were_written(
    folder: Folder, shared: Path, request: pytest.FixtureRequest
) -> None:
    saved = []
    for number, model in enumerate(models(shared)):
        own = Folder(folder.model.parent, folder.delegate)
        own.model, own.data = (
            path.with_suffix(f".{number}") for path in (folder.model, folder.data)
        )
        saved.append((own, outputs_of(own.save(model))))
    request.getfixturevalue("nothing_is_written")
    for own, want in saved:
        for may_map in (True, False):
            program = own.load(may_map=may_map).program
            for got, expected in zip(outputs_of(program), want, strict=True):
                np.testing.assert_array_equal(got, expected)
            del program


def test_what_was_loaded_can_be_saved_again(folder: Folder, shared: Path) -> None:
    model = load(shared / "models" / "kws_ref_model.tflite", strict=True).model
    want = outputs_of(folder.save(model))
    first = folder.load().program.records()
    second = folder.load().program.records()
    assert first.keys() == second.keys()
    for number, record in first.items():
        for one, other in zip(record.steps, second[number].steps, strict=True):
            assert one.decided
            assert one.decided == other.decided
    for got, expected in zip(outputs_of(folder.load().program), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_what_was_loaded_tells_its_longest_operations(
    folder: Folder, shared: Path
) -> None:
    saved = folder.save(
        load(shared / "models" / "vww_96_float.tflite", strict=True).model
    )
    loaded = folder.load().program
    told, again = (
        [step.longest_name for step in program.plan(program.declared_shapes).steps]
        for program in (saved, loaded)
    )
    assert told == again
    assert all("CONV_2D (operation" in each for each in told)


def test_damaged_data_give_wrong_numbers_at_worst(folder: Folder, shared: Path) -> None:
    """What is packed from damaged data is that of the damaged data."""
    model = load(shared / "models" / "vww_96_int8.tflite", strict=True).model
    want = outputs_of(folder.save(model))
    whole = folder.data.read_bytes()
    rng = random.Random(4)
    loaded = 0
    for number in range(DAMAGES):
        data = bytearray(whole)
        at = rng.randrange(len(data))
        data[at : at + 64] = rng.randbytes(len(data[at : at + 64]))
        folder.data.write_bytes(data)
        if number % 2:  # weights are packed of what is found then
            for path in (folder.model.parent / "weights").glob("*"):
                path.unlink()
        try:
            program = folder.load().program
        except GeneralFailureError:
            continue
        for got, expected in zip(outputs_of(program), want, strict=True):
            assert got.shape == expected.shape
        loaded += 1
        del program
    assert loaded > DAMAGES / 2


def test_branches_that_differ_in_their_weights_alone_keep_their_own(
    tmp_path: Path, engine: Engine
) -> None:
    width = 1100
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(width, width)).astype(np.float32) for _ in range(2)]
    folder = Folder(tmp_path, LiteRtDelegate(engine, tmp_path / "weights"))
    folder.save(choice_of_layers(weights))
    x = rng.normal(size=(1, width)).astype(np.float32)
    for _ in range(2):  # packed, then found
        program = folder.load().program
        plan = program.plan(program.declared_shapes)
        for number, matrix in enumerate(weights):
            out = np.empty((1, width), np.float32)
            condition = np.array([number == 0])
            PlanExecution(program, plan, [condition, x], [out]).advance()
            np.testing.assert_allclose(out, x @ matrix.T, rtol=1e-3, atol=1e-3)
        del program, plan


def choice_of_layers(weights: list[Array]) -> Model:
    """Return a model that chooses one of two layers, by its first input."""
    (width, _) = weights[0].shape
    values = bytearray(np.zeros(width + 16, np.float32))

    def layer(matrix: Array) -> Subgraph:
        at = len(values)
        values.extend(matrix.tobytes())
        places = DataLocation(0, at, matrix.nbytes), DataLocation(0, 0, 4 * width)
        constant = OperandLifeTime.CONSTANT_COPY
        return Subgraph(
            (
                operand(F32, IN, (1, width), 1),
                replace(operand(F32, constant, matrix.shape, 1), location=places[0]),
                replace(operand(F32, constant, (width,), 1), location=places[1]),
                replace(
                    operand(OperandType.INT32, constant, (), 1),
                    location=DataLocation(0, 0, 4),
                ),
                operand(F32, OUT, (1, width)),
            ),
            (Operation(OperationType.FULLY_CONNECTED, (0, 1, 2, 3), (4,)),),
            (0,),
            (4,),
        )

    branches = tuple(map(layer, weights))
    return Model(if_model((1, width)).main, branches, bytes(values))
