"""The prescan in C says of no model what its twin in Python would not."""

import importlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import force_setattr, replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import DataLocation, HalVersion, Model, Operand, OperationType
from asyncnn.hal.validate import model as model_rules
from asyncnn.hal.validate import validate_model
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.tools.conformance.mutations.mutant import with_main
from asyncnn.tools.conformance.random_graphs.families import graphs
from asyncnn.tools.fuzz.twins import same_verdict
from tests.hal.validate.chains import F32, chain
from tests.hal.validate.samples import (
    extension_model,
    nested_model,
    open_loop_model,
    q8_model,
)
from tests.hal.validate.test_garbage import GARBAGE, corrupted, per_channel_model

NAME = "asyncnn.hal.validate._prescan"
SOURCE = Path(model_rules.__file__).with_name("_prescan.c")
BUILT = importlib.util.find_spec(NAME) is not None
PRESCANS = model_rules._prescans
needs_compiled = pytest.mark.skipif(PRESCANS is None, reason="no prescan was compiled")
NEWEST = HalVersion.AIDL_V4


def doubled(model: Model) -> Model:
    """Return a model with a copy of its main subgraph beside that."""
    main = model.main
    count = len(main.operands)

    def moved(indexes: Iterable[int]) -> tuple[int, ...]:
        return tuple(index + count for index in indexes)

    operations = [
        replace(each, inputs=moved(each.inputs), outputs=moved(each.outputs))
        for each in main.operations
    ]
    return with_main(
        model,
        operands=main.operands * 2,
        operations=(*main.operations, *operations),
        input_indexes=(*main.input_indexes, *moved(main.input_indexes)),
        output_indexes=(*main.output_indexes, *moved(main.output_indexes)),
    )


MODELS = {
    "quantised": q8_model(),
    "per channel": per_channel_model(),
    "control flow": nested_model(),
    "open loop": open_loop_model(),
    "extension": extension_model(),
    "chain": chain(2),
}


@needs_compiled
@pytest.mark.parametrize("version", list(HalVersion))
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_model_with_its_copy_gets_the_same_answer(
    model: Model, version: HalVersion
) -> None:
    for is_runtime in (False, True):
        same_verdict(doubled(model), version, runtime_only_features=is_runtime)


_GARBAGE = tuple(
    each for each in GARBAGE if not (isinstance(each, float) and each == 0)
)
"""Python takes that for the 0 of FLOAT32 where it has seen one, which it then is."""


