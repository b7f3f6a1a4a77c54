"""What has been checked once is looked up, and looking up changes no answer."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Model,
    Operand,
    OperandType,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.validate import graph, validate_model, validating
from asyncnn.hal.validate import model as model_rules
from asyncnn.hal.validate.operand import OperandRules
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.tools.conformance.mutations.mutant import with_operand, with_operation
from tests.hal.validate.chains import chain
from tests.hal.validate.samples import extension_model, nested_model, q8_model
from tests.hal.validate.test_garbage import corrupted, per_channel_model

LENGTH = 1_000


class Calls:
    """Counts the calls of a function that it replaces."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.count = 0
        self._function = function

    def __call__(self, *args: Any, **settings: Any) -> Any:
        self.count += 1
        return self._function(*args, **settings)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls of what checks an operand or an operation in every detail."""
    calls = Calls(OperandRules.check)
    monkeypatch.setattr(OperandRules, "check", lambda *args: calls(*args))
    wholly = Calls(model_rules.check_operation)

    def counted(*args: Any, **settings: Any) -> Any:
        calls.count += 1
        return wholly(*args, **settings)

    monkeypatch.setattr(model_rules, "check_operation", counted)
    return calls


@pytest.fixture
def without_lookups(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what makes validation check everything in every detail."""

    def patch() -> None:
        monkeypatch.setattr(model_rules, "_prescans", None)
        monkeypatch.setattr(OperandRules, "_prescan", lambda *_: None)
        monkeypatch.setattr(graph, "_are_well_formed", lambda *_: False)
        monkeypatch.setattr(model_rules, "known_pattern", lambda _: None)

    return patch


def test_operations_that_are_alike_are_checked_once(checks: Calls) -> None:
    validate_model(chain(LENGTH))
    assert 0 < checks.count < 10


def test_of_operations_that_differ_only_the_operands_are_checked(checks: Calls) -> None:
    validate_model(chain(LENGTH))
    checks.count = 0
    validate_model(chain(LENGTH, varied=True))
    assert checks.count <= LENGTH + 3


@pytest.mark.alone
@pytest.mark.parametrize("varied", [False, True])
def test_an_operation_costs_a_few_steps_of_the_interpreter(varied: bool) -> None:
    model = chain(LENGTH, varied=varied)
    ratios = []
    for _ in range(10):
        step = duration_of(lambda: steps(LENGTH)) / LENGTH
        taken = duration_of(lambda: validate_model(replace(model))) / LENGTH
        ratios.append(taken / step)
    assert min(ratios) < 80


def steps(count: int) -> int:
    """Look a tuple up ``count`` times."""
    table = {(index, index): index for index in range(16)}
    return sum(table[index & 15, index & 15] for index in range(count))


def duration_of(work: Callable[[], object]) -> float:
    before = time.thread_time()
    work()
    return time.thread_time() - before


@pytest.mark.parametrize("varied", [False, True])
def test_validation_can_be_left_every_hundred_operations(varied: bool) -> None:
    model = chain(LENGTH, varied=varied)
    pauses = sum(1 for _ in validating(model))
    operands, operations = len(model.main.operands), len(model.main.operations)
    assert pauses >= operands // 100 + operations // 100


def test_validation_bit_by_bit_refuses_the_same() -> None:
    model = with_operation(chain(LENGTH), LENGTH - 1, inputs=(0, 1, 2))
    with pytest.raises(InvalidArgumentError) as whole:
        validate_model(model)
    with pytest.raises(InvalidArgumentError) as parts:
        for _ in validating(model):
            pass
    assert str(parts.value) == str(whole.value)


def twin(model: Model, **changes: object) -> Model:
    """Return a chain's model, whose operand 4, otherwise like 3, has ``changes``."""
    return with_operand(model, 4, **changes)


class Whole(float):
    """A number that equals an integer, and is none."""


