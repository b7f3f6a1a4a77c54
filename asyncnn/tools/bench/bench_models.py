"""``asyncnn bench models``: model files beside the engines that they are written for.

The default device comes first: its runs stand beside what one would write oneself, the
engine as it comes, on a thread that is awaited.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncnn
from asyncnn.deadlines import format_duration
from asyncnn.devices.own_devices import usual_device_name
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model import open_model_file
from asyncnn.tools.bench import environment, measured_models, report
from asyncnn.tools.bench.benches import Place
from asyncnn.tools.bench.measured_models import (
    LITERT,
    LITERT_REF,
    Difference,
    difference_text,
)
from asyncnn.tools.bench.rounds import (
    Batch,
    Batches,
    Call,
    Figures,
    Order,
    Samples,
    measure,
    timed,
)
from asyncnn.tools.other_runtimes import (
    LiteRt,
    OnnxFile,
    PeerRefusedError,
    as_peer_takes,
    litert_version,
)
from asyncnn.tools.samples import hinting_open_axes, random_sample

DEVICE, AWAITED, ACCELERATED = "device", "awaited", "accelerated"
EXECUTOR, TO_THREAD = "executor", "to_thread"

_REFERENCE = "reference"
TITLES = {
    AWAITED: _REFERENCE,
    EXECUTOR: "LiteRT",
    TO_THREAD: "ONNX Runtime",
    LITERT: "LiteRT's invoke",
    LITERT_REF: "LiteRT's reference kernels",
    DEVICE: "reference, on the device",
}
"""What contenders are called; devices have their names.

