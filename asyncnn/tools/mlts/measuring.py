"""Measures one model on all ways to run it, in interleaved rounds.

In each round every contender runs a batch, and the order rotates, so that what slows
the machine for a while slows all of them. Figures are of every run of all rounds.
Energy is what the machine says it has used.
"""

from asyncio import sleep
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from math import ceil, inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError
from asyncnn.tools.bench.rounds import OWN, RAPL, Batch, EnergyMeter, rotated, timed
from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
from asyncnn.tools.mlts.contenders import (
    LITERT,
    PATHS,
    PEERS,
    Contender,
    MeasuredDevice,
    peer_contender,
    peer_row,
)
from asyncnn.tools.mlts.evaluators import Evaluator, Sequences
from asyncnn.tools.mlts.suite_models import SuiteModel
from asyncnn.tools.mlts.suite_records import Accuracy, Latency, SuiteRow
from asyncnn.tools.mlts.trials import Trial

ROUNDS = 5

_AT_ONCE_US = 250_000.0
"""Of runs that cannot be cancelled in between."""


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """How models are measured. ``powercap`` is where energy is read.

    Each contender has at most ``runs`` runs, which take about ``seconds`` at most, and
    one in each round. The driver that serves ``socket`` is measured beside the devices.
    """

    devices: Sequence[str]
    paths: Sequence[str] = PATHS
    transports: Sequence[str] = (IN_PROCESS, REMOTE)
    peers: Sequence[str] = PEERS
    runs: int = 100
    seconds: float = 1.0
    powercap: Path = RAPL
    socket: Path | None = None

    def __str__(self) -> str:
        return (
            f"at most {self.runs} runs or about {self.seconds:g} s in {ROUNDS} rounds, "
            "on any CPU"
        )


class _MeasuredContender:
    """A contender with what was found of it so far."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.outputs: Sequences | None = None
        self.us: list[float] = []
        self.joules: list[float] = []
        self.least_us = inf
        self.refusal = ""
        self.batch: Batch | None = None

    async def try_out(self, trial: Trial) -> None:
        """Run all samples, which warms up, and keep the outputs.

        A way that begins each sample with the first state has no outputs to be judged
        by where samples depend on those before them.
        """
        contender, outputs = self.contender, []
        try:
            for steps in trial.sequences:
                await contender.begin()
                outputs.append([await self._once(sample) for sample in steps])
            feeds = cycle([contender.feed(sample) for sample in trial.samples])
            call = contender.call

            def once() -> Any:
                return call(next(feeds))

            self.batch = await timed(once)
        except AsyncnnError as error:
            self.refusal = str(error)
            return
        if contender.keeps_state or not trial.has_steps:
            self.outputs = outputs

    async def _once(self, sample: Any) -> Any:
        started = perf_counter()
        outputs = await self.contender.run(sample)
        self.least_us = min(self.least_us, (perf_counter() - started) * 1e6)
        return outputs

    async def run_batch(self, suite: Suite, meter: EnergyMeter | None) -> None:
        """Run the part of one round."""
        if self.refusal or self.batch is None:
            return
        within = suite.seconds * 1e6 / max(self.least_us, 1e-3)
        runs = max(1, ceil(min(suite.runs, within) / ROUNDS))
        if meter is not None:
            meter.joules()
        us: list[float] = []
        at_once = ceil(_AT_ONCE_US / max(self.least_us, 1e-3))
        try:
            for first in range(0, runs, at_once):
                us += (await self.batch(min(at_once, runs - first)))[OWN]
                # What runs on this thread awaits nothing, and is cancelled here alone.
                await sleep(0)
        except AsyncnnError as error:
            self.refusal = str(error)
            return
        self.us += us
        used = None if meter is None else meter.joules()
        if used is not None:
            self.joules.append(used / runs)

    def row(self, accuracy: Accuracy | None) -> SuiteRow:
        """Return what was found."""
        return replace(
            self.contender.row,
            refusal=self.refusal,
            latency=Latency.of(self.us) if self.us and not self.refusal else None,
            joules=round(median(self.joules), 9) if self.joules else None,
            accuracy=accuracy,
        )


async def measure_model(
    model: SuiteModel,
    targets: Sequence[MeasuredDevice],
    suite: Suite,
    meter: EnergyMeter | None,
    step_done: Callable[[str], None],
    rows: list[SuiteRow],
) -> None:
    """Prepare a model everywhere, judge its outputs, and time it in rounds.

    ``step_done`` is called after it is prepared and each of `ROUNDS`. Rows are added,
    of what was measured until then if this is cancelled. What refuses the model, or
    fails with it, is a row that says why.
    """
    trial, name = model.trial, model.name
    if trial is None:
        return
    contenders: list[Contender] = []
    refused: list[SuiteRow] = []
    async with AsyncExitStack() as stack:
        for target in targets:
            ready, others = await target.contenders(stack, model, suite.paths)
            contenders += ready
            refused += others
        for row in (peer_row(peer, model) for peer in suite.peers):
            try:
                contenders.append(peer_contender(row, model))
            except AsyncnnError as error:
                refused.append(replace(row, refusal=str(error)))
        entries = list(map(_MeasuredContender, contenders))
        for entry in entries:
            await entry.try_out(trial)
        step_done(f"{name}, prepared")
        try:
            for number in range(ROUNDS):
                for entry in rotated(entries, number):
                    await entry.run_batch(suite, meter)
                step_done(f"{name}, round {number + 1} of {ROUNDS}")
        finally:
            accuracies = judged(trial, entries)
            found = [
                entry.row(accuracy)
                for entry, accuracy in zip(entries, accuracies, strict=True)
            ]
            rows += [row for row in found if row.latency or row.refusal]
            rows += refused


def judged(
    trial: Trial, entries: Sequence[_MeasuredContender]
) -> list[Accuracy | None]:
    """Return how each one's outputs are judged.

    Expected outputs are of kernels that round in one of several ways that are
    right. Where LiteRT is held beside the same ones, a device may be as far off.
    """
    allowance = 0.0
    for entry in entries:
        if entry.contender.row.system == LITERT and trial.is_shared:
            accuracy = _accuracy(trial.of_peers, entry, 0.0)
            if accuracy is not None and accuracy.largest_error is not None:
                allowance = accuracy.largest_error
    return [
        _accuracy(
            trial.of_peers if entry.contender.reads_file else trial.evaluator,
            entry,
            allowance,
        )
        for entry in entries
    ]


def _accuracy(
    evaluator: Evaluator | None, entry: _MeasuredContender, allowance: float
) -> Accuracy | None:
    if evaluator is None or entry.outputs is None or entry.refusal:
        return None
    return evaluator.judge(entry.outputs, allowance)
