"""Numbers as text, and where they lie on an axis."""

import math

import pytest

from asyncnn.tools.pages.scales import DASH, decades_of, figure, measure, scale_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (7, "7"),
        (7.0, "7.00"),
        (1234.4, "1234"),
        (12345.6, "12 346"),
        (1_048_576, "1 048 576"),
        (-12345, "-12 345"),
        (0.012345, "0.0123"),
        (1e-7, "1.00e-07"),
        (1e20, "1.00e+20"),
        (None, DASH),
        (math.nan, DASH),
    ],
)
def test_figures(value: float | None, text: str) -> None:
    assert figure(value).replace("\u202f", " ") == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (999.6, "us", "1 ms"),
        (999.4, "us", "999 us"),
        (0.25, "us", "250 ns"),
        (0.1, "ns", "0.1 ns"),
        (1_500_000, "us", "1.5 s"),
        (90, "s", "90 s"),
        (-2000, "ns", "-2 us"),
        (2**20, "bytes", "1 MiB"),
        (512, "B", "512 B"),
        (0, "us", "0 us"),
        (3.14159, "J", "3.14 J"),
        (42, "", "42"),
        (None, "us", DASH),
    ],
)
def test_measures_are_in_the_unit_that_reads_best(
    value: float | None, unit: str, text: str
) -> None:
    assert measure(value, unit).replace("\u202f", " ") == text


@pytest.mark.parametrize(
    "values",
    [
        [0.0],
        [5.0, 5.0],
        [1e-9, 1e9],
        [-3.0, 7.0],
        [0.0, 1e6],
        [99.0, 101.0],
        [2.0, 9.0],
    ],
)
def test_an_axis_holds_its_values_and_some_ticks(values: list[float]) -> None:
    scale = scale_of(values)
    assert scale.low <= min(values) <= max(values) <= scale.high
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 7
    places = [scale.at(tick) for tick in ticks]
    assert places == sorted(set(places))
    assert scale.is_logarithmic == (min(values) > 0 and max(values) > 10 * min(values))


def test_decades_begin_below_the_least_value_and_end_with_one() -> None:
    scale = decades_of([3.0, 250.0])
    assert (scale.low, scale.high) == (1.0, 1000.0)
    assert scale.at(10.0) == pytest.approx(1 / 3)
    assert decades_of([1.0]).low == 0.1
    assert decades_of([1.0]).high == 1.0
    assert decades_of([2.0]).high == 10.0