`DEVICE` is HAL Timing's ``time_on_device``. The engines are what one would write
oneself: LiteRT in `run_in_executor`, ONNX Runtime in `asyncio.to_thread`.
"""

_ENGINES = {FileKind.TFLITE: EXECUTOR, FileKind.ONNX: TO_THREAD}
PEERS = (LITERT, LITERT_REF)

LONGEST_S = 2.0
"""Runs that take longer are not repeated: there are 21 of each at least."""

SETTLE_S = 0.1
"""Before each batch: threads of ONNX Runtime spin for some time after a run."""

REF_MATTERS_ABOVE_US = 100.0
"""Models that take the reference kernels less are too small for the general goal."""

_GOALS = {
    "kws_ref_model": [(DEVICE, LITERT_REF, 0.5)],
    "mobilenet_v1_224_float": [(DEVICE, LITERT_REF, 0.1), (DEVICE, LITERT, 2.5)],
    "pretrainedResnet": [(DEVICE, LITERT_REF, 0.1), (DEVICE, LITERT, 2.5)],
    "pretrainedResnet_quant": [(DEVICE, LITERT_REF, 0.5), (DEVICE, LITERT, 10.0)],
    "vww_96_float": [(DEVICE, LITERT_REF, 0.5), (DEVICE, LITERT, 8.0)],
    "vww_96_int8": [
        (DEVICE, LITERT_REF, 0.5),
        (DEVICE, LITERT, 16.0),
        (ACCELERATED, EXECUTOR, 1.05),
    ],
    "trained_lstm_int8": [(ACCELERATED, LITERT, 1.4)],
    "dtln_noise_suppression": [(ACCELERATED, LITERT, 1.2)],
}
"""By model; others are not to be slower than the reference kernels."""


def figure_of(device: str) -> str:
    """Return the name of the figure that awaited runs of a device have."""
    return AWAITED if device == _REFERENCE else device


def goals_for(model: str, ref_us: float | None) -> list[report.Goal]:
    """Return the goals of ``model``.

    ``ref_us`` is what LiteRT's reference kernels take, None if that is unknown.
    """
    goals = [report.Goal(*each) for each in _GOALS.get(model, ())]
    is_tiny = ref_us is None or ref_us <= REF_MATTERS_ABOVE_US
    if not is_tiny and all(goal.figure != DEVICE for goal in goals):
        goals.insert(0, report.Goal(DEVICE, LITERT_REF, 1.0))
    return goals


def judge_model(
    model: str,
    figures: Figures,
    refusals: dict[str, str],
    *,
    is_own: bool = True,
    **known: Any,
) -> report.Measured:
    """Derive ratios and verdicts from the figures of a model.

    Peers that were not measured are left out. Only the project's own models have goals.
    ``known`` is what is known of the model besides: its ``file``, the figure of its
    ``engine``, ``ratio`` and ``difference`` of that to the default device, and
    differences of both devices to LiteRT.
    """
    ref = figures.get(LITERT_REF)
    goals = goals_for(model, None if ref is None else ref.us) if is_own else ()
    facts: dict[str, Any] = dict.fromkeys(("file", "engine"), "")
    facts |= dict.fromkeys(("ratio", "difference", "difference_to_ref"))
    codes = known.setdefault("accelerated_difference", None)
    facts |= known
    facts["is_exact"] = (
        codes.largest == 0 if is_own and codes and codes.in_steps else None
    )
    facts["ratios"] = {
        peer: figures[DEVICE].ratio_to(figures[peer])
        for peer in PEERS
        if DEVICE in figures and peer in figures
    }
    return report.Measured.judged(model, figures, goals, refusals, **facts)


def named(models: Sequence[report.Measured]) -> dict[str, report.Measured]:
    """Return the models by the names of their files, as short as they differ."""
    names = [each.name for each in models]
    return {
        each.name if names.count(each.name) == 1 else each.facts["file"]: each
        for each in models
    }


def _goal_rows(name: str, model: report.Measured) -> Iterator[report.Row]:
    for each in model.verdicts:
        limit = report.Outcome(f"{each.limit:.3g}", each.met)
        yield f"{name}: {each.figure} / {each.peer}", f"{each.ratio:.3f}", limit
    is_exact = model.facts["is_exact"]
    if is_exact is not None:
        differs = difference_text(model.facts["accelerated_difference"])
        yield f"{name}: accelerated differs", differs, report.Outcome("0", is_exact)


def reported(
    rounds: int,
    where: str,
    devices: Sequence[str],
    models: Sequence[report.Measured],
    peers: Mapping[str, str] | None = None,
) -> report.BenchReport:
    """Return the report on models that ``devices`` ran, the default one first."""
    first, *others = devices
    found = named(models)
    rows = [
        (
            name,
            each.time(figure_of(first)),
            each.time(each.facts["engine"]),
            "-" if each.facts["ratio"] is None else f"{each.facts['ratio']:.2f}",
            *(each.time(figure_of(other)) for other in others),
            difference_text(each.facts["difference"]),
        )
        for name, each in found.items()
    ]
    headings = ("", first, "engine", "ratio", *others, "differs")
    tables = [report.ReportTable("microseconds of an awaited run", headings, [rows])]
    goals = [row for name, each in found.items() for row in _goal_rows(name, each)]
    if goals:
        tables.append(report.ReportTable("goals", ("", "measured", "at most"), [goals]))
    records = [each.record("model") for each in models]
    return report.BenchReport(
        report.documented(
            rounds, peers, placement=where, devices=devices, models=records
        ),
        tables,
        [
            *report.refusal_notes(
                {name: m.refusals for name, m in found.items()}, TITLES
            )
        ],
        {
            name: {TITLES.get(key, key): us for key, us in each.us.items()}
            for name, each in found.items()
        },
    )


def bench(order: Order) -> report.BenchReport:
    """Measure models, see `model_files`. Goals are judged if no folder is named."""
    peers = environment.installed_versions("onnxruntime")
    with suppress(environment.PeerMissingError):
        peers["litert"] = litert_version()
    suffixes = measured_models.MODEL_SUFFIXES
    with (
        measured_models.model_files(order, suffixes) as paths,
        environment.placement(environment.ALL_CPUS) as where,
    ):
        devices, models = asyncio.run(_measured(paths, order))
    return reported(order.rounds, where, devices, models, peers)


async def _measured(
    paths: Sequence[Path], order: Order
) -> tuple[list[str], list[report.Measured]]:
    """Measure files on the default device, and on the two that come with asyncnn."""
    names = list(dict.fromkeys((await usual_device_name(), ACCELERATED, _REFERENCE)))
    devices: dict[str, asyncnn.Device] = {}
    async with AsyncExitStack() as stack:
        place = Place(stack)
        for name in names:
            with place.noted(figure_of(name)):
                devices[name] = await place.device(name=name)
        models = [
            await _file(path, order, devices, place.refusals, figure_of(names[0]))
            for path in order.progress(paths)
        ]
    return names, models


async def _settled(batch: Batch, runs: int) -> Samples:
    await asyncio.sleep(SETTLE_S)
    return await batch(runs)


async def _file(
    path: Path,
    order: Order,
    devices: Mapping[str, asyncnn.Device],
    refusals: dict[str, str],
    ours: str,
) -> report.Measured:
    """Measure a file on devices, whose default has the figure ``ours``, and engines."""
    started, outputs = dict[str, Call | Batches](), dict[str, list[Array]]()
    run: Callable[[], Awaitable[Any]]
    async with AsyncExitStack() as stack:
        place = Place(stack)
        place.refusals |= refusals
        model, kind = None, None
        with place.noted(*map(figure_of, devices)):
            kind = kind_of(open_model_file(path))
            model = asyncnn.load(path, input_shapes=order.input_shapes)
        peers = _peers(path, kind, model, place)
        inputs = _inputs(model, [*peers.values()])
        for name, device in devices.items() if model is not None else ():
            figure = figure_of(name)
            with place.noted(figure), hinting_open_axes(model):
                prepared = await device.prepare(model)
                run = partial(prepared.run, inputs)
                outputs[figure] = list((await _tried(run)).values())
                is_ours = name != _REFERENCE
                both = measured_models.on_device(prepared, inputs, awaited=AWAITED)
                started[name] = run if is_ours else both
        for name, peer in peers.items():
            with place.noted(name):
                run = await _run_of(peer, _as_taken(peer, inputs), place)
                outputs[name] = await _tried(run)
                started[name] = peer.invoke if name in PEERS else run  # type: ignore[union-attr]
        settled = {
            name: Batches(partial(_settled, await timed(each)))
            for name, each in started.items()
        }
        figures = await measure(settled, rounds=order.rounds)

    def difference(one: str, other: str) -> Difference | None:
        if not {one, other} <= outputs.keys():
            return None
        return measured_models.largest_difference(outputs[one], outputs[other])

    engine = _ENGINES.get(kind, "") if kind else ""
    has_both = {ours, engine} <= figures.keys()
    return judge_model(
        path.stem,
        figures,
        place.refusals,
        is_own=order.folder is None,
        file=path.name,
        engine=engine,
        ratio=figures[ours].ratio_to(figures[engine]) if has_both else None,
        difference=difference(ours, engine),
        difference_to_ref=difference(AWAITED, LITERT_REF),
        accelerated_difference=difference(ACCELERATED, LITERT),
    )


def _peers(
    path: Path, kind: FileKind | None, model: asyncnn.NamedModel | None, place: Place
) -> dict[str, LiteRt | OnnxFile]:
    """Open what reads files of a kind: as it comes, and for goals otherwise."""
    infos = () if model is None else model.inputs
    shapes = [tuple(length or 1 for length in info.dimensions) for info in infos]
    litert = partial(LiteRt, path, input_shapes=shapes)
    opening: dict[str, Callable[[], LiteRt | OnnxFile]] = {}
    if kind is FileKind.TFLITE:
        opening[EXECUTOR] = partial(litert, threads=None)
        opening |= {LITERT: litert, LITERT_REF: partial(litert, reference=True)}
    elif kind is FileKind.ONNX:
        opening[TO_THREAD] = partial(OnnxFile, path, threads=None)
    peers = {}
    for name, open_ in opening.items():
        with place.noted(name):
            peers[name] = open_()
    return peers


def _inputs(
    model: asyncnn.NamedModel | None, peers: Sequence[LiteRt | OnnxFile]
) -> list[Array]:
    """Return reproducible inputs of a model, or else of what could open its file."""
    if model is not None:
        return list(random_sample(model.inputs).values())
    return measured_models.random_inputs(peers[0].input_kinds()) if peers else []


def _as_taken(peer: LiteRt | OnnxFile, inputs: Sequence[Array]) -> list[Array]:
    """Return inputs as a peer takes them.

    :raises PeerRefusedError: if it takes another number of them.
    """
    kinds = peer.input_kinds()
    if len(kinds) != len(inputs):
        raise PeerRefusedError(f"it takes {len(kinds)} inputs, not {len(inputs)}")
    return [as_peer_takes(x, *kind) for x, kind in zip(inputs, kinds, strict=True)]


async def _run_of(
    peer: LiteRt | OnnxFile, inputs: list[Array], place: Place
) -> Callable[[], Awaitable[Any]]:
    """Return what awaits a peer on a thread."""
    peer.reset()
    if isinstance(peer, OnnxFile):
        return partial(asyncio.to_thread, peer.run, inputs)
    return await place.enter(measured_models.in_executor(peer, inputs))


async def _tried(run: Callable[[], Awaitable[Any]]) -> Any:
    """Run once, and again if that took long: first runs do more than others.

    :raises GeneralFailureError: if it takes too long to be repeated.
    """
    for _ in range(2):
        started = time.perf_counter()
        outputs = await run()
        taken_s = time.perf_counter() - started
        if taken_s <= LONGEST_S:
            return outputs
    raise GeneralFailureError(
        f"a run takes {format_duration(taken_s * 1e6)}, too long to be repeated"
    )
