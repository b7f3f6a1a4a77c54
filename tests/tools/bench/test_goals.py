"""What benchmarks judge, and by which limits."""

from statistics import median

import pytest

from asyncnn.tools.bench.bench_burst import BURSTS, with_headline
from asyncnn.tools.bench.bench_files import CACHE, MATTERS_ABOVE_BYTES, MATTERS_ABOVE_US
from asyncnn.tools.bench.bench_kernels import CASES, judged, reported
from asyncnn.tools.bench.bench_models import goals_for, judge_model
from asyncnn.tools.bench.bench_models import reported as models_report
from asyncnn.tools.bench.bench_qos import judge_qos
from asyncnn.tools.bench.bench_waits import AWAITING, fence, service
from asyncnn.tools.bench.measured_models import LITERT, LITERT_REF, Difference
from asyncnn.tools.bench.report import Goal, GoalVerdict, Measured, judge
from tests.tools.bench.made_up import WHERE, bursts, cached, figures, scheduling

LARGE = MATTERS_ABOVE_BYTES


@pytest.mark.parametrize(
    "goal",
    [*AWAITING.goals, *fence.goals, *service.goals],
    ids=lambda goal: f"{goal.figure}-{goal.peer}",
)
def test_a_goal_is_met_up_to_its_limit(goal: Goal) -> None:
    for ratio, met in ((goal.limit, True), (goal.limit * 1.01, False)):
        (verdict,) = judge([goal], figures(**{goal.figure: ratio, goal.peer: 1.0}))
        assert (verdict.figure, verdict.peer) == (goal.figure, goal.peer)
        assert (verdict.ratio, verdict.limit, verdict.met) == (ratio, goal.limit, met)


def test_a_goal_without_its_peer_is_left_out() -> None:
    assert judge(service.goals, figures(execute=1.0, image=1.0)) == ()


class TestBurst:
    def judge(
        self, is_apart: bool, *, gates: bool = False, **us: float
    ) -> tuple[GoalVerdict, ...]:
        return BURSTS.judged("here", figures(**us), is_apart, {}, gates).verdicts

    @pytest.mark.parametrize(("is_apart", "limit"), [(True, 0.06), (False, 0.5)])
    def test_a_placement_has_its_own(self, is_apart: bool, limit: float) -> None:
        for ratio, met in ((limit, True), (limit + 0.001, False)):
            (verdict,) = self.judge(is_apart, queue=ratio, pipe=1.0)
            assert (verdict.figure, verdict.peer) == ("queue", "pipe")
            assert (verdict.limit, verdict.met) == (limit, met)

    def test_one_without_its_peer_is_left_out(self) -> None:
        assert self.judge(True, queue_batches=1.0, pipe=1.0) == ()
        (verdict,) = self.judge(True, queue_batches=1.0, pipe=1.0, pipe_stream=100.0)
        assert verdict.met

    @pytest.mark.parametrize(("us", "met"), [(1000.0, True), (1001.0, False)])
    @pytest.mark.parametrize("is_apart", [True, False])
    def test_nothing_takes_a_millisecond(
        self, us: float, met: bool, is_apart: bool
    ) -> None:
        (verdict,) = self.judge(is_apart, queue_hogs=us)
        assert (verdict.peer, verdict.met) == ("a millisecond", met)

    def test_gates_are_wider_than_goals(self) -> None:
        for goals in (BURSTS.goals, BURSTS.together or ()):
            assert all(goal.gate is None or goal.limit <= goal.gate for goal in goals)
        (goal_verdict,) = self.judge(True, queue=0.07, pipe=1.0)
        (gate_verdict,) = self.judge(True, queue=0.07, pipe=1.0, gates=True)
        assert (goal_verdict.met, gate_verdict.met) == (False, True)

    @pytest.mark.parametrize(("burst_us", "is_met"), [(3.4, True), (3.6, False)])
    def test_the_headline_takes_the_pipe_at_its_best(
        self, burst_us: float, is_met: bool
    ) -> None:
        found = bursts({"burst": burst_us, "pipe": 40.0}, {"burst": 1.0, "pipe": 10.0})
        verdict = with_headline(BURSTS.report(1, found), found).document["headline"]
        assert verdict.limit == 0.35
        assert verdict.ratio == pytest.approx(burst_us / 10)
        assert verdict.met is is_met

    def test_without_two_cpus_there_is_no_headline(self) -> None:
        found = bursts({}, {"burst": 1.0, "pipe": 9.0})[1:]
        report = with_headline(BURSTS.report(1, found), found)
        assert report.document["headline"] is None


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
    goals = [goal for goal in goals_for(model, 5000.0) if goal.figure == "device"]
    assert {goal.peer: goal.limit for goal in goals} == limits


def test_the_accelerated_device_has_goals_beside_what_one_would_write() -> None:
    for executor_us, met in ((96.0, True), (95.0, False)):
        measured = figures(accelerated=100.0, executor=executor_us)
        (verdict,) = judge_model("vww_96_int8", measured, {}).verdicts
        assert (verdict.peer, verdict.limit) == ("executor", 1.05)
        assert verdict.met is met


def test_models_of_others_have_no_goals() -> None:
    measured = figures(device=2000.0, litert_ref=1000.0, litert=1.0)
    codes = Difference(1.0, in_steps=True)
    model = judge_model(
        *("vww_96_int8", measured, {}), is_own=False, accelerated_difference=codes
    )
    assert (model.verdicts, model.facts["is_exact"]) == ((), None)


