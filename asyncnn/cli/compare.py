"""``asyncnn compare``: a model file beside the runtime of others that reads it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from asyncnn.cli import options
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable, write_file

if TYPE_CHECKING:
    from asyncnn.tools.comparison import ComparisonReport, PeerKind
    from asyncnn.tools.samples import Tolerance


_ModelArgument: TypeAlias = Annotated[
    Path, typer.Argument(help="A TFLite or ONNX file, or a folder of such files.")
]
_PeerOption: TypeAlias = Annotated[
    Literal["litert", "onnxruntime"],
    typer.Option("--with", help="The runtime to compare with."),
]
_DeviceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Device to run on, one of asyncnn devices; by default "
        "$ASYNCNN_DEVICE, else accelerated where it works, and reference with "
        "--reference-kernels."
    ),
]
_ReferenceKernelsOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--reference-kernels", help="Compare with LiteRT's reference kernels."
    ),
]
_SamplesOption: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Random inputs; 0 for given ones alone.")
]
_HtmlOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--html", help="Write a page with the table of a folder there."),
]


def compare(
    model: _ModelArgument,
    peer: _PeerOption,
    input_file: options.SamplesOption = None,
    device: _DeviceOption = None,
    extension: options.ExtensionOption = None,
    input_shape: options.InputShapeOption = None,
    constant: options.ConstantOption = None,
    strict: options.StrictOption = False,
    path: options.PathOption = "async",
    transport: options.TransportOption = "inprocess",
    reference_kernels: _ReferenceKernelsOption = False,
    seed: options.SeedOption = 0,
    samples: _SamplesOption = 10,
    lsb: options.LsbOption = 1,
    rtol: options.RtolOption = None,
    atol: options.AtolOption = None,
    json: options.JsonOption = False,
    html: _HtmlOption = None,
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
    from asyncnn.tools.comparison import PeerKind
    from asyncnn.tools.samples import Tolerance

    tolerance = Tolerance.asked(lsb, rtol, atol)
    kind = {"litert": PeerKind.LITERT, "onnxruntime": PeerKind.ONNX_RUNTIME}[peer]
    if model.is_dir():
        if input_file is not None:
            raise InvalidArgumentError("given inputs are for one file, not a folder")
        flags = [
            *("--with", peer, "--path", path, "--transport", transport),
            *("--seed", str(seed), "--samples", str(samples), "--lsb", str(lsb)),
            *(() if rtol is None else ("--rtol", str(rtol))),
            *(() if atol is None else ("--atol", str(atol))),
            *(() if device is None else ("--device", device)),
            *(("--reference-kernels",) if reference_kernels else ()),
            *(("--strict",) if strict else ()),
            *(part for each in extension or () for part in ("--extension", each)),
        ]
        _compare_folder(model, kind, flags, json, html)
        return
    report = _compared(
        (model, extension or (), input_shape or (), constant or (), strict),
        (kind, reference_kernels),
        device,
        (path, transport),
        input_file,
        (samples, seed),
        tolerance,
    )
    if json:
        options.print_json(report)
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(1)


def _compared(
    asked: tuple[Path, Sequence[str], Sequence[str], Sequence[str], bool],
    beside: "tuple[PeerKind, bool]",
    device: str | None,
    ways: tuple[str, str],
    input_file: Path | None,
    random: tuple[int, int],
    tolerance: "Tolerance",
) -> "ComparisonReport":
    """Compare one file, as the options say."""
    import anyio

    from asyncnn.cli.model_runs import PATHS
    from asyncnn.devices.own_devices import default_device_name, usual_device_name
    from asyncnn.runtime.file_kinds import kind_of
    from asyncnn.runtime.model import located, open_model_file
    from asyncnn.tools.comparison import Comparison, compare_model
    from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE

    model, extensions, shapes, constants, strict = asked
    peer, reference_kernels = beside
    file = open_model_file(model)
    with located(model):
        peer.check_reads(kind_of(file))
    named, _ = options.load_extended(
        model, extensions, shapes, constants, strict=strict
    )
    if not device and reference_kernels:
        device = default_device_name(exact=True)
    path, transport = ways
    comparison = Comparison(
        path=model,
        named=named,
        peer=peer,
        reference_kernels=reference_kernels,
        device=device or anyio.run(usual_device_name),
        extensions=tuple(extensions),
        paths=tuple(PATHS[name] for name in options.chosen("path", path, tuple(PATHS))),
        transports=tuple(options.chosen("transport", transport, (IN_PROCESS, REMOTE))),
        given=options.given_samples(input_file, named.inputs),
        random=random[0],
        seed=random[1],
        tolerance=tolerance,
        constants=options.constants_of(constants),
    )
    return anyio.run(compare_model, comparison)


def _compare_folder(
    folder: Path,
    peer: "PeerKind",
    flags: Sequence[str],
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
    for path in options.progress(files_in(folder, peer), "comparing"):
        reports.append(compare_file(folder, path, flags))
        if not json:
            typer.echo(reports[-1])
    passed = all(each.passed for each in reports)
    report = FolderReport(str(folder), peer.title, passed, tuple(reports))
    if json:
        options.print_json(report)
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
            f"{options.counted(series.samples, f'{series.inputs} sample')}, {verdict}"
        )
        for output in series.outputs:
            typer.echo(f"  {output}")
    typer.echo(
        f"awaited {report.run_us:.0f} us, {report.peer} in to_thread "
        f"{report.peer_us:.0f} us: {report.run_us / report.peer_us:.2f} times"
    )
