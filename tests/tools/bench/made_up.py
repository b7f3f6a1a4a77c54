"""Reports of every benchmark, made by hand, that meet their goals or miss one."""

from collections.abc import Callable

from asyncnn.tools.bench import (
    bench_accelerated,
    bench_batching,
    bench_burst,
    bench_cluster,
    bench_files,
    bench_kernels,
    bench_models,
    bench_oip,
    bench_qos,
    bench_responsiveness,
    bench_steps,
    bench_threads,
    bench_waits,
)
from asyncnn.tools.bench.activities import Pulse, Sizes
from asyncnn.tools.bench.benches import PlacedBench
from asyncnn.tools.bench.made_models import tiny_addition
from asyncnn.tools.bench.measured_models import Difference, ModelCandidate
from asyncnn.tools.bench.report import BenchReport, Measured
from asyncnn.tools.bench.rounds import P99, Figure

REFUSAL = "it is [too] <new>"
WHERE = "pinned to 1"


def figures(**us: float) -> dict[str, Figure]:
    """Return figures of one round."""
    return {name: Figure((value,)) for name, value in us.items()}


def placed(bench: PlacedBench, *refused: str, **us: float) -> BenchReport:
    """Return a report where others than ``us`` and who is refused take 100."""
    named = [name for name in bench.titles if name not in refused]
    measured = figures(**dict.fromkeys(named, 100.0) | us)
    reasons = dict.fromkeys(refused, REFUSAL)
    return bench.report(5, [bench.judged("apart", measured, True, reasons)])


def awaiting(*, met: bool) -> BenchReport:
    """Return a report on awaiting."""
    report = placed(bench_waits.AWAITING, run=30.0 if met else 31.0)
    return bench_waits.with_verdict(report)


def steps(*, met: bool) -> BenchReport:
    """Return a report on the functions that a run passes."""
    passed = {
        "device": "accelerated",
        "transport": "inprocess",
        "way": bench_steps.RUN,
        "on_loop": 9.0,
        "on_lanes": 5.0 if met else 6.0,
        "files": 10,
        "turns": 2.0,
        "loop_us": 15.0,
        "most": 14,
        "most_files": 10,
        "most_us": None,
    }
    goals = dict.fromkeys(("most", "most_files"))
    other = passed | goals | {"device": "reference"}
    return bench_steps.reported(5, WHERE, [passed, other], 2.5, {"another": REFUSAL})


def threads(*, met: bool) -> BenchReport:
    """Return a report on threads of the application."""
    measured = figures(asyncnn=1.0 if met else 1.1, litert_thread=1.0)
    titles = {"alone": ("one run", "us")}
    rows = bench_threads.rows_of(titles, measured, {"onnx_thread": REFUSAL})
    return bench_threads.reported(5, WHERE, [*rows])


def oip(*, met: bool) -> BenchReport:
    """Return a report on the Open Inference Protocol."""
    us = {"grpc": 90.0, "http": 90.0 if met else 91.0, "shared": 60.0}
    return placed(bench_oip.oip, **us)


def batching(*, met: bool) -> BenchReport:
    """Return a report on batches in one process."""
    us = 0.6 if met else 0.7
    rows = ("request", us), ("p99", 1.0)
    measured = figures(
        **{f"{row} batched": batched for row, batched in rows},
        **{f"{row} alone": 1.0 for row, _ in rows},
    )
    found = bench_batching.rows_of("inprocess", measured)
    return bench_batching.reported(5, WHERE, found)


def fence(*, met: bool) -> BenchReport:
    """Return a report on fences."""
    us = {"pending": 150.0 if met else 151.0, "chain": 1.0, "pipeline": 1.0}
    return placed(bench_waits.fence, **us)


def service(*, met: bool) -> BenchReport:
    """Return a report on the service, without one of its peers."""
    us = {"execute": 160.0 if met else 161.0, "image": 5.0}
    return placed(bench_waits.service, "grpc_aio", **us)


def cluster(*, met: bool) -> BenchReport:
    """Return a report on a cluster."""
    return placed(bench_cluster.bench, two=50.0 if met else 60.0)


def bursts(*apart_and_together: dict[str, float]) -> list[Measured]:
    """Return what bursts and others take on different CPUs, and on the same one."""
    found = []
    for is_apart, us in zip((True, False), apart_and_together, strict=False):
        more = figures(**us) | {
            name + P99: Figure((2 * each,)) for name, each in us.items()
        }
        where = "apart" if is_apart else "together"
        reasons = {"pyzmq": REFUSAL}
        found.append(bench_burst.BURSTS.judged(where, more, is_apart, reasons))
    return found


def burst(*, met: bool) -> BenchReport:
    """Return a report on bursts, without most peers; the headline decides."""
    best = 30.0 if met else 28.0
    found = bursts({"burst": 10.0, "pipe": 100.0}, {"burst": 10.0, "pipe": best})
    return bench_burst.with_headline(bench_burst.BURSTS.report(5, found), found)


def models(*, met: bool) -> BenchReport:
    """Return a report on two models, one of which nobody can run."""
    measured = {"device": 500.0 if met else 501.0, "awaited": 550.0, "litert": 50.0}
    measured |= {"litert_ref": 1000.0, "accelerated": 60.0, "executor": 50.0}
    refusals = {"litert": REFUSAL, "litert_ref": REFUSAL, "awaited": "too old"}
    known = {"engine": "executor", "ratio": 1.2, "difference": Difference(0.0, True)}
    judge = bench_models.judge_model
    found = (
        judge("kws_ref_model", figures(**measured), {}, **known),
        judge("<odd>", {}, refusals),
    )
    return bench_models.reported(5, WHERE, ("accelerated", "reference"), found)