@pytest.mark.parametrize(
    "changes",
    [
        {"dimensions": (2, 1.0)},
        {"dimensions": (2.0, 1)},
        {"zero_point": 0.0},
        {"zero_point": Whole(0)},
        {"location": DataLocation(0, 0.0, 0)},  # type: ignore[arg-type]
        {"location": DataLocation(0.0, 0, 0)},  # type: ignore[arg-type]
        {"location": DataLocation(0, 0, 0.0)},  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_what_equals_a_legal_operand_is_not_taken_for_one(
    changes: dict[str, object],
) -> None:
    model = chain(LENGTH)
    validate_model(twin(model))
    with pytest.raises(InvalidArgumentError, match=r"operand 4 .*\[M[345]\]"):
        validate_model(twin(model, **changes))


def test_an_axis_that_equals_a_legal_one_is_not_taken_for_one() -> None:
    model = per_channel_model()
    params = SymmPerChannelQuantParams((1.0, 2.0), 0.0)  # type: ignore[arg-type]
    alike = model.main.operands[3]
    both = with_operand(model, 5, **{f: getattr(alike, f) for f in ("type", "scale")})
    both = with_operand(both, 5, zero_point=0, extra_params=params)
    with pytest.raises(InvalidArgumentError, match=r"operand 5 .*channel axis"):
        validate_model(both)


@pytest.mark.parametrize("scales", [[1.0, 2.0], (1.0, np.array(2.0))])
def test_a_model_whose_scales_can_change_is_not_remembered(scales: Any) -> None:
    builder = ModelBuilder()
    quantized = OperandType.TENSOR_QUANT8_ASYMM
    x = builder.input("x", quantized, (1, 1, 1, 3), scale=1.0)
    weights = builder.constant(
        np.zeros((2, 1, 1, 3), np.int8),
        OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        channel_quant=SymmPerChannelQuantParams((1.0, 2.0), 0),
    )
    bias = builder.constant(np.zeros(2, np.int32))
    window = map(builder.scalar, (1, 1, 1, 0))
    y = Operand(quantized, (1, 1, 1, 2), scale=4.0)
    inputs = [x, weights, bias, *window]
    builder.output(builder.operation(OperationType.CONV_2D, inputs, y), "y")
    model = builder.build().model
    validate_model(model)
    assert model_rules.is_known(model, HalVersion.AIDL_V4)
    params = SymmPerChannelQuantParams(scales, 0)
    model = with_operand(model, weights, extra_params=params)
    validate_model(model)
    assert not model_rules.is_known(model, HalVersion.AIDL_V4)


def test_bytes_are_not_taken_for_a_view_of_them() -> None:
    model = extension_model(extra_params=b"opaque")
    operands = model.main.operands
    view = replace(operands[0], extra_params=memoryview(b"opaque"))  # type: ignore[arg-type]
    main = replace(model.main, operands=(*operands, view))
    with pytest.raises(InvalidArgumentError, match=r"operand 2 .*scales per channel"):
        validate_model(replace(model, main=main))


def test_an_index_that_equals_a_legal_one_is_not_taken_for_one() -> None:
    model = with_operation(chain(LENGTH), 4, outputs=(7.0,))
    with pytest.raises(InvalidArgumentError, match="malformed model"):
        validate_model(model)


def refusals(models: Iterator[Model], version: HalVersion) -> Iterator[str]:
    for each in models:
        try:
            validate_model(each, version)
        except InvalidArgumentError as error:
            yield re.sub("0x[0-9a-f]+", "its place", error.message)
        else:
            yield ""


@pytest.mark.unrecorded
@pytest.mark.parametrize("version", [HalVersion.V1_0, HalVersion.AIDL_V4])
@pytest.mark.parametrize(
    "model",
    [q8_model(), per_channel_model(), nested_model(), extension_model()],
    ids=["quantised", "per channel", "control flow", "extension"],
)
def test_answers_are_those_without_looking_anything_up(
    model: Model, version: HalVersion, without_lookups: Callable[[], None]
) -> None:
    quick = list(refusals(corrupted(model), version))
    without_lookups()
    slow = list(refusals(corrupted(model), version))
    assert quick == slow
    assert len(set(quick)) > 2
