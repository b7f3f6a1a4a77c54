"""``asyncnn bench``: benchmarks beside their peers, with goals that can be checked."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from asyncnn.cli.options import (
    CommandOptions,
    announced,
    counted,
    parameter,
    print_tables,
    progress,
    rounded,
    shapes_of,
    write_json,
    write_page,
)
from asyncnn.output_files import check_writable
from asyncnn.tools.bench.report import BenchReport, page_of
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, FEW_ROUNDS, MIN_ROUNDS, Order

bench_app = typer.Typer(help="Measure beside peers, in one run.", no_args_is_help=True)


def _parameter(name: str, annotation: Any, default: Any) -> Parameter:
    kind = Parameter.KEYWORD_ONLY
    return Parameter(name, kind, annotation=annotation, default=default)


def _option(name: str, kind: Any, default: Any, *flags: str, **info: Any) -> Parameter:
    return _parameter(name, Annotated[kind, typer.Option(*flags, **info)], default)


def _folder(text: str) -> Parameter:
    argument = typer.Argument(help=text, show_default=False)
    return _parameter("folder", Annotated[Path | None, argument], None)


_FOLDER = _folder("Folder of .tflite files; ../shared/models if left out.")
_FILES = _folder(
    "A .tflite, .onnx or .asyncnn file, or a folder of them; ../shared/models "
    "if left out."
)
_STATEFUL_FOLDER = _folder(
    "Folder of .tflite files; by default, the files of pymicro-wakeword."
)
_INPUT_SHAPE = parameter(CommandOptions, "input_shape", list[str] | None, None)
_ROUNDS = _option(
    "rounds", int, DEFAULT_ROUNDS, min=MIN_ROUNDS, help="Interleaved rounds."
)
_FEW_ROUNDS = _option(
    "rounds", int, FEW_ROUNDS, min=1, help="How often each activity is watched."
)
_FILTER = _option(
    "pattern", str, "*", "--filter", metavar="GLOB", help="Names to measure."
)
_MOBILENET = _option(
    "mobilenet",
    bool | None,
    None,
    help="Add generated MobileNets of 224 x 224; where no folder is named if left out.",
    show_default=False,
)
_GATES = _option(
    "gates", bool, False, "--gates", help="Judge by what any machine has to reach."
)
_FIVE_ROUNDS = _option("rounds", int, MIN_ROUNDS, min=1, help="Interleaved rounds.")
_SECTION = _option(
    "section",
    list[str] | None,
    None,
    "--section",
    help="Measure this section alone; may be repeated.",
)
_SETTING = parameter(CommandOptions, "setting", list[str] | None, None)
_OUTPUT = (
    _option("json_file", Path | None, None, "--json", help="Write the report here."),
    _option(
        "html_file", Path | None, None, "--html", help="Write a page with a chart."
    ),
    _option("check", bool, False, "--check", help="Exit with 1 if a goal is missed."),
)


class Benchmark(NamedTuple):
    """A command: the function ``door`` of the package, which takes an `Order`.

    ``progress`` iterates over what is measured, if that takes its time.
    """

    door: str
    help: str
    options: Sequence[Parameter]
    progress: Callable[[Sequence[Any]], Iterable[Any]] | None = None


_counted = partial(progress, description="measured")


BENCHMARKS = {
    "models": Benchmark(
        "bench_models.bench",
        "Measure model files beside LiteRT or ONNX Runtime, awaited in a thread.\n\n"
        "The device that is opened by default comes first. Engines that are missing\n"
        "are named: pip install asyncnn\\[bench]. They may crash on damaged files.",
        (_FILES, _ROUNDS, _FILTER, _MOBILENET, _INPUT_SHAPE),
        _counted,
    ),
    "accelerated": Benchmark(
        "bench_accelerated.bench",
        "Measure the accelerated device beside LiteRT and ONNX Runtime.\n\n"
        "Needs LiteRT, and onnxruntime and onnx for one peer:\n"
        "pip install asyncnn\\[bench].",
        (_FOLDER, _FIVE_ROUNDS, _FILTER, _MOBILENET, _GATES, _SECTION),
        announced,
    ),
    "threads": Benchmark(
        "bench_threads.bench",
        "Measure the accelerated device beside asyncio.to_thread around engines.\n\n"
        "Needs LiteRT, and onnxruntime and onnx for one peer:\n"
        "pip install asyncnn\\[bench].",
        (_FEW_ROUNDS,),
        announced,
    ),
    "awaiting": Benchmark(
        "bench_waits.awaiting",
        "Measure awaiting a tiny addition beside asyncio.to_thread.",
        (_ROUNDS,),
    ),
    "steps": Benchmark(
        "bench_steps.bench",
        "Count the functions, files and turns of the loop that a warm run passes.",
        (_FEW_ROUNDS,),
    ),
    "kernels": Benchmark(
        "bench_kernels.kernels",
        "Measure single operations beside LiteRT, with one thread each.\n\n"
        "Needs LiteRT: pip install asyncnn\\[bench].",
        (_ROUNDS, _FILTER),
        _counted,
    ),
    "service": Benchmark(
        "bench_waits.service",
        "Measure a driver process beside other ways to call another process.\n\n"
        "Needs grpcio for one of them: pip install asyncnn\\[bench].",
        (_ROUNDS,),
    ),
    "burst": Benchmark(
        "bench_burst.burst",
        "Measure bursts and their queues beside other ways to call another process.\n\n"
        "Peers that are not installed are left out: grpcio, iceoryx2, pyzmq, uvloop.",
        (_ROUNDS, _GATES),
    ),
    "oip": Benchmark(
        "bench_oip.oip",
        "Measure the Open Inference Protocol beside services around to_thread.\n\n"
        "Needs its packages: pip install asyncnn\\[oip].",
        (_ROUNDS,),
    ),
    "fence": Benchmark(
        "bench_waits.fence",
        "Measure waiting for fences beside other ways to wait.",
        (_ROUNDS,),
    ),
    "cache": Benchmark(
        "bench_files.cache",
        "Measure loading models from cache files beside preparing them anew.",
        (_FOLDER, _ROUNDS, _FILTER, _MOBILENET),
        _counted,
    ),
    "sessions": Benchmark(
        "bench_files.sessions",
        "Measure steps of models with state beside plain runs and LiteRT.\n\n"
        "Measures the models of FOLDER, or of the package pymicro-wakeword, and the\n"
        "memory of sessions beside that of LiteRT's interpreters.\n"
        "Needs LiteRT: pip install asyncnn\\[bench].",
        (_STATEFUL_FOLDER, _ROUNDS, _FILTER, _GATES),
        _counted,
    ),
    "qos": Benchmark(
        "bench_qos.bench",
        "Measure priorities and deadlines beside a thread pool, and what they cost.",
        (_ROUNDS,),
    ),
    "cluster": Benchmark(
        "bench_cluster.bench",
        "Measure a device on a local cluster beside bare calls of an actor.\n\n"
        "Needs Ray: pip install asyncnn\\[ray].",
        (_ROUNDS,),
    ),
    "batching": Benchmark(
        "bench_batching.bench",
        "Measure 64 clients of one model, with batches and without.",
        (_FEW_ROUNDS,),
    ),
    "loading": Benchmark(
        "bench_files.loading",
        "Measure reading and preparing model files beside LiteRT's interpreter.\n\n"
        "Needs LiteRT: pip install asyncnn\\[bench].",
        (_FOLDER, _ROUNDS, _FILTER, _MOBILENET, _GATES),
        _counted,
    ),
    "responsiveness": Benchmark(
        "bench_responsiveness.bench",
        "Measure the lag of event loops beside long models and large inputs.",
        (_FEW_ROUNDS, _FILTER, _SETTING),
        announced,
    ),
}


def _command(name: str, benchmark: Benchmark) -> Callable[..., None]:
    """Return the function of a command, which loads the benchmark when it is called."""

    def run(
        json_file: Path | None, html_file: Path | None, check: bool, **options: Any
    ) -> None:
        if "input_shape" in options:
            shapes = options.pop("input_shape") or ()
            options["input_shapes"] = shapes_of(shapes)
        if benchmark.progress is not None:
            options["progress"] = benchmark.progress
        check_writable(json_file, html_file)
        module, _, function = benchmark.door.partition(".")
        measure = getattr(import_module(f"asyncnn.tools.bench.{module}"), function)
        report: BenchReport = measure(Order(**options))
        report = report._replace(document=rounded(report.document))
        document = report.document
        rounds = counted(document["rounds"], "round")
        circumstances = f"{rounds}, {report.where}", str(document["environment"])
        print_tables(report.tables, (*report.notes, *circumstances))
        write_json(json_file, document)
        write_page(html_file, lambda: page_of(name, report))
        if check and not report.met:
            raise typer.Exit(1)

    run.__signature__ = inspect.Signature((*benchmark.options, *_OUTPUT))  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


for _name, _benchmark in BENCHMARKS.items():
    bench_app.command(_name, help=_benchmark.help)(_command(_name, _benchmark))
