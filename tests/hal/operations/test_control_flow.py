import pytest
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import BoundOperation, ValueNeededError
from asyncnn.hal.operations.signature import B8, F16, F32, Q8
from asyncnn.hal.types import (
    DataLocation,
    HalVersion,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    Subgraph,
)
from tests.hal.operations.building import check

X = Operand(F32, (2, 3))
OPEN = Operand(F32, (2, 0))
FLAG = Operand(B8, (1,))
QUANTIZED = Operand(Q8, (2,), scale=0.5, zero_point=7)
EXTENSION = Operand(0x10001, extra_params=b"a")


def body(inputs: list[Operand], outputs: list[Operand]) -> Subgraph:
    """Return a subgraph with a border only; checks look at nothing else."""
    count = len(inputs)
    return Subgraph(
        (*inputs, *outputs),
        (),
        tuple(range(count)),
        tuple(range(count, count + len(outputs))),
    )


def reference(index: int) -> Operand:
    return Operand(
        OperandType.SUBGRAPH,
        lifetime=OperandLifeTime.SUBGRAPH,
        location=DataLocation(offset=index),
    )


def check_if(
    inputs: list[Operand],
    outputs: list[Operand],
    *bodies: Subgraph,
    condition: Operand = FLAG,
) -> HalVersion:
    first = [condition, reference(0), reference(1)]
    return check(OperationType.IF, first + inputs, outputs, referenced=bodies)


def check_while(
    inputs: list[Operand], outputs: list[Operand], *bodies: Subgraph
) -> HalVersion:
    first = [reference(0), reference(1)]
    return check(OperationType.WHILE, first + inputs, outputs, referenced=bodies)


class TestIf:
    @pytest.mark.parametrize("inputs", [[], [X], [X, QUANTIZED]])
    def test_branches_take_what_it_passes(self, inputs: list[Operand]) -> None:
        branch = body(inputs, [X])
        assert check_if(inputs, [X], branch, branch) is HalVersion.V1_3

    def test_what_is_unknown_on_one_side_fits_anything(self) -> None:
        rankless = replace(X, dimensions=())
        check_if([OPEN], [X], body([X], [rankless]), body([rankless], [OPEN]))

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            (body([], [X]), "has 0 inputs, expected 1"),
            (body([X], [X, X]), "has 2 outputs, expected 1"),
            (body([X], [replace(X, type=F16)]), "outputs of which 0 differs in type"),
            (
                body([replace(X, dimensions=(2, 4))], [X]),
                "inputs of which 0 differs in dimensions: axis 1 is 4",
            ),
            (body([replace(X, dimensions=(2,))], [X]), "differs in dimensions: rank 1"),
        ],
    )
    def test_a_branch_unlike_the_operation_is_refused(
        self, other: Subgraph, message: str
    ) -> None:
        good = body([X], [X])
        with pytest.raises(InvalidArgumentError, match=rf"input 2 \(else\).*{message}"):
            check_if([X], [X], good, other)
        with pytest.raises(InvalidArgumentError, match=rf"input 1 \(then\).*{message}"):
            check_if([X], [X], other, good)

    @pytest.mark.parametrize(
        ("value", "change", "message"),
        [
            (QUANTIZED, {"scale": 0.25}, "scale or zero point"),
            (QUANTIZED, {"zero_point": 8}, "scale or zero point"),
            (EXTENSION, {"extra_params": b"b"}, "extra parameters"),
        ],
    )
    def test_values_keep_their_parameters(
        self, value: Operand, change: dict, message: str
    ) -> None:
        branch = body([], [replace(value, **change)])
        with pytest.raises(InvalidArgumentError, match=message):
            check_if([], [value], branch, branch)

    @pytest.mark.parametrize("dimensions", [(), (0,), (2,), (1, 1)])
    def test_the_condition_is_exactly_one_boolean(
        self, dimensions: tuple[int, ...]
    ) -> None:
        branch = body([], [X])
        condition = Operand(B8, dimensions)
        with pytest.raises(InvalidArgumentError, match=r"input 0 \(condition\)"):
            check_if([], [X], branch, branch, condition=condition)

    def test_a_missing_subgraph_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="refers to subgraph 1 of 1"):
            check_if([], [X], body([], [X]))

    def test_a_subgraph_operand_has_the_lifetime_of_one(self) -> None:
        branch = body([], [X])
        wrong = replace(reference(0), lifetime=OperandLifeTime.CONSTANT_COPY)
        with pytest.raises(InvalidArgumentError, match="has not the lifetime"):
            check(
                OperationType.IF,
                [FLAG, reference(0), wrong],
                [X],
                referenced=[branch, branch],
            )

    def test_a_subgraph_whose_border_does_not_exist_is_refused(self) -> None:
        branch = Subgraph((X,), (), (), (1,))
        with pytest.raises(InvalidArgumentError, match="that it does not have"):
            check_if([], [X], branch, branch)

    def test_it_has_an_output(self) -> None:
        branch = body([], [])
        with pytest.raises(InvalidArgumentError, match="1 or more outputs"):
            check_if([], [], branch, branch)


class TestWhile:
    def test_values_may_loop_be_state_or_be_only_read(self) -> None:
        values = [X, QUANTIZED, FLAG]
        condition = body(values, [FLAG])
        assert (
            check_while(values, [X], condition, body(values, [X, QUANTIZED]))
            is HalVersion.V1_3
        )

    @pytest.mark.parametrize(
        ("condition", "loop", "message"),
        [
            (body([X], []), body([X], [X]), "not one output"),
            (body([X], [FLAG, FLAG]), body([X], [X]), "not one output"),
            (
                body([X], [replace(FLAG, dimensions=(2,))]),
                body([X], [X]),
                "exactly one",
            ),
            (body([], [FLAG]), body([X], [X]), "has 0 inputs, expected 1"),
            (body([X], [FLAG]), body([X, X], [X]), "has 2 inputs, expected 1"),
            (body([X], [FLAG]), body([X], []), "for a loop with 1"),
            (body([X], [FLAG]), body([X], [X, X]), "1 inputs and 2 outputs"),
            (body([X], [FLAG]), body([X], [QUANTIZED]), "outputs of which 0 differs"),
        ],
    )
    def test_subgraphs_that_do_not_make_a_loop_are_refused(
        self, condition: Subgraph, loop: Subgraph, message: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            check_while([X], [X], condition, loop)

    def test_state_keeps_its_type(self) -> None:
        values = [X, QUANTIZED]
        with pytest.raises(InvalidArgumentError, match="looping outputs of which 1"):
            check_while(values, [X], body(values, [FLAG]), body(values, [X, X]))

    def test_values_have_a_known_size(self) -> None:
        condition, loop = body([OPEN], [FLAG]), body([OPEN], [OPEN])
        with pytest.raises(InvalidArgumentError, match=r"unknown dimensions \[2, 0\]"):
            check_while([OPEN], [OPEN], condition, loop)

    def test_scalars_may_loop(self) -> None:
        count = Operand(OperandType.INT32)
        check_while([count], [count], body([count], [FLAG]), body([count], [count]))


@pytest.mark.parametrize("type_", [OperationType.IF, OperationType.WHILE])
def test_results_of_control_flow_have_no_shape_before_execution(
    type_: OperationType,
) -> None:
    with pytest.raises(ValueNeededError):
        infer_shapes(BoundOperation(type_, (), ()))
