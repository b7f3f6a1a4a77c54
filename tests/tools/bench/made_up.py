"""Reports of every benchmark, made by hand, that meet their goals or miss one."""

from collections.abc import Callable

from msgspec.structs import asdict, replace

from asyncnn.tools.bench import (
    bench_accelerated,
    bench_burst,
    bench_files,
    bench_kernels,
    bench_models,
    bench_qos,
    bench_responsiveness,
    bench_steps,
    bench_threads,
    bench_waits,
)
from asyncnn.tools.bench.activities import Pulse
from asyncnn.tools.bench.benches import PlacedReport, Placement
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.measured_models import (
    LITERT,
    LITERT_REF,
    Difference,
    ModelCandidate,
)
from asyncnn.tools.bench.noop import tiny_addition
from asyncnn.tools.bench.peers import Exchange
from asyncnn.tools.bench.report import BenchReport, Goal, judge
from asyncnn.tools.bench.rounds import Figure

REFUSAL = "it is [too] <new>"

_BASIS = {"environment": describe_environment(litert="2"), "rounds": 5}
_SINGLE = {**_BASIS, "placement": "pinned to 1"}


def figures(**us: float) -> dict[str, Figure]:
    """Return figures of one round."""
    return {name: Figure((value,)) for name, value in us.items()}


def awaiting(*, met: bool) -> BenchReport:
    """Return a report on awaiting."""
    found = placed(bench_waits.AwaitingReport, run=30.0 if met else 31.0)
    (verdict,) = found.verdicts
    judged = {name: getattr(verdict, name) for name in ("ratio", "limit", "met")}
    pinned = bench_waits.AwaitingPlacement(**asdict(found), **judged)
    return bench_waits.AwaitingReport(**_BASIS, placements=(pinned,))


def placed(kind: type[PlacedReport], *refused: str, **us: float) -> Placement:
    """Return a placement where others than ``us`` and who is refused take 100."""
    named = [name for name in kind.CONTENDERS if name not in refused]
    measured = figures(**dict.fromkeys(named, 100.0) | us)
    return Placement(
        placement="apart",
        figures=measured,
        verdicts=judge(kind.GOALS, measured),
        refusals=dict.fromkeys(refused, REFUSAL),
    )


def steps(*, met: bool) -> BenchReport:
    """Return a report on the functions that a run passes."""
    passed = bench_steps.PassedSteps(
        device="accelerated",
        transport="inprocess",
        way=bench_steps.RUN,
        on_loop=9.0,
        on_lanes=5.0 if met else 6.0,
        files=10,
        turns=2.0,
        loop_us=15.0,
        most=14,
        most_files=10,
    )
    return bench_steps.StepsReport(
        **_SINGLE,
        model="a model",
        turn_us=2.5,
        steps=(passed, replace(passed, device="reference", most=None)),
        refusals={"another": REFUSAL},
    )


def threads(*, met: bool) -> BenchReport:
    """Return a report on threads of the application."""
    measured = figures(asyncnn=1.0 if met else 1.1, litert_thread=1.0)
    row = bench_threads.ThreadsRow(
        title="one run",
        unit="us",
        figures=measured,
        verdicts=judge(bench_threads.GOALS, measured),
        refusals={"onnx_thread": REFUSAL},
    )
    return bench_threads.ThreadsReport(**_SINGLE, rows={"alone": row})


def fence(*, met: bool) -> BenchReport:
    """Return a report on fences."""
    us = {"pending": 150.0 if met else 151.0, "chain": 1.0, "pipeline": 1.0}
    found = placed(bench_waits.FenceReport, **us)
    return bench_waits.FenceReport(**_BASIS, placements=(found,))


def service(*, met: bool) -> BenchReport:
    """Return a report on the service, without one of its peers."""
    us = {"execute": 160.0 if met else 161.0, "image": 5.0}
    found = placed(bench_waits.ServiceReport, "grpc_aio", **us)
    return bench_waits.ServiceReport(
        **_BASIS, placements=(found,), exchange=Exchange(218, 95)
    )


def burst(*, met: bool) -> BenchReport:
    """Return a report on bursts, without most peers; the headline decides."""
    placements = [
        Placement(
            placement="apart" if is_apart else "together",
            is_apart=is_apart,
            figures=measured,
            p99_us={name: 2 * figure.us for name, figure in measured.items()},
            verdicts=bench_burst.judge_burst(measured, is_apart),
            refusals={"pyzmq": REFUSAL},
        )
        for is_apart, measured in (
            (True, figures(burst=10.0, pipe=100.0)),
            (False, figures(burst=10.0, pipe=30.0 if met else 28.0)),
        )
    ]
    return bench_burst.BurstReport(
        **_BASIS,
        exchange=Exchange(256, 256),
        placements=tuple(placements),
        headline=bench_burst.judge_headline(
            [(placed.is_apart, placed.figures) for placed in placements]
        ),
    )


def models(*, met: bool) -> BenchReport:
    """Return a report on two models, one of which nobody can run."""
    device_us = 500.0 if met else 501.0
    measured = {"device": device_us, "awaited": 550.0, LITERT: 50.0, LITERT_REF: 1000.0}
    measured |= {"accelerated": 60.0, "executor": 50.0}
    refusals = {LITERT: REFUSAL, LITERT_REF: REFUSAL, "awaited": "too old"}
    judged = bench_models.judge_model(
        *("kws_ref_model", figures(**measured), {}), engine="executor", ratio=1.2
    )
    return bench_models.ModelsReport(
        **_SINGLE,
        devices=("accelerated", "reference"),
        models=(judged, bench_models.judge_model("<odd>", {}, refusals)),
    )


