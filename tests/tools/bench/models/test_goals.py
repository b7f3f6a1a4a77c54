"""Which goals hold for which model."""

import pytest

from asyncnn.tools.bench.goals import LITERT, LITERT_REF
from asyncnn.tools.bench.models.goals import GENERAL, goals_for, judge


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        ("vww_96_int8", {LITERT_REF: 0.5, LITERT: 16.0}),
        ("vww_96_float", {LITERT_REF: 0.5, LITERT: 8.0}),
        ("kws_ref_model", {LITERT_REF: 0.5}),
        ("pretrainedResnet", {LITERT_REF: 0.1, LITERT: 2.5}),
        ("pretrainedResnet_quant", {LITERT_REF: 0.5, LITERT: 10.0}),
        ("mobilenet_v1_224_float", {LITERT_REF: 0.1, LITERT: 2.5}),
    ],
)
def test_named_models_have_goals_of_their_own(
    model: str, limits: dict[str, float]
) -> None:
    assert {goal.peer: goal.limit for goal in goals_for(model, 5000.0)} == limits


@pytest.mark.parametrize("ref_us", [100.1, 1e6])
def test_other_models_are_not_to_be_slower_than_the_reference(ref_us: float) -> None:
    assert goals_for("another", ref_us) == (GENERAL,)


@pytest.mark.parametrize("ref_us", [None, 1.5, 100.0])
def test_tiny_and_unmeasured_models_have_no_goal(ref_us: float | None) -> None:
    assert goals_for("another", ref_us) == ()


@pytest.mark.parametrize(("ratio", "met"), [(0.49, True), (0.5, True), (0.51, False)])
def test_a_goal_is_met_up_to_its_limit(ratio: float, met: bool) -> None:
    (verdict,) = judge("kws_ref_model", {LITERT_REF: ratio, LITERT: 3.0}, 1400.0)
    assert (verdict.ratio, verdict.met) == (ratio, met)


def test_a_peer_that_was_not_measured_is_not_judged() -> None:
    verdicts = judge("vww_96_int8", {LITERT: 10.0}, None)
    assert [verdict.peer for verdict in verdicts] == [LITERT]
