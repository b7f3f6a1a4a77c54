"""Floor 7: the benchmark of the Android Machine Learning Test Suite.

Every model of a folder on every device, path and transport, beside LiteRT and ONNX
Runtime, interleaved: how long it takes, what it needs, and how accurate it is. Reports
are records (`suite_records`), from which tables, CSV files (`suite_csv`) and pages
(`suite_page`) are made at any time.

>>> with suite_models(Wanted(folder=Path("models"))) as models:
...     report = asyncio.run(run_suite(models, Suite(devices=("reference",))))
"""

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeAlias

from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, counted
from asyncnn.runtime.framework.device_registry import (
    SAMPLE,
    opener_of,
    registered_devices,
)
from asyncnn.runtime.model_file import bundled_file, load
from asyncnn.tools.bench.environment import describe_environment, installed_versions
from asyncnn.tools.bench.rounds import EnergyMeter
from asyncnn.tools.mlts.contenders import (
    MeasuredDevice,
    open_targets,
    peer_contender,
    peer_row,
)
from asyncnn.tools.mlts.measuring import ROUNDS, Suite, measure_model
from asyncnn.tools.mlts.suite_models import SuiteModel, Wanted, suite_models
from asyncnn.tools.mlts.suite_records import FORMAT, SuiteReport, SuiteRow
from asyncnn.tools.samples import random_sample

__all__ = (
    "Suite",
    "SuiteReport",
    "Wanted",
    "chosen_devices",
    "run_suite",
    "suite_models",
)

ALL = "all"

_LIBRARIES = ("ai-edge-litert", "onnxruntime")
_NO_ENERGY = "energy: the machine does not say, or not to this user"
_SMALL_MODEL = "digits_float.asyncnn"

OnStep: TypeAlias = Callable[[int, int, str], None]
"""Gets how many steps of how many are done, and which was the last."""


def chosen_devices(names: Sequence[str]) -> list[str]:
    """Return the devices that names stand for: ``all`` is each that is no sample.

    :raises InvalidArgumentError: if there is no device of a name.
    """
    found: list[str] = []
    for name in names:
        if name == ALL:
            known = registered_devices()
            found += [each for each in known if not each.startswith(SAMPLE)]
        else:
            opener_of(name)
            found.append(name)
    return list(dict.fromkeys(found))


async def run_suite(
    models: Sequence[SuiteModel],
    suite: Suite,
    on_step: OnStep = lambda done, total, what: None,
    kept: Callable[[SuiteReport], None] = lambda report: None,
) -> SuiteReport:
    """Measure models, each on all devices, paths and transports by turns.

    If it is cancelled, ``kept`` is given what was measured by then, whole rounds of a
    model: nothing if there is none.

    :raises GeneralFailureError: if no device can be opened.
    """
    steps, total = 0, len(models) * (ROUNDS + 1)

    def step_done(what: str) -> None:
        nonlocal steps
        steps += 1
        on_step(steps, total, what)

    rows: list[SuiteRow] = []
    meter = EnergyMeter.found(suite.powercap)

    def report(notes: Sequence[str], interrupted: str = "") -> SuiteReport:
        if meter is None:
            notes = [*notes, _NO_ENERGY]
        return SuiteReport(
            format=FORMAT,
            made_at=datetime.now(UTC).replace(microsecond=0),
            environment=describe_environment(**installed_versions(*_LIBRARIES)),
            settings=str(suite),
            models=tuple(model.record for model in models),
            rows=tuple(rows),
            notes=tuple(notes),
            interrupted=interrupted,
        )

    opening = open_targets(suite.devices, suite.transports, suite.socket)
    async with opening as (targets, notes):
        if not targets:
            raise GeneralFailureError(f"no device can be opened: {'; '.join(notes)}")
        for target in targets:
            await _warm_up(target)
        _warm_up_peers(suite.peers, models)
        try:
            for number, model in enumerate(models, 1):
                await measure_model(model, targets, suite, meter, step_done, rows)
                steps = number * (ROUNDS + 1)
        except CancelledError:
            if any(row.latency is not None for row in rows):
                kept(report(notes, _how_far(steps, models)))
            raise
    return report(notes)


def _how_far(steps: int, models: Sequence[SuiteModel]) -> str:
    """Return after which models, and rounds of the next, measuring has ended."""
    done, rounds = divmod(steps, ROUNDS + 1)
    text = f"interrupted after {done} of {counted(len(models), 'model')}"
    if rounds > 1:
        text += f", and {rounds - 1} of {ROUNDS} rounds of {models[done].name}"
    return text


async def _warm_up(target: MeasuredDevice) -> None:
    """Have the device load what it needs once, which is no model's to pay for."""
    model = load(bundled_file(_SMALL_MODEL))
    with suppress(AsyncnnError):  # a device may refuse this one, and run others
        prepared = await target.device.prepare(model)
        await prepared.run(random_sample(model.inputs))


def _warm_up_peers(peers: Sequence[str], models: Sequence[SuiteModel]) -> None:
    """Have other runtimes load what they need once, with the smallest model."""
    readable = [model for model in models if model.named is not None]
    if not readable:
        return
    smallest = min(readable, key=lambda model: model.record.weights_bytes)
    for peer in peers:
        with suppress(AsyncnnError):  # reported where it is measured
            peer_contender(peer_row(peer, smallest), smallest)
