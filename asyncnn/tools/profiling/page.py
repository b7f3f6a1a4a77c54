"""A profile as a page: its tables, and the graph of operations coloured by time."""

from collections.abc import Sequence

from asyncnn.deadlines import format_duration
from asyncnn.tools.pages import (
    Column,
    DrawnGraph,
    DrawnNode,
    Judged,
    Page,
    Part,
    SortableTable,
    Text,
    Value,
)
from asyncnn.tools.profiling import OperationProfile, Profile

_TIME = Column("time", "us")
_SHARE = Column("share", "%", help="of a run")


def page_of(profile: Profile, shown: Sequence[OperationProfile]) -> Page:
    """Return the page of a profile, whose table has the operations ``shown``."""
    parts: list[Part] = [Text(line) for line in headlines(profile)]
    parts.append(_operations(profile, shown))
    if len(profile.partitions) > 1:
        parts.append(_partitions(profile))
    if profile.segments:
        parts.append(_segments(profile))
    parts += [_stages(profile), _graph(profile)]
    return Page(
        title=f"Profile of {profile.model} on {profile.device}",
        parts=parts,
        circumstances=(f"{profile.device} {profile.version}", profile.environment),
    )


def headlines(profile: Profile) -> list[str]:
    """Return what a profile says in short, in sentences."""
    devices = {each.device for each in profile.partitions}
    where = profile.device
    if devices != {where}:
        where += f", which hands it to {' and '.join(sorted(devices))}"
    run, observed, observing = map(
        format_duration, (profile.run_us, profile.observed_us, profile.observing_us)
    )
    is_shown = round(profile.observing_us)
    lines = [
        f"On {where}. A run takes {run}, the median of {profile.runs}. While it is "
        f"recorded it takes {observed}, as stages are longer then"
        + (f"; {observing} to time operations are taken off." if is_shown else "."),
        f"{profile.operations_share:.1%} of an observed run are operations; "
        f"{min(profile.accounted, 1):.1%} are accounted for. "
        f"Inputs: {profile.inputs}.",
    ]
    if any(each.is_apportioned for each in profile.operations):
        lines.append(
            "Times with ~ are a segment's own, measured time, shared out among its "
            "operations by what each takes as a graph of its own."
        )
    if any(each.kernel.endswith(", anew") for each in profile.operations):
        lines.append(
            "Kernels marked anew are prepared in each run, as shapes or weights come "
            "with it."
        )
    reported = [str(n) for n, p in enumerate(profile.partitions) if p.is_reported]
    if reported:
        some = f"partition{'' if len(reported) == 1 else 's'} {', '.join(reported)}"
        lines.append(
            f"Operations of {some} are not seen: another process computes them, and "
            "reports the time of the whole."
        )
    if profile.folded and profile.operations:
        lines.append(
            f"{profile.folded} of the main subgraph's operations have no part in runs: "
            "they are computed when the model is prepared, or not needed."
        )
    return lines


def _operations(profile: Profile, shown: Sequence[OperationProfile]) -> SortableTable:
    is_divided = len(profile.partitions) > 1
    columns = [
        Column("operation", help="with its number, and its subgraph's if not main"),
        _TIME,
        _SHARE,
        Column("calls", help="in a run"),
        Column("moved", "bytes", help="inputs, outputs and weights"),
        Column("weights", "bytes"),
        Column(
            "temporaries", "bytes", help="results that only the plan keeps, scratch"
        ),
        Column("kernel", help="anew: prepared in each run, of what comes with it"),
        Column("rounding", help="of results to codes"),
        Column("measured", help="by itself, or shared out from a segment's time"),
        *([Column("partition"), Column("device")] if is_divided else ()),
    ]
    rows: list[Sequence[Value]] = [
        (
            Judged(f"{each.place}: {each.type}", value=float(number)),
            each.time_us,
            each.share * 100,
            int(each.calls) if each.calls.is_integer() else each.calls,
            each.moved_bytes,
            each.weight_bytes,
            each.temporary_bytes,
            each.kernel,
            each.rounding,
            "~ segment" if each.is_apportioned else "itself",
            *((each.partition, each.device) if is_divided else ()),
        )
        for number, each in enumerate(shown)
    ]
    note = ""
    if len(shown) < len(profile.operations):
        note = f"{len(shown)} of {len(profile.operations)} operations are shown."
    return SortableTable(title="Operations", columns=columns, rows=rows, note=note)