def ruined(model: Model, choose: random.Random) -> Model:
    """Return a model with something else in one field of what comes after its middle.

    That is garbage, or what the field has elsewhere in the model.
    """
    main = model.main
    field = choose.choice(("operands", "operations"))
    items = list(getattr(main, field))
    index = choose.randrange(len(items) // 2, len(items))
    name = choose.choice(items[index].__struct_fields__)
    elsewhere = [getattr(each, name) for each in items]
    value = choose.choice((choose.choice(_GARBAGE), choose.choice(elsewhere)))
    if name == "location" and choose.random() < 0.7:
        part = choose.choice(DataLocation.__struct_fields__)
        given = choose.choice((*_GARBAGE, *range(9)))
        value = replace(items[index].location, **{part: given})
    elif isinstance(value, tuple) and value and choose.random() < 0.7:
        place = choose.randrange(len(value))
        given = choose.choice((*_GARBAGE, *range(len(main.operands))))
        value = (*value[:place], given, *value[place + 1 :])
    items[index] = replace(items[index], **{name: value})
    return with_main(model, **{field: tuple(items)})


@needs_compiled
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_garbage_gets_the_same_words(model: Model) -> None:
    choose = random.Random(1)
    twice = doubled(model)
    said = {same_verdict(ruined(twice, choose))[0] for _ in range(150)}
    assert len(said) > 10


@needs_compiled
@pytest.mark.exhaustive
@pytest.mark.parametrize("version", [HalVersion.V1_0, HalVersion.V1_3, NEWEST])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_any_garbage_gets_the_same_words(model: Model, version: HalVersion) -> None:
    for wrong in corrupted(doubled(model)):
        same_verdict(wrong, version)


def check_random(model: Model, seed: int) -> None:
    twice = doubled(model)
    assert same_verdict(twice)[1]
    choose = random.Random(seed)
    for _ in range(10):
        same_verdict(ruined(twice, choose))


@needs_compiled
@settings(max_examples=15, deadline=None)
@given(graph=graphs(max_operations=4), seed=st.integers(0, 1 << 30))
def test_random_graphs_get_the_same_answer(graph: Any, seed: int) -> None:
    check_random(graph.named.model, seed)


@needs_compiled
@pytest.mark.exhaustive
@settings(max_examples=2_000, deadline=None)
@given(graph=graphs(), seed=st.integers(0, 1 << 30))
def test_many_random_graphs_get_the_same_answer(graph: Any, seed: int) -> None:
    check_random(graph.named.model, seed)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What Python looked at, of a prescan or without one."""
    calls: list[int] = []
    for owner, name in (
        (model_rules.OperandRules, "check"),
        (model_rules._Signatures, "look_into"),
        (model_rules._Signatures, "checking"),
        (model_rules.GraphRules, "checking_forms"),
        (model_rules.GraphRules, "checking_order"),
        (model_rules.GraphRules, "checking_consumers"),
    ):
        asked = getattr(owner, name)

        def counted(
            *args: Any, _asked: Callable[..., object] = asked, **given: Any
        ) -> object:
            calls.append(1)
            return _asked(*args, **given)

        monkeypatch.setattr(owner, name, counted)
    return calls


def layers(count: int) -> Model:
    """Return dense layers, whose sizes are compared by a rule of theirs."""
    builder = ModelBuilder()
    value = builder.input("x", F32, (1, 4))
    weights, bias = np.zeros((4, 4), np.float32), np.zeros(4, np.float32)
    for _ in range(count):
        constants = map(builder.constant, (weights, bias))
        inputs = [value, *constants, builder.scalar(0)]
        result = Operand(F32, (1, 4))
        value = builder.operation(OperationType.FULLY_CONNECTED, inputs, result)
    builder.output(value, "y")
    return builder.build().model


@needs_compiled
@pytest.mark.parametrize("make", [chain, layers])
def test_python_is_asked_once_for_what_is_alike(
    make: Callable[[int], Model], asked: list[int]
) -> None:
    validate_model(make(400))
    assert 0 < len(asked) <= 20


@needs_compiled
def test_too_many_kinds_are_left_to_python(asked: list[int]) -> None:
    model = chain(400, varied=True)
    assert same_verdict(model)[1]
    operation = replace(model.main.operations[399], inputs=(0, 2, 2))
    operations = (*model.main.operations[:399], operation)
    assert "operation 399" in same_verdict(with_main(model, operations=operations))[0]


@needs_compiled
def test_operations_of_too_many_kinds_are_each_asked_for(asked: list[int]) -> None:
    builder = ModelBuilder()
    given = builder.input("x", F32, (1,)), builder.input("y", F32, (2,))
    axis = builder.scalar(0)
    joined = [[given[number >> bit & 1] for bit in range(9)] for number in range(300)]
    for number, inputs in enumerate([*joined, [given[0]] * 100]):
        result = Operand(F32, (0,))
        made = builder.operation(OperationType.CONCATENATION, [*inputs, axis], result)
        builder.output(made, str(number))
    model = doubled(builder.build().model)
    validate_model(replace(model))
    assert 350 < len(asked) < 400
    assert same_verdict(model)[1]


class Odd(int):
    """A number that says of itself that it equals all others."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@needs_compiled
@pytest.mark.parametrize(
    "value", [True, Odd(1), Odd(99), 1 << 64, -(1 << 64), 1.0, None], ids=repr
)
@pytest.mark.parametrize("name", ["inputs", "outputs"])
def test_odd_indexes_get_the_same_words(name: str, value: Any) -> None:
    model = chain(8)
    operations = list(model.main.operations)
    given = getattr(operations[6], name)
    operations[6] = replace(operations[6], **{name: (value, *given[1:])})
    same_verdict(with_main(model, operations=tuple(operations)))


@needs_compiled
def test_what_changes_while_python_is_asked_is_never_read_from_what_is_gone() -> None:
    class Changing(float):
        def __hash__(self) -> int:
            for each in model.main.operands:
                force_setattr(each, "dimensions", (1000 + len(changed),))
                force_setattr(each, "location", DataLocation(0, 1 << 40, 1 << 40))
            for operation in model.main.operations:
                force_setattr(operation, "inputs", (1 << 40,) * 70)
                force_setattr(operation, "outputs", None)
            changed.append(1)
            return 0

    changed: list[int] = []
    base = chain(300)
    operands = tuple(replace(each) for each in base.main.operands)
    operations = tuple(replace(each) for each in base.main.operations)
    model = with_main(base, operands=operands, operations=operations)
    force_setattr(operands[40], "scale", Changing(0))
    with pytest.raises(InvalidArgumentError):
        validate_model(model)
    assert changed


def untaught() -> Any:
    """Return the module as it is before it has learned anything."""
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_compiled
class TestMisuse:
    """What only a mistake of ours could do to it."""

    def test_operations_come_after_operands(self) -> None:
        main = chain(4).main
        prescan = PRESCANS.Prescan(main.operands, main.operations)
        assert prescan.operations(9) == -1
        with pytest.raises(ValueError, match="looked at"):
            prescan.connect(bytes(len(main.operands)))
        while prescan.operands(3):
            pass
        for wrong in (b"", bytes(99)):
            with pytest.raises(ValueError, match="looked at"):
                prescan.connect(wrong)
        assert not prescan.is_ordered

    @pytest.mark.parametrize("wrong", [([], ()), ((), []), (None, None), ()])
    def test_it_is_of_tuples(self, wrong: tuple[object, ...]) -> None:
        with pytest.raises(TypeError):
            PRESCANS.Prescan(*wrong)

    def test_garbage_instead_of_structs_is_a_doubt(self) -> None:
        prescan = PRESCANS.Prescan(GARBAGE, GARBAGE)
        assert prescan.operands(1 << 40) == 0
        assert prescan.alone_operands == list(range(len(GARBAGE)))
        assert not prescan.are_structs
        prescan.connect(bytes(len(GARBAGE)))
        assert prescan.operations(9) == -1

    @pytest.mark.parametrize("wrong", [None, "", 1 << 80, -(1 << 80), 1.5])
    def test_other_numbers_are_refused(self, wrong: object) -> None:
        main = chain(4).main
        prescan = PRESCANS.Prescan(main.operands, main.operations)
        for call in (prescan.operands, prescan.operations, prescan.greatest_offset):
            with pytest.raises((TypeError, OverflowError)):
                call(wrong)
        for index in (-1, 0, len(main.operands), 1 << 40):
            with pytest.raises(IndexError):
                prescan.greatest_offset(index)
        assert prescan.operands(-1) == len(main.operands)

    def test_its_lists_are_only_for_reading(self) -> None:
        main = chain(400, varied=True).main
        prescan = PRESCANS.Prescan(main.operands, main.operations)
        while prescan.operands(9) > 0:
            prescan.alone_operands.clear()
        assert prescan.operands(9) == -1
        assert prescan.greatest_offset(0) == 0

    @pytest.mark.parametrize("sample", [SimpleNamespace(type=1), 1, None])
    def test_it_learns_from_structs_alone(self, sample: object) -> None:
        other = untaught()
        with pytest.raises(RuntimeError, match="learn"):
            other.Prescan((), ())
        with pytest.raises((AttributeError, ValueError)):
            other.learn(*[sample] * 3, *[int] * 3, 7)
        with pytest.raises(RuntimeError, match="learn"):
            other.Prescan((), ())
        with pytest.raises(RuntimeError, match="already"):
            PRESCANS.learn(*[sample] * 3, *[int] * 3, 7)

    def test_python_does_it_where_fields_lie_elsewhere(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = untaught()
        unlike = SimpleNamespace(type=object(), inputs=object(), outputs=object())
        monkeypatch.setattr(model_rules, "_sample", lambda _: unlike)
        assert model_rules._taught(other) is None

    def test_references_are_counted(self) -> None:
        main = chain(30).main
        counted = (None, True, False, main.operands, main.operations, PRESCANS.Prescan)
        before = [sys.getrefcount(each) for each in counted]
        for _ in range(300):
            prescan = PRESCANS.Prescan(main.operands, main.operations)
            prescan.operands(99)
            prescan.connect(bytes(3) + bytes([1]) * 30)
            prescan.operations(99)
            assert prescan.is_ordered
            assert prescan.is_counted
        del prescan
        after = [sys.getrefcount(each) for each in counted]
        assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))
