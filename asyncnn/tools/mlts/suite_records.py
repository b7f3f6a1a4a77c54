"""What a run of the suite has found, as its JSON file has it."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self, TypeAlias

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.input_files import read_input
from asyncnn.output_files import write_file
from asyncnn.tools.bench.environment import Environment

FORMAT = 1
"""Version of the file; fields may be added to it, none is renamed or removed."""

_DIGITS = 2


PERCENTS = (50, 90, 99)

Times: TypeAlias = Annotated[tuple[float, ...], msgspec.Meta(min_length=1)]
"""Microseconds of one run or more."""


def rounded(us: Sequence[float]) -> tuple[float, ...]:
    """Return times as files have them."""
    return tuple(round(value, _DIGITS) for value in us)


class Latency(msgspec.Struct, frozen=True):
    """Microseconds of runs: of each one in ``us``, in the order of the runs."""

    us: Times
    p50_us: float
    p90_us: float
    p99_us: float

    @classmethod
    def of(cls, us: Sequence[float]) -> Self:
        """Return the figures of runs, of which there is one or more."""
        p50, p90, p99 = (round(float(p), _DIGITS) for p in np.percentile(us, PERCENTS))
        return cls(rounded(us), p50, p90, p99)


class Preparation(msgspec.Struct, frozen=True):
    """Microseconds from a file to a model that can run, each several times.

    ``first_us`` is the first run of a model that was just prepared.
    ``saving_us`` are those that leave it in an empty compilation cache, ``cached_us``
    those that find it there, in ``cache_bytes`` of files. Both are empty where a device
    has no cache. ``resident_kib`` is how much the process that computes has grown by a
    prepared model that has run once, None where the system does not say.
    """

    us: Times
    first_us: float | None = None
    saving_us: tuple[float, ...] = ()
    cached_us: tuple[float, ...] = ()
    cache_bytes: int = 0
    resident_kib: int | None = None


class Accuracy(msgspec.Struct, frozen=True):
    """How an evaluator judges the outputs of ``samples``.

    ``figures`` are its own, ``problems`` what is not as it has to be. The largest error
    of a single element is in real units, also of quantised outputs. A number is None if
    it is none that is finite, and that error where only classes are known.
    """

    evaluator: str
    samples: int
    figures: dict[str, float | None] = {}
    problems: tuple[str, ...] = ()
    largest_error: float | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


class SuiteRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one way to run it.

    ``system`` is a device or, if ``is_peer``, another runtime; it is reached by a
    ``transport``, on a ``path``. ``refusal`` says why nothing was measured, if so.
    ``joules`` are the whole machine's for one run, None where it says nothing of
    energy.
    """

    model: str
    system: str
    transport: str
    path: str
    is_peer: bool = False
    refusal: str = ""
    latency: Latency | None = None
    joules: float | None = None
    preparation: Preparation | None = None
    accuracy: Accuracy | None = None

    @property
    def way(self) -> str:
        """System, transport and path in words."""
        remote = f" {self.transport}" if self.transport == "remote" else ""
        return f"{self.system}{remote} {self.path}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What distinguishes it from all others of a run."""
        return self.model, self.system, self.transport, self.path


class JudgedModel(msgspec.Struct, frozen=True):
    """A model: its file, and what it was judged by.

    ``problem`` says why the file cannot be read, if so. ``states`` is the number of
    tensors that it keeps from step to step.
    """

    name: str
    file: str
    operations: int = 0
    weights_bytes: int = 0
    states: int = 0
    samples: int = 0
    evaluator: str = ""
    problem: str = ""


class SuiteReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn mlts --json``."""

    format: int
    made_at: Annotated[datetime, msgspec.Meta(tz=True)]
    environment: Environment
    settings: str
    """How often what was run, in words."""
    models: tuple[JudgedModel, ...]
    rows: tuple[SuiteRow, ...]
    notes: tuple[str, ...] = ()
    """What was not measured on any model, and why."""
    interrupted: str = ""
    """How far measuring came, in words, if a signal ended it; else empty."""

    @property
    def passed(self) -> bool:
        """Whether no device is less accurate than it has to be."""
        return not list(self.failures())

    def failures(self) -> Iterator[SuiteRow]:
        """Yield the rows of devices that are not accurate; peers are not judged."""
        for row in self.rows:
            if not row.is_peer and row.accuracy is not None and not row.accuracy.passed:
                yield row

    def of_model(self, name: str) -> list[SuiteRow]:
        """Return the rows of a model."""
        return [row for row in self.rows if row.model == name]

    def write(self, path: Path) -> None:
        """Write it to a file.

        :raises OSError: if that cannot be written.
        """
        write_file(path, msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def read_report(path: Path) -> SuiteReport:
    """Read a file that `SuiteReport.write` has written.

    :raises InvalidArgumentError: if it is none, or of a later format.
    :raises OSError: if it cannot be read.
    """
    hint = "it is what asyncnn mlts --json writes"
    content = read_input(path)
    try:
        report = msgspec.json.decode(content, type=SuiteReport)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"{path} is no report of this suite: {error}"
        raise InvalidArgumentError(message, hint=hint) from None
    if report.format != FORMAT:
        raise InvalidArgumentError(
            f"{path} has format {report.format}, and {FORMAT} is known",
            hint="a newer asyncnn may have written it",
        )
    unknown = {row.model for row in report.rows} - {each.name for each in report.models}
    if unknown:
        message = f"{path} has rows of {min(unknown)!r}, which is none of its models"
        raise InvalidArgumentError(message, hint=hint)
    return report
