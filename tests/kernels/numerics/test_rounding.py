"""Lines against the rules that they stand for, sum by sum."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncnn.kernels.rounding import FixedPointRounding, RealRounding, fit

RULES = [FixedPointRounding, RealRounding]

MULTIPLIERS = [
    *(2.0**-4, 2.0**-3, 0.25, 0.5, 1.0, 2.0, 3.0),
    *(0.24993, 0.25117, 0.037153, 0.1 / 3, 0.70711, 0.999991, 1.000113, 17.317),
]


def column(*values):
    return np.array(values, np.int64)[:, np.newaxis]


def assert_equal_within(rule, line, fold, first, last, lift, sums) -> None:
    lifted = 0 if line.half is not None else lift
    np.testing.assert_array_equal(
        np.clip(line(sums - fold), first + lifted, last + lifted) - lifted,
        np.clip(rule(sums), first, last),
    )


def sums_around(real: float, first: int, last: int):
    """Every sum whose result is in the range, and some more."""
    ends = (first - 2) / real, (last + 2) / real
    return np.arange(int(ends[0]) - 3, int(ends[1]) + 4)[np.newaxis]


@pytest.mark.parametrize("real", MULTIPLIERS)
@pytest.mark.parametrize(("first", "last"), [(0, 255), (-128, 127), (-200, 55)])
@pytest.mark.parametrize("make_rule", RULES)
def test_a_line_equals_its_rule_everywhere(make_rule, first, last, real) -> None:
    rule = make_rule(np.array([real]))
    line = fit(rule, column(77), first, last, 256)
    sums = sums_around(real, first, last)
    assert_equal_within(rule, line, 77, first, last, 256, sums)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(RULES),
    st.floats(2.0**-12, 1.5),
    st.integers(-(2**24), 2**24),
    st.integers(-255, 0),
)
def test_any_line_equals_its_rule(make_rule, real, fold, first) -> None:
    rule = make_rule(np.array([real]))
    line = fit(rule, column(fold), first, first + 255, 256)
    if make_rule is RealRounding:
        assume(line is not None)
    steps = np.arange(first - 2, first + 258)
    near = np.concatenate([np.rint((steps - 0.5) / real) + d for d in range(-3, 4)])
    sums = np.concatenate([near, [-(2**31) + 1, 2**31 - 1]]).astype(np.int64)
    assert_equal_within(rule, line, fold, first, first + 255, 256, sums[np.newaxis])


class Unsearchable(FixedPointRounding):
    """A rule whose steps nobody may look for."""

    def first_sums(self, steps):
        raise AssertionError("the line is derived")

    __call__ = first_sums


@pytest.mark.unrecorded
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.floats(2.0**-9, 1.0 - 2.0**-31), min_size=1, max_size=5),
    st.lists(st.integers(-(2**12), 2**12), min_size=5, max_size=5),
    st.sampled_from([(0, 255, 0), (0, 255, 128), (-128, 127, 256), (-255, 0, 255)]),
)
def test_usual_lines_equal_their_rules_without_a_search(
    reals: list[float], folds: list[int], limits: tuple[int, int, int]
) -> None:
    first, last, lift = limits
    rule, fold = FixedPointRounding(np.array(reals)), column(*folds[: len(reals)])
    assume(np.abs(fold * rule.scale).max() < 600)
    line = fit(Unsearchable(np.array(reals)), fold, first, last, lift)
    assert line is not None
    steps = np.arange(first + 1, last + 1)
    at = rule.first_sums(steps)
    assert at is not None
    sums = np.concatenate([at - 1, at], axis=1)
    assert_equal_within(rule, line, fold, first, last, lift, sums)


def test_a_line_that_rounding_could_spoil_is_not_derived() -> None:
    rule = FixedPointRounding(np.array([0.0371]))
    usual, extreme = (fit(rule, column(fold), 0, 255, 0) for fold in (50, 2**30))
    with pytest.raises(AssertionError, match="derived"):
        fit(Unsearchable(np.array([0.0371])), column(2**30), 0, 255, 0)
    for fold, line in ((50, usual), (2**30, extreme)):
        assert line is not None
        sums = sums_around(0.0371, 0, 255)
        assert_equal_within(rule, line, fold, 0, 255, 0, sums)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(2.0**-31, 0.99999), min_size=1, max_size=5),
    st.integers(-40_000, 40_000),
    st.integers(1, 300),
)
def test_first_sums_are_where_the_rule_takes_its_steps(
    reals: list[float], first: int, count: int
) -> None:
    rule = FixedPointRounding(np.array(reals))
    steps = np.arange(first, first + count)
    at = rule.first_sums(steps)
    assume(at is not None)
    assert at is not None
    lowest, beyond = -(2**31) + 1, 2**31
    assert at.min() >= lowest
    assert at.max() <= beyond
    reached = rule(np.minimum(at, beyond - 1)) >= steps
    before = rule(np.maximum(at - 1, lowest)) < steps
    np.testing.assert_array_equal(reached, at < beyond)
    assert (before | (at == lowest)).all()


@pytest.mark.parametrize("reals", [[2.0**-3], [0.5, 1.0 - 2.0**-31], [0.3, 2.0**-20]])
def test_usual_multipliers_need_no_search(reals: list[float]) -> None:
    rule = FixedPointRounding(np.array(reals))
    assert rule.first_sums(np.arange(-128, 128)) is not None


@pytest.mark.parametrize("reals", [[0.0, 0.5], [1.0], [17.0, 0.3]])
def test_other_multipliers_do(reals: list[float]) -> None:
    rule = FixedPointRounding(np.array(reals))
    assert rule.first_sums(np.arange(-128, 128)) is None


def test_channels_have_their_own_multipliers_and_folds() -> None:
    rule = FixedPointRounding(np.array([0.3, 0.0, 0.01, 2.0**-30]))
    fold = column(5, -7, 123456, 2**30)
    line = fit(rule, fold, 0, 255, 0)
    sums = np.tile(np.arange(-3000, 30000), (4, 1))
    assert_equal_within(rule, line, fold, 0, 255, 0, sums)


def test_one_multiplier_serves_channels_with_different_folds() -> None:
    rule = RealRounding(np.array([0.3]))
    fold = column(5, -7, 123456)
    line = fit(rule, fold, -128, 127, 128)
    sums = np.tile(np.arange(-1000, 1000), (3, 1))
    assert_equal_within(rule, line, fold, -128, 127, 128, sums)


def test_results_of_one_sign_need_no_second_term() -> None:
    rule = FixedPointRounding(np.array([0.0371]))
    assert fit(rule, column(0), 0, 255, 0).half is None
    assert fit(rule, column(0), -128, 127, 128).half is not None


def test_a_range_of_one_value_is_a_line() -> None:
    rule = RealRounding(np.array([0.3]))
    assert fit(rule, column(0), 5, 5, 0) is not None


def test_a_rule_that_rounds_products_onto_halves_may_have_no_line() -> None:
    assert fit(RealRounding(np.array([0.7])), column(0), -128, 127, 128) is None


@pytest.mark.parametrize("make_rule", RULES)
def test_huge_products_saturate(make_rule) -> None:
    rounded = make_rule(np.array([1e15]))(np.array([[-(2**31) + 1, 0, 2**31 - 1]]))
    assert rounded[0, 0] < -(2**28)
    assert rounded[0, 1] == 0
    assert rounded[0, 2] > 2**28
