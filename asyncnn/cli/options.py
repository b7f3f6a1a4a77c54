"""Options that several commands have, what is made of them, and where output goes.

Modules that take long to import are imported by the functions that need them: every
command line loads this module, even one that only asks for help.
"""

import ast
import errno
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import wraps
from inspect import Parameter, Signature, cleandoc, getsource
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import typer
from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.errors import counted as counted
from asyncnn.output_files import write_file

if TYPE_CHECKING:
    from asyncnn.extensions import Extension
    from asyncnn.runtime.model import NamedModel, TensorInfo
    from asyncnn.tools.bench.report import ReportTable
    from asyncnn.tools.pages import Page
    from asyncnn.tools.samples import Sample, Tolerance

Natural: TypeAlias = Annotated[int, typer.Option(min=0)]
Positive: TypeAlias = Annotated[int, typer.Option(min=1)]
PositiveOrNone: TypeAlias = Annotated[int | None, typer.Option(min=1)]
FileArgument: TypeAlias = Annotated[Path, typer.Argument()]

T = TypeVar("T")
Name = TypeVar("Name", bound=str)
Record = TypeVar("Record", bound=msgspec.Struct)


class CommandOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a command is asked to do.

    Lines of its docstring say what an option is: its name, flags that differ from that,
    what its value is called, and a colon before the help. These here hold for all
    commands that have such a field and say nothing else of it.

    atol: Absolute tolerance, times the largest output beyond 1; the HAL's is 1e-5,
        whatever the outputs.
    constant NAME=N,N,...: Value of an input of an ONNX file that is always the same;
        repeatable.
    extension MODULE:ATTRIBUTE|NAME: An Extension to import, or an installed one to use;
        repeatable.
    input_file --input: An .npz file with input_K or input_K.NAME, or an .npy file with
        the only input of one sample.
    input_shape NAME=N,N,...: Shape of an input, in place of what the file says;
        repeatable.
    json: Print JSON.
    lsb: Steps that quantised outputs may be off.
    model: A .tflite, .onnx or .asyncnn file.
    path PATH,...: HAL calls to use: async, sync, burst or fenced.
    rtol: Relative tolerance of float outputs, 6e-7 as in the HAL.
    seed: Seed of the random inputs.
    setting NAME=VALUE: A setting of the device; repeatable. Goes before those in a
        file.
    socket PATH: Take the driver that serves this socket, as it runs.
    strict: Translate the file into the HAL's own operations, for any device.
    transport WAY,...: Ways to the device: inprocess or remote.
    """


class Loading(CommandOptions, frozen=True, kw_only=True):
    """Options of commands that load a model."""

    extension: list[str] | None = None
    input_shape: list[str] | None = None
    constant: list[str] | None = None

    def load(
        self, path: Path, states: Sequence[str] = (), *, strict: bool
    ) -> "tuple[NamedModel, tuple[Extension, ...]]":
        """Load a model and its extensions: those at places, or that are installed.

        An installed one is imported if the model uses it. Of one that is neither,
        nothing is known but what the model says. ``states`` are like ``INPUT=OUTPUT``,
        and ``strict`` is as in `load`.

        :raises AsyncnnError: if the file is bad, or there is no extension at a place.
        """
        from asyncnn.extensions import installed_extensions, load_extension
        from asyncnn.runtime.model_file import load

        extensions = [load_extension(place) for place in self.extension or ()]
        with naming_options():
            model = load(
                path,
                extensions=extensions,
                input_shapes=shapes_of(self.input_shape or ()),
                constants=constants_of(self.constant or ()),
                states=_states_of(states) or None,
                strict=strict,
            )
        given = {extension.name for extension in extensions}
        used = {entry.name for entry in model.model.extension_name_to_prefix}
        if used - given:
            installed = sorted((used - given).intersection(installed_extensions()))
            extensions += [load_extension(name) for name in installed]
        return model.knowing(extensions), tuple(extensions)


class LoadingToCompare(Loading, frozen=True, kw_only=True):
    """Options of commands that compare what a model gives."""

    lsb: Natural = 1
    rtol: float | None = None
    atol: float | None = None

    def tolerance(self) -> "Tolerance":
        """Return what they ask for; what they leave open is the HAL's.

        :raises InvalidArgumentError: if one is negative or no number.
        """
        from asyncnn.tools.samples import Tolerance

        return Tolerance.asked(self.lsb, self.rtol, self.atol)

    def words(self) -> list[str]:
        """Return what a command line has to have for the same of another file."""
        given = [("--lsb", self.lsb if self.lsb != 1 else None)]
        given += [("--rtol", self.rtol), ("--atol", self.atol)]  # type: ignore[list-item]
        given += [("--extension", place) for place in self.extension or ()]  # type: ignore[misc]
        return [str(word) for pair in given if pair[1] is not None for word in pair]


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose function is ``asked`` by a struct with its options.

    Any other is returned as it is.
    """
    kind = get_type_hints(command).get("asked")
    if kind is None:
        return command
    hints = get_type_hints(kind, include_extras=True)

    @wraps(command)
    def call(**given: Any) -> None:
        command(kind(**given))

    parameters = [
        parameter(kind, field.name, hints[field.name], field.default)
        for field in msgspec.structs.fields(kind)
    ]
    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {}
    return call