def _partitions(profile: Profile) -> SortableTable:
    return SortableTable(
        title="Partitions",
        columns=(
            *(Column("partition"), Column("device"), Column("operations")),
            *(_TIME, _SHARE, Column("arena", "bytes"), Column("instead of")),
        ),
        rows=[
            (
                str(number),
                each.device,
                len(each.operations),
                each.time_us,
                None if each.share is None else each.share * 100,
                each.arena_bytes,
                each.instead_of,
            )
            for number, each in enumerate(profile.partitions)
        ],
        note="A partition without a time is computed by another process, which "
        "reports none.",
    )


def _segments(profile: Profile) -> SortableTable:
    return SortableTable(
        title="Segments of another engine",
        columns=(
            *(Column("segment"), Column("engine"), Column("operations")),
            *(_TIME, _SHARE),
            Column("one by one", "us", help="its operations as graphs of their own"),
        ),
        rows=[
            (
                str(number),
                each.engine,
                len(each.operations),
                each.time_us,
                each.share * 100,
                each.parts_us,
            )
            for number, each in enumerate(profile.segments)
        ],
        note="Each was measured. Shares of operations within are apportioned.",
    )


def _stages(profile: Profile) -> SortableTable:
    return SortableTable(
        title="Besides operations",
        columns=(Column("stage"), _TIME, _SHARE, Column("meaning")),
        rows=[
            (each.name, each.time_us, each.share * 100, each.meaning)
            for each in profile.stages
        ],
    )


def _graph(profile: Profile) -> DrawnGraph:
    """Return all operations; the one that takes longest has the strongest colour."""
    longest_us = max((each.time_us for each in profile.operations), default=0.0)
    several = len(profile.partitions) > 1
    nodes = [
        DrawnNode(
            name=str(number),
            label=f"{each.place} {each.type}\n{_time(each)}",
            share=each.time_us / longest_us if longest_us else 0.0,
            details=_details(each),
            group=f"partition {each.partition}, {each.device}" if several else "",
        )
        for number, each in enumerate(profile.operations)
    ]
    edges = [
        (str(source), str(number), _shape(profile.operations[source]))
        for number, each in enumerate(profile.operations)
        for source in each.reads
    ]
    return DrawnGraph(
        title="Operations by time",
        nodes=nodes,
        edges=edges,
        note="Colours show shares of what the longest operation takes.",
    )


def _details(each: OperationProfile) -> dict[str, str]:
    return {
        "time": f"{_time(each)}, {each.share:.1%} of a run",
        "calls": f"{each.calls:g} in a run",
        "device": each.device,
        "kernel": each.kernel,
        "rounding": each.rounding,
        "inputs": f"{each.input_bytes:,} bytes",
        "outputs": f"{each.output_bytes:,} bytes",
        "weights": f"{each.weight_bytes:,} bytes",
        "temporaries": "the engine's"
        if each.temporary_bytes is None
        else f"{each.temporary_bytes:,} bytes",
    }


def mark(each: OperationProfile) -> str:
    """Return what stands before the time of an operation: ~ if it is apportioned."""
    return "~" if each.is_apportioned else ""


def _time(each: OperationProfile) -> str:
    return f"{mark(each)}{format_duration(each.time_us)}"


def _shape(each: OperationProfile) -> str:
    shape = each.shapes[0] if each.shapes else None
    return "" if shape is None else "x".join(map(str, shape))
