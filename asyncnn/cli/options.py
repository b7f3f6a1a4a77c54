"""Options that several commands have, what is made of them, and where output goes.

Modules that take long to import are imported by the functions that need them: every
command line loads this module, even one that only asks for help.
"""

import errno
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    cast,
    get_type_hints,
)

import msgspec
import typer
from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.errors import counted as counted

if TYPE_CHECKING:
    from asyncnn.extensions import Extension
    from asyncnn.runtime.model import NamedModel, TensorInfo
    from asyncnn.tools.samples import Sample, Tolerance

ExtensionOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--extension",
        metavar="MODULE:ATTRIBUTE|NAME",
        help="An Extension to import, or an installed one to use; repeatable.",
    ),
]

ModelArgument: TypeAlias = Annotated[
    Path, typer.Argument(help="A .tflite, .onnx or .asyncnn file.")
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SeedOption: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Seed of the random inputs.")
]

SettingOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        metavar="NAME=VALUE",
        help="A setting of the device; repeatable. Goes before those of a file.",
    ),
]

InputShapeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME=N,N,...",
        help="Shape of an input, in place of what the file says; repeatable.",
    ),
]

ConstantOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--constant",
        metavar="NAME=N,N,...",
        help="Value of an input of an ONNX file that is always the same; repeatable.",
    ),
]

StrictOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Translate the file into the HAL's own operations, for any device.",
    ),
]

PathOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="PATH,...", help="HAL calls to use: async, sync, burst or fenced."
    ),
]
TransportOption: TypeAlias = Annotated[
    str,
    typer.Option(metavar="WAY,...", help="Ways to the device: inprocess or remote."),
]
SocketOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="Take the driver that serves this socket, as it runs."
    ),
]
SamplesOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--input",
        help="An .npz file with input_K or input_K.NAME, or an .npy file with the "
        "only input of one sample.",
    ),
]

LsbOption: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Steps that quantised outputs may be off.")
]
RtolOption: TypeAlias = Annotated[
    float | None,
    typer.Option(help="Relative tolerance of float outputs, 6e-7 as in the HAL."),
]
AtolOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="Absolute tolerance, times the largest output beyond 1; "
        "the HAL's is 1e-5, whatever the outputs."
    ),
]


class Loading(msgspec.Struct, frozen=True, kw_only=True):
    """Options of commands that load a model."""

    extension: ExtensionOption = None
    input_shape: InputShapeOption = None
    constant: ConstantOption = None

    def load(
        self, path: Path, states: Sequence[str] = (), *, strict: bool
    ) -> "tuple[NamedModel, tuple[Extension, ...]]":
        """Load a model and its extensions: those at places, or that are installed.

        An installed one is imported if the model uses it. Of one that is neither,
        nothing is known but what the model says. ``states`` are like ``INPUT=OUTPUT``,
        and ``strict`` is that of `load`.

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

    lsb: LsbOption = 1
    rtol: RtolOption = None
    atol: AtolOption = None

    def tolerance(self) -> "Tolerance":
        """Return what they ask for; what they leave open is the HAL's.

        :raises InvalidArgumentError: if one is negative or no number.
        """
        from asyncnn.tools.samples import Tolerance

        return Tolerance.asked(self.lsb, self.rtol, self.atol)

    def words(self) -> list[str]:
        """Return what a command line has to have for the same of another file."""
        told = [("--lsb", self.lsb if self.lsb != 1 else None)]
        told += [("--rtol", self.rtol), ("--atol", self.atol)]  # type: ignore[list-item]
        told += [("--extension", place) for place in self.extension or ()]  # type: ignore[misc]
        return [str(word) for pair in told if pair[1] is not None for word in pair]


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

    call.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.required else field.default,
                annotation=hints[field.name],
            )
            for field in msgspec.structs.fields(kind)
        ]
    )
    call.__annotations__ = {}
    return call


_OPTIONS = {
    "input_shapes cannot be": "--input-shape cannot be",
    "by input_shapes": "by --input-shape",
    "constants cannot be": "--constant cannot be",
    "load(path, extensions=[...])": "--extension",
}
"""What errors of `load` say, and what the command line calls it."""


def chosen(what: str, names: str, known: Sequence[str]) -> list[str]:
    """Return the names that an option has, separated by commas.

    :raises InvalidArgumentError: if there is none, or one that is not ``known``.
    """
    asked = [name.strip() for name in names.split(",")]
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

T = TypeVar("T")

_LEAST_DECIMALS, _LEAST_DIGITS = 3, 6

WIDTH = 80
"""Columns of what is printed where no terminal says how many it has."""


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


def print_json(record: Any) -> None:
    """Print a struct as one JSON document."""
    document = msgspec.json.format(msgspec.json.encode(record), indent=2)
    typer.echo(document.decode())