def accelerated(*, met: bool) -> BenchReport:
    """Return a report on three sections, of which the last has no model."""
    candidate = ModelCandidate("<odd>", tiny_addition(), us=300.0)
    alone = figures(device=257.5 if met else 260.0, litert=250.0)
    memory = figures(device=1100.0, litert=1000.0)
    judged = bench_accelerated.judge_section
    sections = {
        "alone": [judged("alone", candidate, alone, {"to_thread": REFUSAL})],
        "memory": [judged("memory", candidate, memory, {})],
        "driver": [],
    }
    placements = {"alone": WHERE, "memory": "not pinned"}
    return bench_accelerated.reported(5, sections, placements, {"older": REFUSAL})


def kernels(*, met: bool) -> BenchReport:
    """Return a report on all kernels, which differ in nothing; their median decides."""
    measured = figures(engine=80.0 if met else 81.0, litert=10.0)
    several = [
        bench_kernels.judged(case.name, measured, Difference(1.0, True))
        for case in bench_kernels.CASES
    ]
    return bench_kernels.reported(5, WHERE, several)


def cached(
    name: str,
    anew_us: float,
    loaded_us: float,
    growth_bytes: int = 0,
    weights_bytes: int = 1000,
    is_largest: bool = False,
) -> Measured:
    """Return what was measured of a model."""
    return Measured.judged(
        name,
        figures(anew=anew_us, loaded=loaded_us),
        ratio=loaded_us / anew_us,
        weights_bytes=weights_bytes,
        growth_bytes=growth_bytes,
        is_largest=is_largest,
    )


def cache(*, met: bool) -> BenchReport:
    """Return a report on a model that has both goals and one that has none."""
    large = cached("large", 1_000, 200 if met else 201, is_largest=True)
    return bench_files.CACHE.report(5, WHERE, [large, cached("small", 1_000, 900)])


def loading(*, met: bool) -> BenchReport:
    """Return a report on a large file, and on one that LiteRT refuses."""
    measured = figures(loaded=100.0, litert=1000.0, accelerated=1500.0)
    measured |= figures(reference=1500.0 if met else 1501.0)
    judge = bench_files.judge_loading
    found = (
        judge("large", 10**6, measured, {}, False),
        judge("refused", 10**7, figures(loaded=100.0), {"litert": REFUSAL}, False),
    )
    return bench_files.LOADING.report(5, WHERE, found)


def sessions(
    *, met: bool = True, step: float = 1.1, burst: float = 1.1, kib: int = 90
) -> BenchReport:
    """Return a report on sessions."""
    model = Measured.judged(
        "word",
        figures(**dict.fromkeys(bench_files.STEPS.titles, 100.0)),
        step_limit=bench_files.STEP_LIMIT,
        step_ratio=step,
        burst_ratio=burst if met else 1.2,
        sessions_kib=kib,
        interpreters_kib=1000,
    )
    return bench_files.STEPS.report(5, WHERE, [model], device="accelerated")


def scheduling(p99_us: float = 1500.0, pool_us: float = 9000.0) -> dict[str, object]:
    """Return what was measured of priorities and deadlines; it meets the goals."""
    p99s = {"idle": 1000.0, "saturated": p99_us, "pool": pool_us}
    ratios = {"p50_us": 5000.0, "p99_us": 26_000.0, "p50_ratio": 1.0, "p99_ratio": 1.1}
    return {
        "latencies": {n: {"p50_us": 100.0, "p99_us": us} for n, us in p99s.items()},
        "longest_operation_us": 100.0,
        "misses": [{"load": 0.7, "by_deadline": 0.1, "by_arrival": 0.2}],
        "overhead": {"scheduled_us": 4.0, "to_thread_us": 40.0, "ratio": 0.1},
        "lost": 0.01,
        "device": "accelerated",
        "low_us": {"driver": 215_000.0},
        "beside": [{"where": "driver", "load": "low", **ratios}],
    }


def qos(*, met: bool) -> BenchReport:
    """Return a report on priorities and deadlines."""
    missed = {"load": 0.7, "by_deadline": 0.1 if met else 0.3, "by_arrival": 0.2}
    return bench_qos.reported(5, WHERE, scheduling() | {"misses": [missed]})


def responsiveness(*, met: bool, idle_ms: float = 2.0) -> BenchReport:
    """Return a report on responsiveness, some of which was measured again."""
    late_ms = {
        ("idle", "in_process"): idle_ms,
        ("prepare", "in_process"): 2.0,
        ("prepare", "driver"): 20.0 if met else 21.0,
    }
    heard = [
        bench_responsiveness.judge_pulses(*place, [Pulse(1000, 0.5, 1.0, ms, 0.0)])
        for place, ms in late_ms.items()
    ]
    repeated = {"idle": 0, "prepare": 2}
    return bench_responsiveness.reported(5, WHERE, Sizes(), heard, repeated)


MADE_UP: dict[str, Callable[..., BenchReport]] = {
    maker.__name__: maker
    for maker in (
        models,
        accelerated,
        awaiting,
        kernels,
        service,
        cluster,
        burst,
        fence,
        oip,
        cache,
        loading,
        qos,
        responsiveness,
        sessions,
        steps,
        threads,
        batching,
    )
}
