"""``asyncnn bench kernels``: single operations beside LiteRT's kernels.

Each operation is written as a TFLite file that LiteRT and the importer both read, and
is run as one step of a plan, with neither request nor event loop around it.
"""

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeAlias

import msgspec
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asyncnn.bench.environment import (
    ONE_CPU,
    Environment,
    describe_environment,
    placement,
)
from asyncnn.bench.goals import LITERT, Goal, Verdict
from asyncnn.bench.kernel_cases import CASES, Case
from asyncnn.bench.kernel_files import kernel_file
from asyncnn.bench.litert import LiteRt, litert_version
from asyncnn.bench.models import Difference, largest_difference, random_inputs
from asyncnn.bench.rounds import DEFAULT_ROUNDS, Batch, Figure, measure, timed_call
from asyncnn.engine import Program
from asyncnn.engine.execution import run_straight
from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.loading import load

ENGINE = "engine"
"""The plan on given arrays, called: the kernel, its step and what leads to it."""

GOAL_OF_EACH = Goal(LITERT, 25.0)
GOAL_OF_MEDIAN = Goal(LITERT, 8.0)
"""For the median of the ratios of all kernels."""

Progress: TypeAlias = Callable[[Sequence[Case]], Iterable[Case]]

_BATCH_US = 20_000.0


class KernelReport(msgspec.Struct, frozen=True):
    """What was measured of one kernel; ``figures`` are `ENGINE` and `LITERT`.

    ``us`` and ``verdict`` are derived from them. ``difference_to_ref`` is that of the
    engine's result to the one of LiteRT's reference kernels.
    """

    kernel: str
    figures: dict[str, Figure]
    us: dict[str, float]
    verdict: Verdict
    difference_to_ref: Difference | None


class KernelsReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench kernels --json``.

    ``median_verdict`` is None unless all kernels were measured.
    """

    environment: Environment
    placement: str
    rounds: int
    kernels: tuple[KernelReport, ...]
    median_verdict: Verdict | None

    @property
    def met(self) -> bool:
        """Whether every goal was met that could be judged."""
        verdicts = [kernel.verdict for kernel in self.kernels]
        if self.median_verdict is not None:
            verdicts.append(self.median_verdict)
        return all(verdict.met for verdict in verdicts)


async def bench_kernels(
    pattern: str = "*",
    *,
    rounds: int = DEFAULT_ROUNDS,
    progress: Progress = iter,
) -> KernelsReport:
    """Measure the kernels whose name matches ``pattern``.

    ``progress`` iterates over them.

    :raises InvalidArgumentError: if there are none.
    :raises PeerMissingError: if LiteRT is not installed.
    """
    cases = [case for case in CASES if fnmatchcase(case.name, pattern)]
    if not cases:
        raise InvalidArgumentError(f"there is no kernel {pattern!r} to measure")
    environment = describe_environment(litert=litert_version())
    # As many threads of the BLAS as the device gives it.
    with placement(ONE_CPU) as where, threadpool_limits(1, user_api="blas"):
        kernels = [await _bench_kernel(case, rounds) for case in progress(cases)]
    return KernelsReport(
        environment, where, rounds, tuple(kernels), judge_median(kernels)
    )


def judge_median(kernels: Sequence[KernelReport]) -> Verdict | None:
    """Hold the median ratio against its goal, if ``kernels`` are all there are."""
    if len(kernels) < len(CASES):
        return None
    ratio = median(kernel.verdict.ratio for kernel in kernels)
    return Verdict.of(GOAL_OF_MEDIAN, ratio)


async def _bench_kernel(case: Case, rounds: int) -> KernelReport:
    batches, difference = _contenders(case)
    figures = await measure(batches, rounds=rounds, batch_us=_BATCH_US)
    return summarize_kernel(case.name, figures, difference)


def _contenders(case: Case) -> tuple[list[Batch], Difference | None]:
    """Return what to measure, and how far the results are apart."""
    with TemporaryDirectory(prefix="asyncnn-bench-") as folder:
        path = Path(folder, f"{case.name}.tflite")
        path.write_bytes(kernel_file(case))
        peer, reference = LiteRt(path), LiteRt(path, reference=True)
        inputs = random_inputs(peer.input_kinds())
        call, outputs = _engine_call(path, inputs)
    for interpreter in (peer, reference):
        interpreter.set_inputs(inputs)
    difference = largest_difference(outputs, reference.first_outputs())
    return [timed_call(ENGINE, call), timed_call(LITERT, peer.invoke)], difference


def _engine_call(
    path: Path, inputs: Sequence[Array]
) -> tuple[Callable[[], object], list[Array]]:
    """Return what runs the plan, and its outputs, which each run writes again."""
    program = Program(load(path).model)
    plan = program.plan(tuple(array.shape for array in inputs))
    outputs = run_straight(program, plan, inputs, [None])
    return partial(run_straight, program, plan, inputs, outputs), outputs


def summarize_kernel(
    kernel: str, figures: dict[str, Figure], difference: Difference | None
) -> KernelReport:
    """Derive times and the verdict from the figures of a kernel."""
    ratio = figures[ENGINE].ratio_to(figures[LITERT])
    return KernelReport(
        kernel=kernel,
        figures=figures,
        us={name: figure.us for name, figure in figures.items()},
        verdict=Verdict.of(GOAL_OF_EACH, ratio),
        difference_to_ref=difference,
    )
