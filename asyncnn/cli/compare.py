"""``asyncnn compare``: a model file beside the runtime of others that reads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from asyncnn.cli.options import (
    AtolOption,
    ConstantOption,
    ExtensionOption,
    InputShapeOption,
    LsbOption,
    PathOption,
    RtolOption,
    SamplesOption,
    StrictOption,
    TransportOption,
    chosen,
    constants_of,
    counted,
    load_extended,
    print_json,
    progress,
)
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable, write_file

if TYPE_CHECKING:
    from asyncnn.tools.comparison import ComparisonReport, PeerKind


def compare(
    model: Annotated[
        Path, typer.Argument(help="A TFLite or ONNX file, or a folder of such files.")
    ],
    peer: Annotated[
        Literal["litert", "onnxruntime"],
        typer.Option("--with", help="The runtime to compare with."),
    ],
    input_file: SamplesOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device to run on, one of asyncnn devices; by default "
            "$ASYNCNN_DEVICE, else accelerated where it works, and reference with "
            "--reference-kernels."
        ),
    ] = None,
    extension: ExtensionOption = None,
    input_shape: InputShapeOption = None,
    constant: ConstantOption = None,
    strict: StrictOption = False,
    path: PathOption = "async",
    transport: TransportOption = "inprocess",
    reference_kernels: Annotated[
        bool,
        typer.Option(
            "--reference-kernels", help="Compare with LiteRT's reference kernels."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")] = 0,
    samples: Annotated[
        int, typer.Option(min=0, help="Random inputs; 0 for given ones alone.")
    ] = 10,
    lsb: LsbOption = 1,
    rtol: RtolOption = None,
    atol: AtolOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write a page with the table of a folder there."),
    ] = None,
) -> None:
    """Compare what a model gives with what LiteRT or ONNX Runtime gives.

    Prints how much each output differs at most: in steps of its quantisation,
    or absolute and as a share of its largest magnitude. Inputs are random, codes
    over the whole range of their type. A model with state keeps it from sample
    to sample, here and there. An awaited run is timed beside the runtime's.
    Needs the runtime: pip install asyncnn\\[bench].

    Of a folder, each file is compared in a process of its own, and one line
    tells of each: whether it agrees, both times, or why it does not run.

    Exits with 1 if an output is out of tolerance, with 2 on bad input.
    """
    import anyio

    from asyncnn.cli.model_runs import PATHS
    from asyncnn.devices.auto_device import default_device_name, usual_device_name
    from asyncnn.runtime.file_kinds import kind_of
    from asyncnn.runtime.model import located, open_model_file
    from asyncnn.tools.comparison import Comparison, PeerKind, compare_model
    from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
    from asyncnn.tools.samples import Tolerance, load_arrays
    from asyncnn.tools.samples import samples as samples_of

    tolerance = Tolerance.asked(lsb, rtol, atol)
    kind = {"litert": PeerKind.LITERT, "onnxruntime": PeerKind.ONNX_RUNTIME}[peer]
    if model.is_dir():
        if input_file is not None:
            raise InvalidArgumentError("given inputs are for one file, not a folder")
        options = [
            *("--with", peer, "--path", path, "--transport", transport),
            *("--seed", str(seed), "--samples", str(samples), "--lsb", str(lsb)),
            *(() if rtol is None else ("--rtol", str(rtol))),
            *(() if atol is None else ("--atol", str(atol))),
            *(() if device is None else ("--device", device)),
            *(("--reference-kernels",) if reference_kernels else ()),
            *(("--strict",) if strict else ()),
            *(part for each in extension or () for part in ("--extension", each)),
        ]
        _compare_folder(model, kind, options, json, html)
        return
    file = open_model_file(model)
    with located(model):
        kind.check_reads(kind_of(file))
    named, _ = load_extended(
        model, extension or (), input_shape or (), constant or (), strict=strict
    )
    given = (
        []
        if input_file is None
        else samples_of(load_arrays(input_file), "input", named.inputs, input_file)
    )
    if not device and reference_kernels:
        device = default_device_name(exact=True)
    comparison = Comparison(
        path=model,
        named=named,
        peer=kind,
        reference_kernels=reference_kernels,
        device=device or anyio.run(usual_device_name),
        extensions=tuple(extension or ()),
        paths=tuple(PATHS[name] for name in chosen("path", path, tuple(PATHS))),
        transports=tuple(chosen("transport", transport, (IN_PROCESS, REMOTE))),
        given=tuple(given),
        random=samples,
        seed=seed,
        tolerance=tolerance,
        constants=constants_of(constant or ()),
    )
    report = anyio.run(compare_model, comparison)
    if json:
        print_json(report)
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(1)


def _compare_folder(
    folder: Path,
    peer: "PeerKind",
    options: Sequence[str],
    json: bool,
    html: Path | None,
) -> None:
    from asyncnn.tools.folder_comparison import (
        FolderReport,
        compare_file,
        files_in,
        page_of,
    )
    from asyncnn.tools.pages.drawing import draw

    check_writable(html)
    reports = []
    for path in progress(files_in(folder, peer), "comparing"):
        reports.append(compare_file(folder, path, options))
        if not json:
            typer.echo(reports[-1])
    passed = all(each.passed for each in reports)
    report = FolderReport(str(folder), peer.title, passed, tuple(reports))
    if json:
        print_json(report)
    if html is not None:
        write_file(html, draw(page_of(report)))
    if not passed:
        raise typer.Exit(1)


def _print(report: "ComparisonReport") -> None:
    typer.echo(
        f"on {report.device}, version {report.version}, beside {report.peer} "
        f"{report.peer_version}"
    )
    for series in report.series:
        verdict = "all within tolerance" if series.passed else "OUT OF TOLERANCE"
        typer.echo(
            f"{series.path}, {series.transport}: "
            f"{counted(series.samples, f'{series.inputs} sample')}, {verdict}"
        )
        for output in series.outputs:
            typer.echo(f"  {output}")
    typer.echo(
        f"awaited {report.run_us:.0f} us, {report.peer} in to_thread "
        f"{report.peer_us:.0f} us: {report.run_us / report.peer_us:.2f} times"
    )
