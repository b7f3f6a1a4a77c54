"""What was validated once is known again, and nothing else is."""

import gc
import threading
import weakref
from typing import Any

import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import HalVersion, Model
from asyncnn.hal.validate import model as model_rules
from asyncnn.hal.validate import validate_model, validating
from asyncnn.hal.validate.model import is_known
from asyncnn.hal.validate.operand import OperandRules
from asyncnn.tools.conformance.mutations.mutant import with_main, with_operand
from tests.hal.validate.chains import chain
from tests.hal.validate.samples import (
    extension_model,
    nested_model,
    open_loop_model,
    q8_model,
    refusal,
)

NEWEST = HalVersion.AIDL_V4


@pytest.fixture
def validations(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """The models whose operands were looked at."""
    seen: list[Model] = []

    def rules(model: Model, version: HalVersion) -> OperandRules:
        seen.append(model)
        return OperandRules(model, version)

    monkeypatch.setattr(model_rules, "OperandRules", rules)
    return seen


@pytest.mark.parametrize(
    "model",
    [q8_model(), nested_model(), extension_model(), chain(300, varied=True)],
    ids=["quantised", "control flow", "extension", "long"],
)
def test_a_model_is_looked_at_once(model: Model, validations: list[Model]) -> None:
    for _ in range(3):
        validate_model(model)
    assert len(validations) == 1
    assert list(validating(model)) == []


def test_each_version_has_rules_of_its_own(validations: list[Model]) -> None:
    model = extension_model()
    validate_model(model)
    assert "M15" in refusal(model, HalVersion.V1_1)
    validate_model(model, HalVersion.V1_3)
    assert len(validations) == 2


def test_an_equal_model_is_another_one(validations: list[Model]) -> None:
    model = q8_model()
    for each in (model, replace(model)):
        validate_model(each)
    assert len(validations) == 2


def test_a_refused_model_is_refused_again() -> None:
    model = with_operand(q8_model(), 0, scale=0.0)
    assert refusal(model) == refusal(model)


def test_a_model_that_was_half_validated_is_not_known() -> None:
    model = chain(300)
    steps = validating(model)
    next(steps)
    steps.close()
    assert not is_known(model, NEWEST)


def listed(model: Model, *fields: str) -> Model:
    changes: dict[str, Any] = {
        field: list(getattr(model.main, field)) for field in fields
    }
    return with_main(model, **changes)


@pytest.mark.parametrize(
    "field", ["operands", "operations", "input_indexes", "output_indexes"]
)
def test_what_can_change_is_looked_at_again(field: str) -> None:
    model = listed(q8_model(), field)
    validate_model(model)
    assert not is_known(model, NEWEST)
    getattr(model.main, field).clear()
    with pytest.raises(InvalidArgumentError):
        validate_model(model)


def test_dimensions_that_can_change_are_looked_at_again() -> None:
    dimensions: Any = [2, 3]
    model = with_operand(q8_model(), 3, dimensions=dimensions)
    validate_model(model)
    assert not is_known(model, NEWEST)
    dimensions[0] = -1
    assert "[M3]" in refusal(model)


@pytest.mark.parametrize(
    "changes",
    [{"operand_values": bytearray(10)}, {"pools": [*q8_model().pools]}],
    ids=["values", "pools"],
)
def test_a_model_with_other_parts_that_can_change_is_looked_at_again(
    changes: dict[str, Any],
) -> None:
    model = replace(q8_model(), **changes)
    validate_model(model)
    assert not is_known(model, NEWEST)


def test_inputs_of_an_operation_that_can_change_are_looked_at_again() -> None:
    model = q8_model()
    first, *rest = model.main.operations
    given: Any = list(first.inputs)
    model = with_main(model, operations=(replace(first, inputs=given), *rest))
    validate_model(model)
    given[0] = 99
    assert "[M8]" in refusal(model)


def test_a_known_model_is_not_kept_alive() -> None:
    model = q8_model()
    validate_model(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_model_in_the_place_of_a_known_one_is_looked_at() -> None:
    base = q8_model()
    wrong_main = with_operand(base, 0, scale=0.0).main
    for _ in range(100):
        model = replace(base)
        validate_model(model)
        place = id(model)
        del model
        wrong = replace(base, main=wrong_main)
        assert "[M4]" in refusal(wrong)
        if id(wrong) == place:
            return
    pytest.fail("no model came to lie where another one had been")


def test_what_is_no_model_is_not_known() -> None:
    nothing: Any = None
    assert not is_known(nothing, NEWEST)
    with pytest.raises(InvalidArgumentError, match="malformed"):
        validate_model(nothing)


def test_what_only_a_runtime_takes_is_not_known_to_drivers() -> None:
    model = open_loop_model()
    for _ in range(2):
        validate_model(model, runtime_only_features=True)
        with pytest.raises(InvalidArgumentError, match=r"unknown dimensions.*\[M9\]"):
            validate_model(model)
    assert not is_known(model, NEWEST)
    assert is_known(model, NEWEST, runtime_only_features=True)


def test_what_a_runtime_has_validated_is_known_to_drivers_that_take_it() -> None:
    model = nested_model()
    for _ in range(2):  # the second time, the ways of using its operations are known
        validate_model(model, runtime_only_features=True)
        assert is_known(model, NEWEST)
        model = nested_model()


def test_threads_may_validate_the_same_models() -> None:
    models = [chain(50) for _ in range(20)]
    wrong = with_operand(chain(50), 3, scale=1.0)
    failures: list[BaseException] = []

    def validate() -> None:
        try:
            for model in models:
                validate_model(model)
                with pytest.raises(InvalidArgumentError):
                    validate_model(wrong)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=validate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert all(is_known(model, NEWEST) for model in models)