def accelerated(*, met: bool) -> BenchReport:
    """Return a report on three sections, of which the last has no model."""
    candidate = ModelCandidate("<odd>", tiny_addition(), us=300.0)
    alone = {"device": 103.0 if met else 104.0, "litert": 100.0}
    alone = {name: 250 * value / 100 for name, value in alone.items()}
    memory = figures(device=1100.0, litert=1000.0)
    judged = bench_accelerated.judge_section
    return bench_accelerated.AcceleratedReport(
        **_BASIS,
        sections={
            "alone": (
                judged("alone", candidate, figures(**alone), {"to_thread": REFUSAL}),
            ),
            "memory": (judged("memory", candidate, memory, {}),),
            "driver": (),
        },
        placements={"alone": "pinned to 1", "memory": "not pinned"},
        refusals={"older": REFUSAL},
    )


def kernels(*, met: bool) -> BenchReport:
    """Return a report on all kernels, which differ in nothing; their median decides."""
    measured = figures(engine=80.0 if met else 81.0, litert=10.0)
    several = [
        bench_kernels.judge_kernel(case.name, measured, Difference(1.0, True))
        for case in bench_kernels.CASES
    ]
    return bench_kernels.KernelsReport(
        **_SINGLE,
        kernels=tuple(several),
        median_verdict=bench_kernels.judge_median(several),
    )


def cache(*, met: bool) -> BenchReport:
    """Return a report on a model that has both goals and one that has none."""
    return bench_files.CacheReport(
        **_SINGLE,
        models=(
            cached("large", 1_000, 200 if met else 201, is_largest=True),
            cached("small", 1_000, 900),
        ),
    )


def cached(
    name: str,
    anew_us: float,
    loaded_us: float,
    growth_bytes: int = 0,
    weights_bytes: int = 1000,
    is_largest: bool = False,
) -> bench_files.CachedModel:
    """Return what was measured of a model."""
    return bench_files.CachedModel(
        model=name,
        figures=figures(anew=anew_us, loaded=loaded_us),
        ratio=loaded_us / anew_us,
        weights_bytes=weights_bytes,
        growth_bytes=growth_bytes,
        is_largest=is_largest,
    )


def loading(*, met: bool) -> BenchReport:
    """Return a report on a large file, and on one that LiteRT refuses."""
    measured = figures(loaded=100.0, litert=1000.0, accelerated=1500.0)
    measured |= figures(reference=1500.0 if met else 1501.0)
    refused = bench_files.LoadedModel(
        figures=figures(loaded=100.0), size=10**7, refusals={"litert": REFUSAL}
    )
    goals = [Goal(name, "litert", 1.5) for name in ("reference", "accelerated")]
    large = bench_files.LoadedModel(
        figures=measured, size=10**6, verdicts=judge(goals, measured)
    )
    return bench_files.LoadingReport(
        **_SINGLE, models={"large": large, "refused": refused}
    )


def qos(*, met: bool) -> BenchReport:
    """Return a report on priorities and deadlines."""
    latencies = {
        name: bench_qos.UrgentLatency(100.0, p99_us)
        for name, p99_us in (("idle", 1000.0), ("saturated", 1500.0), ("pool", 9000.0))
    }
    misses = (bench_qos.Misses(0.7, 0.1 if met else 0.3, 0.2),)
    overhead = bench_qos.Overhead(scheduled_us=4, to_thread_us=40, ratio=0.1)
    return bench_qos.QosReport(
        **_SINGLE,
        latencies=latencies,
        longest_operation_us=100.0,
        misses=misses,
        overhead=overhead,
        lost=0.01,
        verdicts=bench_qos.judge_qos(latencies, 100.0, misses, overhead, 0.01),
        device="accelerated",
        low_us={"driver": 215_000.0},
        beside=(
            bench_qos.Beside(
                where="driver",
                load="low",
                p50_us=5000.0,
                p99_us=26_000.0,
                p50_ratio=1.7,
                p99_ratio=6.5,
            ),
        ),
    )


def responsiveness(*, met: bool, idle_ms: float = 2.0) -> BenchReport:
    """Return a report on responsiveness, some of which was measured again."""
    heard = {
        ("idle", "in_process"): idle_ms,
        ("prepare", "in_process"): 2.0,
        ("prepare", "driver"): 20.0 if met else 21.0,
    }
    return bench_responsiveness.ResponsivenessReport(
        **_SINGLE,
        operations=20_000,
        input_bytes=2**26,
        heard=tuple(
            bench_responsiveness.judge_pulses(*place, [Pulse(1000, 0.5, 1.0, ms, 0.0)])
            for place, ms in heard.items()
        ),
        repeated={"idle": 0, "prepare": 2},
    )


def sessions(
    *, met: bool = True, step: float = 1.1, burst: float = 1.1, kib: int = 90
) -> bench_files.SessionsReport:
    """Return a report on sessions."""
    model = bench_files.SessionModelFigures(
        model="word",
        figures=figures(**dict.fromkeys(bench_files.SessionsReport.CONTENDERS, 100.0)),
        step_limit=bench_files.STEP_LIMIT,
        step_ratio=step,
        burst_ratio=burst if met else 1.2,
        sessions_kib=kib,
        interpreters_kib=1000,
    )
    return bench_files.SessionsReport(**_SINGLE, device="accelerated", models=(model,))


MADE_UP: dict[str, Callable[..., BenchReport]] = {
    maker.__name__: maker
    for maker in (
        models,
        accelerated,
        awaiting,
        kernels,
        service,
        burst,
        fence,
        cache,
        loading,
        qos,
        responsiveness,
        sessions,
        steps,
        threads,
    )
}
