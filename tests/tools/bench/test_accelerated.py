"""``asyncnn bench accelerated``: what is judged by what, and each section once."""

from pathlib import Path

import msgspec
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.bench import accelerated_contenders as contenders
from asyncnn.tools.bench import bench_accelerated, measured_models, qos_load, rounds
from asyncnn.tools.bench.bench_accelerated import SECTIONS, judge_section, reported
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.bench.measured_models import ModelCandidate
from asyncnn.tools.bench.rounds import Figure, Order
from asyncnn.tools.mobilenets import mobilenet_v1
from tests.tools.bench.made_up import figures


def candidate(us: float) -> ModelCandidate:
    return ModelCandidate("model", tiny_addition(), us=us)


@pytest.mark.parametrize("name", SECTIONS)
def test_gates_are_no_narrower_than_goals(name: str) -> None:
    for goal in SECTIONS[name].goals:
        assert goal.gate is not None
        assert goal.limit <= goal.gate
        assert {goal.figure, goal.peer} <= set(SECTIONS[name].contenders)


@pytest.mark.parametrize(
    ("litert_us", "judged"),
    [
        (5.0, {("awaited", "executor"): 0.15, ("bound", "executor"): 0.2}),
        (20.0, {("awaited", "executor"): 1.0}),
        (
            75.0,
            {
                ("inline", "litert"): 1.02,
                ("awaited", "executor"): 0.8,
                ("bound", "executor"): 0.75,
            },
        ),
        (
            175.0,
            {
                ("awaited", "litert"): 1.2,
                ("awaited", "executor"): 0.8,
                ("bound", "executor"): 0.75,
            },
        ),
        (
            300.0,
            {
                ("device", "litert"): 1.03,
                ("awaited", "litert"): 1.10,
                ("awaited", "executor"): 0.75,
                ("bound", "executor"): 0.75,
            },
        ),
        (1000.0, {("device", "litert"): 1.03, ("awaited", "executor"): 1.0}),
        (
            5000.0,
            {
                ("device", "litert"): 1.03,
                ("awaited", "litert"): 1.03,
                ("awaited", "executor"): 1.0,
            },
        ),
    ],
)
def test_what_litert_takes_decides_on_the_goals_of_a_model(
    litert_us: float, judged: dict[tuple[str, str], float]
) -> None:
    measured = dict.fromkeys(SECTIONS["alone"].contenders, Figure((litert_us,)))
    # What it took when the models were sorted does not matter where it is measured.
    result = judge_section("alone", candidate(1.0), measured, {})
    assert {(v.figure, v.peer): v.limit for v in result.verdicts} == judged
    assert result.facts["ratios"]["awaited / to_thread"] == 1.0


@pytest.mark.parametrize(("gates", "met"), [(False, False), (True, True)])
def test_gates_are_wider(gates: bool, met: bool) -> None:
    measured = figures(device=1050.0, litert=1000.0)
    result = judge_section("alone", candidate(1000.0), measured, {}, gates=gates)
    (verdict,) = result.verdicts
    assert verdict.met is met


def test_a_ratio_is_the_median_of_those_of_the_rounds() -> None:
    measured = {"cached": Figure((1.0, 20.0, 3.0)), "anew": Figure((2.0, 10.0, 30.0))}
    result = judge_section("cached", candidate(0), measured, {})
    assert result.us == {"cached": 3.0, "anew": 10.0}
    assert result.verdicts[0].ratio == 0.5
    assert not result.verdicts[0].met


def test_a_figure_without_its_peer_is_not_judged_and_the_reason_is_told() -> None:
    measured = figures(awaited_8=1.0, awaited_64=1.0)
    refusals = {"to_thread": "not here"}
    result = judge_section("serving", candidate(300), measured, refusals)
    assert result.verdicts == ()
    placements = {"serving": "anywhere"}
    report = reported(1, {"serving": [result]}, placements, {})
    assert report.met
    assert any("not here" in note for note in report.notes)
    (values, ratios) = report.tables
    assert values.sections[0][0][1] == "1.0"
    assert set(ratios.sections[0][0][1:]) == {"-"}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("alone", ["tiny", "quick", "long", "longest"]),
        ("cancelling", ["long", "longest"]),
        ("priorities", ["longest"]),
        ("serving", ["quick"]),
        ("heartbeat", ["quick"]),
        ("beside", ["quick"]),
        ("starting", ["quick"]),
        ("cached", []),
    ],
)
def test_sections_pick_the_models_that_suit_them(
    section: str, expected: list[str]
) -> None:
    times = {"tiny": 5.0, "quick": 300.0, "long": 1500.0, "longest": 9000.0}
    models = [
        ModelCandidate(name, tiny_addition(), us=us) for name, us in times.items()
    ]
    assert [each.name for each in SECTIONS[section].picks(models)] == expected


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no section 'alne'"):
        bench_accelerated.bench(Order(tmp_path, section=["alne"]))


def test_what_cannot_be_measured_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ai_edge_litert")

    async def refuse(*_: object) -> None:
        raise InvalidArgumentError("it is odd")

    section = SECTIONS["tiny"]._replace(start=refuse)
    monkeypatch.setitem(SECTIONS, "tiny", section)
    (tmp_path / "odd.tflite").write_bytes(b"no model")
    report = bench_accelerated.bench(
        Order(tmp_path, mobilenet=False, section=["tiny", "serving"])
    )
    (measured,) = report.document["sections"]["tiny"]
    assert set(measured["refusals"].values()) == {"it is odd"}
    notes = "\n".join(report.notes)
    assert "odd cannot be imported: " in notes
    assert "serving: no model suits it" in notes
    assert "it is odd" in notes


class TestMeasuring:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("ai_edge_litert")
        for module, name, value in (
            (rounds, "_MAX_RUNS", 3),
            (contenders, "_LISTENED_S", 0.05),
            (contenders, "_URGENT_RUNS", 3),
            (qos_load, "_STOPPED_RUNS", 3),
            (qos_load, "_TIMED_RUNS", 2),
            (qos_load, "_SERVED_US", 2000.0),
            (measured_models, "LONG_US", 0.0),
            (measured_models, "SERVABLE_US", 0.0),
            (measured_models, "HEAVY_BYTES", 0),
        ):
            monkeypatch.setattr(module, name, value)

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "small.tflite"
        path.write_bytes(mobilenet_v1(quantized=False, size=32, width=0.25))
        return path

    def check(self, file: Path, section: str) -> None:
        report = bench_accelerated.bench(
            Order(file, mobilenet=False, rounds=1, section=[section])
        )
        assert msgspec.json.encode(report.document)
        (measured,) = report.document["sections"][section]
        left_out = {
            name
            for name in SECTIONS[section].contenders
            if name.startswith(("onnx", "to_thread")) and measured["refusals"]
        }
        known = set(SECTIONS[section].contenders) - left_out
        assert known - {"inline"} <= set(measured["values"])
        assert section in report.document["placements"]
        assert all(value >= 0 for value in measured["values"].values())

    def test_one_run_at_a_time(self, file: Path) -> None:
        self.check(file, "alone")

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("section", [name for name in SECTIONS if name != "alone"])
    def test_every_other_section(
        self, file: Path, section: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if section in ("serving", "heartbeat", "beside", "starting"):
            monkeypatch.setattr(measured_models, "LONG_US", 1e9)
        if section == "memory" and not Path("/proc/self/smaps_rollup").exists():
            pytest.skip("this system does not tell of private memory")
        self.check(file, section)
