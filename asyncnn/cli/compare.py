"""``asyncnn compare``: a model file beside the runtime of others that reads it."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from asyncnn.cli import options
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.tools.comparison import Comparison, ComparisonReport, PeerKind


class CompareOptions(options.LoadingToCompare, frozen=True, kw_only=True):
    """What ``asyncnn compare`` is asked to do.

    model: A TFLite or ONNX file, or a folder of such files.
    peer --with: The runtime to compare with.
    device: Device to run on, one of asyncnn devices; by default $ASYNCNN_DEVICE, else
        accelerated where it works, and reference with --reference-kernels.
    reference_kernels: Compare with LiteRT's reference kernels.
    samples: Random inputs; 0 for given ones alone.
    html: Write a page with the table of a folder there.
    """

    model: options.FileArgument
    peer: Literal["litert", "onnxruntime"]
    input_file: Path | None = None
    device: str | None = None
    strict: bool = False
    path: str = "async"
    transport: str = "inprocess"
    reference_kernels: bool = False
    seed: options.Natural = 0
    samples: options.Natural = 10
    json: bool = False
    html: Path | None = None


def compare(asked: CompareOptions) -> None:
    """Compare what a model gives with what LiteRT or ONNX Runtime gives.

    Prints how much each output differs at most: in steps of its quantisation,
    or absolute and as a share of its largest magnitude. Inputs are random, codes
    over the whole range of their type. A model with state keeps it from sample
    to sample, here and there. An awaited run is timed beside the runtime's.
    Needs the runtime: pip install asyncnn\\[bench].

    Of a folder, each file is compared in a process of its own, and one line
    says of each: whether it agrees, both times, or why it does not run.

    Exits with 1 if an output is out of tolerance, with 2 on bad input.
    """
    import anyio

    from asyncnn.tools.comparison import PeerKind, compare_model

    asked.tolerance()
    kind = {"litert": PeerKind.LITERT, "onnxruntime": PeerKind.ONNX_RUNTIME}[asked.peer]
    if asked.model.is_dir():
        if asked.input_file is not None:
            raise InvalidArgumentError("given inputs are for one file, not a folder")
        _compare_folder(asked, kind)
        return
    report = anyio.run(compare_model, _comparison(asked, kind))
    options.show(report, _print, json=asked.json, passed=report.passed)


def _comparison(asked: CompareOptions, peer: "PeerKind") -> "Comparison":
    """Return what is compared of one file, as the options say."""
    import anyio

    from asyncnn.cli.model_runs import PATHS
    from asyncnn.devices.own_devices import default_device_name, usual_device_name
    from asyncnn.runtime.file_kinds import kind_of
    from asyncnn.runtime.model import located, open_model_file
    from asyncnn.tools.comparison import Comparison
    from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE

    with located(asked.model):
        peer.check_reads(kind_of(open_model_file(asked.model)))
    named, _ = asked.load(asked.model, strict=asked.strict)
    device, paths = asked.device, options.chosen("path", asked.path, PATHS)
    if not device and asked.reference_kernels:
        device = default_device_name(exact=True)
    ways = options.chosen("transport", asked.transport, (IN_PROCESS, REMOTE))
    return options.made_of(
        Comparison,
        asked,
        path=asked.model,
        named=named,
        peer=peer,
        device=device or anyio.run(usual_device_name),
        extensions=tuple(asked.extension or ()),
        paths=tuple(paths),
        transports=tuple(ways),
        given=options.given_samples(asked.input_file, named.inputs),
        random=asked.samples,
        tolerance=asked.tolerance(),
        constants=options.constants_of(asked.constant or ()),
    )


def _compare_folder(asked: CompareOptions, peer: "PeerKind") -> None:
    from asyncnn.tools.folder_comparison import (
        FolderReport,
        compare_file,
        files_in,
        page_of,
    )

    folder = asked.model
    flags = ["--with", asked.peer, "--path", asked.path, *asked.words()]
    flags += ["--transport", asked.transport, "--seed", str(asked.seed)]
    flags += ["--samples", str(asked.samples), *["--strict"] * asked.strict]
    flags += ["--reference-kernels"] * asked.reference_kernels
    flags += [f"--input-shape={each}" for each in asked.input_shape or ()]
    flags += [f"--constant={each}" for each in asked.constant or ()]
    flags += [] if asked.device is None else ["--device", asked.device]
    check_writable(asked.html)
    reports = []
    for path in options.progress(files_in(folder, peer), "comparing"):
        reports.append(compare_file(folder, path, flags))
        if not asked.json:
            typer.echo(reports[-1])
    passed = all(each.passed for each in reports)
    report = FolderReport(str(folder), peer.title, passed, tuple(reports))
    if asked.json:
        options.print_json(report)
    options.write_page(asked.html, lambda: page_of(report))
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