_SAID = re.compile(r"^(\w+)((?: \S*[^\s:])*?): (.+(?:\n {4}.+)*)", re.MULTILINE)
"""What a docstring says of a field: its name, words on how it is given, and help."""


def parameter(
    kind: type[CommandOptions], name: str, hint: Any, default: Any
) -> Parameter:
    """Return an option, or an argument, as docstrings of ``kind`` and its bases say.

    A truth that is False by default has no flag for that.
    """
    own, *known = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    info = copy(known[0]) if known else typer.Option()
    for each in kind.__mro__:
        said = {m[1]: m for m in _SAID.finditer(_docstring(each))}
        if name in said:
            words = said[name][2].split()
            info.help = " ".join(said[name][3].split())
            info.param_decls = [word for word in words if word.startswith("-")]
            info.metavar = next((w for w in words if not w.startswith("-")), None)
            break
    if default is False and not info.param_decls:
        info.param_decls = [f"--{name.replace('_', '-')}"]
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=Parameter.empty if default is msgspec.NODEFAULT else default,
        annotation=Annotated[own, info],
    )


def _docstring(kind: type[Any]) -> str:
    """Return a docstring; of options, from the file where ``-OO`` takes it away."""
    if kind.__doc__ is None and issubclass(kind, CommandOptions):
        (defined,) = ast.parse(getsource(kind)).body
        assert isinstance(defined, ast.ClassDef)
        return ast.get_docstring(defined) or ""
    return cleandoc(kind.__doc__ or "")


_OPTIONS = {
    "input_shapes cannot be": "--input-shape cannot be",
    "by input_shapes": "by --input-shape",
    "constants cannot be": "--constant cannot be",
    "load(path, extensions=[...])": "--extension",
}
"""What errors of `load` say, and what the command line calls it."""


def chosen(what: str, names: str, known: Sequence[Name]) -> list[Name]:
    """Return the names that an option has, separated by commas.

    :raises InvalidArgumentError: if there is none, or one that is not ``known``.
    """
    asked: list[Any] = [name.strip() for name in names.split(",")]
    if not all(asked):
        raise InvalidArgumentError(
            f"{names!r} has an empty part, which is no {what}",
            hint=f"known: {', '.join(known)}",
        )
    unknown = [name for name in asked if name not in known]
    if unknown:
        raise InvalidArgumentError(
            f"there is no {what} {', '.join(map(repr, unknown))}",
            hint=f"known: {', '.join(known)}",
        )
    return asked


def given_samples(
    path: Path | None, inputs: "Sequence[TensorInfo]"
) -> "tuple[Sample, ...]":
    """Return the samples of a file for the inputs of a model; none without a file.

    :raises InvalidArgumentError: if they do not fit.
    """
    from asyncnn.tools.samples import load_arrays, samples

    if path is None:
        return ()
    return tuple(samples(load_arrays(path), "input", inputs, path))


@contextmanager
def naming_options() -> Iterator[None]:
    """Have errors about files speak of options, not of arguments of `load`."""
    try:
        yield
    except AsyncnnError as error:
        error.message, error.hint = of_options(error.message), of_options(error.hint)
        hint = f" ({error.hint})" if error.hint else ""
        error.args = (f"{error.message}{hint}",)
        raise


def of_options(text: str) -> str:
    """Return what an error says, with options for arguments of `load`."""
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text


