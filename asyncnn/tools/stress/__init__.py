"""Floor 7: stress: cases in processes of their own, some of which are killed.

Knows outcomes, not how they are shown. `stress_cases` is the table of what is tried;
`bodies` and `dying` are what runs in the processes, each in a `place`; `watchdog`
starts these, kills some and finds those that hang or crash; `soak` says what grows.

>>> report = run_stress(Stress(cases=("cancels",), devices=("reference",)))
"""

import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from asyncnn.tools.bench.environment import describe_environment, installed_versions
from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
from asyncnn.tools.stress.soak import soak
from asyncnn.tools.stress.stress_cases import CASES, SOAK, StressCase
from asyncnn.tools.stress.stress_report import FORMAT, Growth, StressReport, StressRow
from asyncnn.tools.stress.watchdog import DEFAULT_PATIENCE_S, StressTrial, try_case

__all__ = ("CASES", "SOAK", "Stress", "StressCase", "StressReport", "run_stress")

_LIBRARIES = ("ai-edge-litert", "onnxruntime")


class Stress(msgspec.Struct, frozen=True, kw_only=True):
    """What is tried: ``cases`` on ``devices`` by ``transports``, for so many minutes.

    Each has ``width`` processes. ``folder`` is where folders of failures are left, by
    default a temporary one.
    """

    cases: Sequence[StressCase]
    devices: Sequence[str]
    transports: Sequence[str] = (IN_PROCESS, REMOTE)
    minutes: float = 1.0
    width: int = 4
    seed: int = 0
    folder: Path | None = None
    patience_s: float = DEFAULT_PATIENCE_S

    def __str__(self) -> str:
        return (
            f"{self.minutes:g} minutes for all, {self.width} processes, "
            f"seed {self.seed}"
        )


def run_stress(
    stress: Stress,
    announce: Callable[[Sequence[str]], Iterable[str]] = iter,
    kept: Callable[[StressReport], None] = lambda report: None,
) -> StressReport:
    """Try each case on each device by each transport, one after the other.

    ``announce`` iterates over what is tried, in words, and shows that.
    If it is interrupted, ``kept`` is given what was tried by then.
    """
    ways = [
        (case, device, transport)
        for case in stress.cases
        for device in stress.devices
        for transport in stress.transports
    ]
    titles = [f"{case.name}, {device}, {way}" for case, device, way in ways]
    rows: list[StressRow] = []
    growth: list[Growth] = []

    def report(*, interrupted: bool = False) -> StressReport:
        return StressReport(
            format=FORMAT,
            made_at=begun,
            environment=describe_environment(**installed_versions(*_LIBRARIES)),
            settings=str(stress),
            rows=tuple(rows),
            growth=tuple(growth),
            interrupted=interrupted,
        )

    begun = datetime.now(UTC).replace(microsecond=0)
    if stress.folder is not None:
        stress.folder.mkdir(parents=True, exist_ok=True)
    try:
        for way, _ in zip(ways, announce(titles), strict=True):
            row, grown = _tried(_trial(stress, len(ways), *way))
            rows.append(row)
            growth += grown
    except KeyboardInterrupt:
        kept(report(interrupted=True))
        raise
    return report()


def _tried(trial: StressTrial) -> tuple[StressRow, Sequence[Growth]]:
    is_kept = False
    try:
        row, growth = soak(trial) if trial.case is SOAK else (try_case(trial), [])
        is_kept = not row.has_passed
        return row, growth
    finally:
        if not is_kept:
            shutil.rmtree(trial.folder, ignore_errors=True)


def _trial(
    stress: Stress, ways: int, case: StressCase, device: str, transport: str
) -> StressTrial:
    name = f"stress-{case.name}-{device.replace(':', '-')}-{transport}-"
    minutes = stress.minutes / ways
    command = ["asyncnn", "stress", case.name, "--device", device]
    command += ["--transport", transport, "--minutes", f"{minutes:.3g}"]
    command += ["--width", str(stress.width), "--seed", str(stress.seed)]
    command += ["--patience", f"{stress.patience_s:g}"]
    return StressTrial(
        case=case,
        device=device,
        transport=transport,
        seconds=minutes * 60,
        width=stress.width,
        seed=stress.seed,
        folder=Path(tempfile.mkdtemp(prefix=name, dir=stress.folder)),
        command=shlex.join(command),
        patience_s=stress.patience_s,
    )
