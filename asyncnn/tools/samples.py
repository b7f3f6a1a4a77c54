"""Samples in ``.npz`` files, and how outputs compare with expected ones.

``input_K`` and ``input_K.NAME`` are sample K.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import numpy as np

from asyncnn.engine.lengths import refuses_lengths
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.input_files import NoRegularFileError, call_abandonable, in_one, open_input
from asyncnn.output_files import write_file
from asyncnn.pacing import completed
from asyncnn.runtime.axes import dimensions_of
from asyncnn.runtime.model import NamedModel, TensorInfo, hinting, located
from asyncnn.runtime.requests import InputCheck
from asyncnn.runtime.translation import translating

HAL_RTOL = 5 * 2.0**-23
HAL_ATOL = 1e-5
"""The HAL's criterion for floats, of which 2**-23 is the step at 1."""

HALF_TOLERANCE = 5 * 2.0**-10
"""The same for float16, relative and absolute."""

_INTEGERS = {np.dtype(np.int32), np.dtype(np.int64)}

ALONE = ""
"""Stands for the name of an array that has none, the only one of its file."""

_MOST_NAMES = 12
"""Arrays of a file that are named where the one that is needed is not there."""

Sample = dict[str, Array]
"""Arrays by input or output name."""


def load_arrays(path: Path) -> dict[str, Array]:
    """Read every array of an ``.npz`` file, or the one of an ``.npy`` file as ``""``.

    :raises InvalidArgumentError: if it is not such a file, or holds Python objects.
    """
    return call_abandonable(f"reading {path}", in_one(_arrays, path))


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with open(open_input(path), "rb") as file:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return {ALONE: found}
            with found as archive:
                return {name: archive[name] for name in archive.files}
    except NoRegularFileError:
        raise
    except MemoryError:
        raise InvalidArgumentError(f"{path}: its arrays need too much memory") from None
    except Exception as error:  # of archives, of each way to compress, of arrays
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidArgumentError(
            f"{path} is not a readable .npz or .npy file",
            hint="numpy.savez(path, input_0=array) or numpy.save(path, array) write "
            "such files",
        ) from None


def samples(
    arrays: dict[str, Array], key: str, infos: Sequence[TensorInfo], file: Path
) -> list[Sample]:
    """Return the samples ``key_0``, ``key_1`` ... in order, each with all ``infos``.

    An array without a name is the only sample. ``arrays`` are what is in ``file``.

    :raises InvalidArgumentError: if there is none, a number is missing, or a sample
        lacks a tensor.
    """
    with located(file):
        if not infos:
            raise InvalidArgumentError(f"the model has no {key} that may be given")
        if ALONE in arrays:
            return [_alone(arrays[ALONE], key, infos)]
        return _numbered(arrays, key, infos)


def fitting(
    given: Iterable[Sample], infos: Sequence[TensorInfo], file: Path
) -> list[Sequence[Any]]:
    """Return samples of a file as a model takes them, each in the order of ``infos``.

    :raises InvalidArgumentError: if one does not fit.
    """
    check, found = InputCheck(infos), []
    for number, sample in enumerate(given):
        try:
            found.append(check(sample))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"sample {number} of {file} does not fit: {error.message}"
            ) from None
    return found


def _alone(array: Array, key: str, infos: Sequence[TensorInfo]) -> Sample:
    if len(infos) != 1:
        raise InvalidArgumentError(
            f"an .npy file has one array, and the model {len(infos)} {key}s: "
            f"{', '.join(info.name for info in infos)}",
            hint=f"write an .npz file with {key}_0.{infos[0].name} and so on",
        )
    return {infos[0].name: array}