def shapes_of(options: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that options give, by the names of the inputs.

    :raises InvalidArgumentError: if one is not written as it has to be.
    """
    shapes = {}
    for option in options:
        name, _, lengths = option.rpartition("=")
        try:
            parts = lengths.split(",") if lengths else ()
            shapes[name] = tuple(int(length) for length in parts)
        except ValueError:
            name = ""
        if not name or min(shapes[name], default=0) < 0:
            raise InvalidArgumentError(
                f"--input-shape {option} is no shape", hint="write it as NAME=1,2,3"
            )
    return shapes


def constants_of(options: Sequence[str]) -> dict[str, float | list[float]]:
    """Return the numbers that options give, by the names of the inputs.

    :raises InvalidArgumentError: if one is not written as it has to be.
    """
    constants: dict[str, float | list[float]] = {}
    for option in options:
        name, _, text = option.rpartition("=")
        try:
            numbers = [_number(each) for each in text.split(",")]
        except ValueError:
            name = ""
        if not name:
            raise InvalidArgumentError(
                f"--constant {option} is no value",
                hint="write it as NAME=16000 or NAME=1,2,3",
            )
        constants[name] = numbers if len(numbers) > 1 else numbers[0]
    return constants


def _states_of(options: Sequence[str]) -> dict[str, str]:
    """Return inputs that are state, each with the output that is its next value.

    :raises InvalidArgumentError: if one is not written as it has to be.
    """
    states = {}
    for option in options:
        name, _, states[name] = option.rpartition("=")
        if not name or not states[name]:
            raise InvalidArgumentError(
                f"--state {option} names no state", hint="write it as INPUT=OUTPUT"
            )
    return states


def _number(text: str) -> float:
    """Return the integer or the float that ``text`` is.

    :raises ValueError: if it is neither.
    """
    try:
        return int(text)
    except ValueError:
        return float(text)


if TYPE_CHECKING:
    from rich.console import Console

_LEAST_DECIMALS, _LEAST_DIGITS = 3, 6

WIDTH = 80
"""Columns of what is printed where no terminal says how many it has."""

_PIPE_WIDTH = 130


def console(
    *, stderr: bool = False, markup: bool = False, width: int | None = None
) -> "Console":
    """Return the console of standard output, or of standard error.

    Brackets in a text are that, as in names of tensors, unless it takes ``markup``.
    Texts, also in tables, ask a terminal for nothing but what to show: names that
    files, devices and clients have may hold its control sequences.
    """
    from rich.console import Console
    from rich.text import Text

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            # `asyncnn.cli.ending` says what that means.
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    if width is None and os.environ.get("COLUMNS") == "0":  # it says nothing
        width = WIDTH
    return Screen(stderr=stderr, markup=markup, emoji=markup, width=width)


def printable(text: str) -> str:
    """Return ``text`` with spaces for what a terminal would obey, but for new lines."""
    if text.isprintable():
        return text
    return "".join(each if each == "\n" or each.isprintable() else " " for each in text)


def progress(
    items: Iterable[T], description: str, total: int | None = None
) -> Iterable[T]:
    """Iterate with a progress bar on standard error, if that is a terminal.

    A sequence has its own length as ``total``.
    """
    from rich.progress import track

    stderr = console(stderr=True)
    return track(
        items,
        description,
        total=total,
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )


def announced(items: Sequence[str]) -> Iterator[str]:
    """Iterate and name each item on standard error, if that is a terminal.

    No thread draws meanwhile, as one does for `progress`.
    """
    stderr = console(stderr=True)
    for number, item in enumerate(items, 1):
        if stderr.is_terminal:
            stderr.print(f"{number} of {len(items)}: {item}")
        yield item


def rounded(record: T) -> T:
    """Return what was measured, without digits that mean nothing.

    Floats in structs, lists, tuples and dicts keep six significant digits, and three
    decimals at least. Tables and files of a report are made of the rounded numbers.
    """
    found: Any = record
    if isinstance(record, float):
        found = _rounded(record)
    elif isinstance(record, msgspec.Struct):
        names = record.__struct_fields__
        found = replace(record, **{n: rounded(getattr(record, n)) for n in names})
    elif isinstance(record, dict):
        found = {key: rounded(value) for key, value in record.items()}
    elif type(record) in (list, tuple):
        kind: Any = type(record)
        sequence: Any = record
        found = kind([rounded(each) for each in sequence])
    return cast("T", found)


def _rounded(value: float) -> float:
    if not value or not math.isfinite(value):
        return value
    leading = math.floor(math.log10(abs(value)))
    return round(value, max(_LEAST_DECIMALS, _LEAST_DIGITS - 1 - leading))


def made_of(kind: type[Record], source: Any, **other: Any) -> Record:
    """Return a struct of what ``source`` has by the same names, but for ``other``."""
    known = {name for name in kind.__struct_fields__ if hasattr(source, name)}
    same = {name: getattr(source, name) for name in known - other.keys()}
    return kind(**same, **other)


def show(
    report: Any, draw: Callable[[Any], None], *, json: bool, passed: bool = True
) -> None:
    """Print a report, as JSON or by ``draw``, and exit with 1 if it has not passed."""
    if json:
        print_json(report)
    else:
        draw(report)
    if not passed:
        raise typer.Exit(1)


def print_json(record: Any) -> None:
    """Print a struct as one JSON document."""
    document = msgspec.json.format(msgspec.json.encode(record), indent=2)
    typer.echo(document.decode())


def print_tables(tables: "Iterable[ReportTable]", lines: Iterable[str]) -> None:
    """Print tables of a report, wide where no terminal says otherwise, and lines."""
    from asyncnn.tools.bench.report import draw_table

    out = console(markup=True)
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = _PIPE_WIDTH
    for table in tables:
        for part in draw_table(table, out):
            out.print(part)
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def write_json(path: Path | None, record: Any) -> None:
    """Write what JSON has of a record to a file, if there is to be one."""
    if path is not None:
        write_file(path, msgspec.json.format(msgspec.json.encode(record)))


def write_page(path: Path | None, page: "Callable[[], Page]") -> None:
    """Draw a page into a file, if there is to be one."""
    if path is not None:
        from asyncnn.tools.pages.drawing import draw

        write_file(path, draw(page()))