@pytest.mark.parametrize(
    ("difference", "exact"),
    [
        (Difference(0.0, in_steps=True), True),
        (Difference(1.0, in_steps=True), False),
        (Difference(1.0, in_steps=False), None),
        (None, None),
    ],
)
def test_the_accelerated_device_computes_the_codes_of_litert(
    difference: Difference | None, exact: bool | None
) -> None:
    model = judge_model("another", {}, {}, accelerated_difference=difference)
    assert model.facts["is_exact"] is exact
    assert models_report(1, WHERE, ["a"], [model]).met is (exact is not False)


@pytest.mark.parametrize("ref_us", [100.1, 1e6])
def test_other_models_are_not_to_be_slower_than_the_reference(ref_us: float) -> None:
    (goal,) = goals_for("another", ref_us)
    assert (goal.peer, goal.limit) == (LITERT_REF, 1.0)


@pytest.mark.parametrize("ref_us", [None, 1.5, 100.0])
def test_tiny_and_unmeasured_models_have_no_goal(ref_us: float | None) -> None:
    assert goals_for("another", ref_us) == []


def test_ratios_are_the_devices_own_time_to_each_peers() -> None:
    measured = figures(device=11.0, awaited=21.0, litert=1.0, litert_ref=22.0)
    model = judge_model("vww_96_int8", measured, {})
    assert model.us["awaited"] == 21.0
    assert model.facts["ratios"] == {LITERT: 11.0, LITERT_REF: 0.5}
    assert [verdict.met for verdict in model.verdicts] == [True, True]


def test_a_peer_that_was_not_measured_is_not_judged() -> None:
    model = judge_model("vww_96_int8", figures(device=10.0, litert=1.0), {})
    assert [verdict.peer for verdict in model.verdicts] == [LITERT]


@pytest.mark.parametrize(
    ("ratio", "of_each", "of_median"),
    [(8.0, True, True), (8.1, True, False), (25.0, True, False), (25.1, False, False)],
)
def test_a_kernel_has_a_goal_and_so_has_the_median_of_all(
    ratio: float, of_each: bool, of_median: bool
) -> None:
    measured = figures(engine=10 * ratio, litert=10.0)
    several = [judged(case.name, measured, None) for case in CASES]
    verdicts = [kernel.facts["verdict"] for kernel in several]
    verdict = reported(1, WHERE, several).document["median_verdict"]
    assert verdict.ratio == median(each.ratio for each in verdicts)
    assert (verdicts[0].met, verdict.met) == (of_each, of_median)
    assert reported(1, WHERE, several[1:]).document["median_verdict"] is None


@pytest.mark.parametrize(
    ("measured", "met"),
    [
        (cached("model", 20_000, 4_000, 199_000, LARGE), True),
        (cached("model", 20_000, 6_000), False),
        (cached("model", 1_000, 400, weights_bytes=LARGE), False),
        (cached("model", 20_000, 4_000, 200_000, LARGE), False),
        (cached("model", MATTERS_ABOVE_US - 1, 9_000, 900), True),
        (cached("model", 1_000, 400, is_largest=True), False),
        (cached("model", 1_000, 100, 200, is_largest=True), False),
        (cached("model", 1_000, 100, 199, is_largest=True), True),
    ],
    ids=[
        "both met",
        "slow",
        "slow though quickly prepared",
        "copied",
        "too small to matter",
        "the largest is slow",
        "the largest is copied",
        "the largest meets both",
    ],
)
def test_goals_hold_where_there_is_something_to_gain(
    measured: Measured, met: bool
) -> None:
    assert CACHE.report(1, WHERE, [measured]).met is met


@pytest.mark.parametrize(
    ("busy_us", "pool_us", "met"),
    [(1600, 8000, True), (1601, 10_000, False), (1600, 7999, False)],
)
def test_urgent_work_is_held_against_the_idle_device_and_the_pool(
    busy_us: float, pool_us: float, met: bool
) -> None:
    measured = scheduling(busy_us, pool_us)
    assert all(verdict.met for verdict in judge_qos(measured)) is met


def beside(load: str, p50: float, p99: float) -> dict[str, object]:
    return {"where": "driver", "load": load, "p50_ratio": p50, "p99_ratio": p99}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"overhead": {"ratio": 0.25}}, 0),
        ({"overhead": {"ratio": 0.26}}, 1),
        ({"lost": 0.05}, 0),
        ({"lost": 0.051}, 1),
        ({"misses": [{"load": 0.7, "by_deadline": 0.2, "by_arrival": 0.1}]}, 1),
        ({"beside": [beside("low", 1.1, 1.5)]}, 0),
        ({"beside": [beside("low", 1.11, 1.51)]}, 2),
        ({"beside": [beside("low", 1.0, 1.31)], "low_us": {"driver": 1e4}}, 1),
        ({"beside": [beside("low", 1.0, 1.3)], "low_us": {"driver": 1e4}}, 0),
        ({"beside": [beside("idle", 9.0, 9.0)]}, 0),
    ],
)
def test_costs_misses_and_urgent_executions_beside_others_are_goals_as_well(
    changes: dict[str, object], missed: int
) -> None:
    verdicts = judge_qos(scheduling() | changes)
    assert sum(not verdict.met for verdict in verdicts) == missed