def _numbered(
    arrays: dict[str, Array], key: str, infos: Sequence[TensorInfo]
) -> list[Sample]:
    pattern = re.compile(rf"{re.escape(key)}_(\d+)(?:\.(.+))?$")
    found: dict[int, Sample] = {}
    for name, array in arrays.items():
        match = pattern.match(name)
        if match:
            number, tensor = int(match[1]), match[2] or infos[0].name
            found.setdefault(number, {})[tensor] = array
    if not found:
        raise InvalidArgumentError(
            f"no array is called {key}_0", hint=f"it has {_names(arrays)}"
        )
    if sorted(found) != list(range(len(found))):
        raise InvalidArgumentError(
            f"samples of {key} are not numbered 0, 1, 2, ...",
            hint=f"it has {_names(arrays)}",
        )
    names = {info.name for info in infos}
    for number, sample in found.items():
        if sample.keys() != names:
            raise InvalidArgumentError(
                f"sample {key}_{number} is of {', '.join(sorted(sample))}, and the "
                f"model has {', '.join(sorted(names))}"
            )
    return [found[number] for number in range(len(found))]


def _names(arrays: dict[str, Array]) -> str:
    left = len(arrays) - _MOST_NAMES
    more = [f"{left} more"] if left > 0 else []
    return ", ".join([*sorted(arrays)[:_MOST_NAMES], *more]) or "no array at all"


def named_arrays(
    key: str, infos: Sequence[TensorInfo], arrays: Iterable[Array], number: int = 0
) -> Sample:
    """Return a sample by the names that it has in a file."""
    is_only = len(infos) == 1
    return {
        f"{key}_{number}" if is_only else f"{key}_{number}.{info.name}": array
        for info, array in zip(infos, arrays, strict=True)
    }


def save_arrays(path: Path, arrays: Sample) -> None:
    """Write arrays by their names to an ``.npz`` file.

    :raises OSError: if it cannot be written.
    """

    def write(file: BinaryIO) -> None:
        np.savez_compressed(file, allow_pickle=False, **arrays)

    write_file(path, write)


def random_sample(
    infos: Sequence[TensorInfo], rng: np.random.Generator | None = None
) -> Sample:
    """Return random inputs, the same each time without a generator.

    Bytes, and codes of a quantisation, are uniform over the type's range, floats in
    [0, 1). Other integers, which may be indices, are 0 or 1. Open axes have length 1.
    """
    if rng is None:
        rng = np.random.default_rng(0)
    return {
        info.name: random_array(
            info.dimensions, info.dtype, rng, has_codes=bool(info.scale)
        )
        for info in infos
    }


@contextmanager
def hinting_open_axes(named: NamedModel | None) -> Iterator[None]:
    """Have errors of random inputs name lengths that the model does not give."""
    with nullcontext() if named is None else hinting(partial(_hint_of_lengths, named)):
        yield


def _hint_of_lengths(named: NamedModel) -> str:
    """Return what to do if lengths of random inputs are why they are refused."""
    names = [info.name for info in named.inputs if not all(info.dimensions)]
    if not names:
        return ""
    try:
        model = completed(translating(named)).model
    except AsyncnnError:  # of a region, which knows itself what lengths it takes
        return ""
    operands, indexes = model.main.operands, model.main.input_indexes
    shapes = [tuple(n or 1 for n in operands[index].dimensions) for index in indexes]
    if not refuses_lengths(model, tuple(shapes)):
        return ""
    return (
        "random inputs have length 1 on each axis that the model leaves open, "
        f"here of {', '.join(names)}; give others by --input-shape"
    )


def random_array(
    dimensions: Sequence[int],
    dtype: np.dtype[Any],
    rng: np.random.Generator,
    *,
    has_codes: bool = False,
) -> Array:
    """Return an array for an input, whose open axes have length 1.

    Floats are in [0, 1), codes of a quantisation over their whole range, and so are
    bytes. Other integers are 0 or 1, as they may be indices.
    """
    shape = tuple(axis or 1 for axis in dimensions)
    if dtype.kind in "iu":
        if not has_codes and dtype.itemsize > 1:
            return rng.integers(0, 2, shape, dtype)
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "V":
        data = rng.bytes(math.prod(shape) * dtype.itemsize)
        return np.frombuffer(data, dtype).reshape(shape)
    return rng.uniform(0, 1, shape).astype(dtype)


