"""``asyncnn bench kernels``: single operations beside LiteRT's kernels.

Each operation is written as a TFLite file that LiteRT and the importer both read, and
is run as one step of a plan, with neither request nor event loop around it.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TypeAlias

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asyncnn.engine import Program
from asyncnn.engine.plan_execution import run_straight
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model_file import load
from asyncnn.tools.bench.environment import ONE_CPU, describe_environment, placement
from asyncnn.tools.bench.kernel_cases import CASES, Case, kernel_file
from asyncnn.tools.bench.litert import LITERT
from asyncnn.tools.bench.measured_models import (
    Difference,
    difference_text,
    largest_difference,
    random_inputs,
)
from asyncnn.tools.bench.report import (
    Goal,
    Row,
    Subject,
    SubjectsReport,
    Table,
    Verdict,
    judge,
    verdict_cell,
)
from asyncnn.tools.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Figure,
    measure,
    timed_call,
)
from asyncnn.tools.other_runtimes import LiteRt, litert_version

Progress: TypeAlias = Callable[[Sequence[Case]], Iterable[Case]]

ENGINE = "engine"
"""The plan on given arrays, called: the kernel, its step and what leads to it."""

CONTENDERS = {ENGINE: "engine", LITERT: "LiteRT"}

GOAL_OF_EACH = Goal(ENGINE, LITERT, 25.0)
GOAL_OF_MEDIAN = Goal(ENGINE, LITERT, 8.0)
"""For the median of the ratios of all kernels."""

_BATCH_US = 20_000.0


class MeasuredKernel(Subject, frozen=True, kw_only=True):
    """What was measured of one kernel, by `ENGINE` and `LITERT`.

    ``difference_to_ref`` is that of the engine's result to the one of LiteRT's
    reference kernels.
    """

    kernel: str
    verdict: Verdict
    difference_to_ref: Difference | None

    def outcomes(self) -> Iterator[bool]:
        """Yield that of the one goal."""
        yield self.verdict.met

    def cells(self) -> Row:
        """Return the difference and the verdict."""
        differs = difference_text(self.difference_to_ref)
        return differs, verdict_cell([self.verdict], ENGINE, LITERT)


class KernelsReport(SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench kernels --json``.

    ``median_verdict`` is None unless all kernels were measured.
    """

    CONTENDERS = CONTENDERS
    OTHERS = ("differs", "/ LiteRT")

    kernels: tuple[MeasuredKernel, ...]
    median_verdict: Verdict | None

    def subjects(self) -> dict[str, Subject]:
        """Return the kernels by name."""
        return {kernel.kernel: kernel for kernel in self.kernels}

    def outcomes(self) -> Iterator[bool]:
        """Yield those of each kernel, and the one of their median."""
        yield from super().outcomes()
        if self.median_verdict is not None:
            yield self.median_verdict.met

    def tables(self) -> Iterator[Table]:
        """Yield the one table; the median comes last if it was judged."""
        (table,) = super().tables()
        yield table.ended("median", self.median_verdict, -1)


def bench(
    *, pattern: str = "*", rounds: int = DEFAULT_ROUNDS, progress: Progress = iter
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
        kernels = [_bench_kernel(case, rounds) for case in progress(cases)]
    return KernelsReport(
        environment=environment,
        rounds=rounds,
        placement=where,
        kernels=tuple(kernels),
        median_verdict=judge_median(kernels),
    )


def _bench_kernel(case: Case, rounds: int) -> MeasuredKernel:
    batches, difference = _contenders(case)
    figures = asyncio.run(measure(batches, rounds=rounds, batch_us=_BATCH_US))
    return judge_kernel(case.name, figures, difference)


def judge_kernel(
    kernel: str, figures: dict[str, Figure], difference: Difference | None
) -> MeasuredKernel:
    """Hold the figures of a kernel against its goal."""
    (verdict,) = judge([GOAL_OF_EACH], figures)
    return MeasuredKernel(
        kernel=kernel, figures=figures, verdict=verdict, difference_to_ref=difference
    )


def judge_median(kernels: Sequence[MeasuredKernel]) -> Verdict | None:
    """Hold the median ratio against its goal, if ``kernels`` are all there are."""
    if len(kernels) < len(CASES):
        return None
    return GOAL_OF_MEDIAN.judge(median(kernel.verdict.ratio for kernel in kernels))


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
    program = Program(load(path, strict=True).model)
    plan = program.plan(tuple(array.shape for array in inputs))
    outputs = run_straight(program, plan, inputs, [None])
    return partial(run_straight, program, plan, inputs, outputs), outputs