class Tolerance(msgspec.Struct, frozen=True):
    """``lsb`` steps for integers; for floats ``atol + rtol * |expected|``, complex too.

    Elements that are no numbers have to be equal. With ``scales_atol``, ``atol`` is
    multiplied by the largest expected magnitude where that exceeds 1. The defaults for
    floats are the HAL's criterion.
    """

    lsb: int = 1
    rtol: float = HAL_RTOL
    atol: float = HAL_ATOL
    scales_atol: bool = False

    @classmethod
    def asked(cls, lsb: int, rtol: float | None, atol: float | None) -> Self:
        """Return what options ask for; what they leave open is the HAL's.

        :raises InvalidArgumentError: if one is negative or no number.
        """
        for name, value in {"--rtol": rtol, "--atol": atol}.items():
            if value is not None and not value >= 0:
                raise InvalidArgumentError(
                    f"{name} {value:g} is no tolerance", hint="give 0 or more"
                )
        return cls(
            lsb,
            HAL_RTOL if rtol is None else rtol,
            HAL_ATOL if atol is None else atol,
            scales_atol=atol is not None,
        )


class SampleComparison(msgspec.Struct, frozen=True):
    """How an output compares; ``worst`` is the largest absolute difference."""

    name: str
    passed: bool
    differing: int
    elements: int
    worst: float
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        return (
            f"{self.name}: {self.differing} of {self.elements} elements differ by more "
            f"than allowed, the worst by {self.worst:.6g}"
        )


def compare(
    name: str, actual: Array, expected: Array, allowed: Tolerance
) -> SampleComparison:
    """Compare ``actual`` with ``expected``; infinities must be equal, NaN never is.

    What a file has as int64, without axes or with more than four may be either as in
    the file or as in its translation.
    """
    size = int(expected.size)
    if actual.dtype != expected.dtype and {actual.dtype, expected.dtype} <= _INTEGERS:
        actual, expected = actual.astype(np.int64), expected.astype(np.int64)
    if actual.shape == dimensions_of(expected.shape):
        expected = expected.reshape(actual.shape)
    elif expected.shape == dimensions_of(actual.shape):
        actual = actual.reshape(expected.shape)
    for what in ("dtype", "shape"):
        got, want = getattr(actual, what), getattr(expected, what)
        if got != want:
            problem = f"{what} is {got}, expected {want}"
            return SampleComparison(name, False, size, size, float("inf"), problem)
    kind = expected.dtype.kind
    if kind == "V":
        differing = int((actual != expected).sum())
        worst = float("inf") if differing else 0.0
        return SampleComparison(name, not differing, differing, size, worst)
    error, limit = errors_and_limits(actual, expected, allowed)
    failing = ~((error <= limit) & np.isfinite(error))
    worst = float(np.max(error, initial=0.0))
    return SampleComparison(name, not failing.any(), int(failing.sum()), size, worst)


def as_narrow(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return int64 as the HAL has it, int32, where that is wanted and loses nothing."""
    if array.dtype == np.int64 and dtype == np.int32:
        narrow = array.astype(np.int32)
        if np.array_equal(narrow, array):
            return narrow
    return array


def without_common_nan(one: Array, other: Array) -> tuple[Array, Array]:
    """Return two floats of one shape with zeros where both are no number."""
    both = np.isnan(one) & np.isnan(other)
    if not both.any():
        return one, other
    one, other = (np.where(both, each.dtype.type(0), each) for each in (one, other))
    return one, other


def errors_and_limits(
    actual: Array, expected: Array, allowed: Tolerance
) -> tuple[Array, Array]:
    """Return how far each element is from the expected one, and how far it may be.

    Both arrays have one shape, and elements that are numbers.
    """
    kind = expected.dtype.kind
    wide = np.complex128 if kind == "c" else np.float64
    want, got = expected.astype(wide), actual.astype(wide)
    with np.errstate(invalid="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want))
    if kind in "fc":
        # What is allowed of an infinity is nothing, and it allows others no more.
        magnitude = np.abs(np.where(np.isfinite(want), want, 0.0))
        unit = np.max(magnitude, initial=1.0) if allowed.scales_atol else 1.0
        limit = allowed.atol * float(unit) + allowed.rtol * magnitude
    else:
        limit = np.full(want.shape, float(allowed.lsb))
    return error, limit
