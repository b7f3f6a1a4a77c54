"""What a model is tried on: files of samples with expected outputs, labelled data sets.

The ``.npz`` file beside a model has ``input_K`` and ``output_K``, as ``asyncnn run``
writes and checks them. Besides those it may have:

- ``evaluator``: the name of one, instead of ``golden``;
- ``sequences``: how many samples, in order, are steps of one sequence of a model with
  state, for each sequence; without it every sample begins with the first state;
- ``lsb``: how many steps quantised outputs may be off, if that is more than else;
- ``output_f32weights_K``: what a file gives whose weights, integers beside float
  activations, are made floats, as the HAL has them. Devices are then held beside these,
  other runtimes beside ``output_K``.

A data set has ``inputs`` [N, ...] and ``labels`` [N], and may have ``expected_top_1``.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError, require_known
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model import NamedModel, TensorInfo, located
from asyncnn.tools.mlts.datasets import Published
from asyncnn.tools.mlts.evaluators import (
    GOLDEN,
    MEL_CEP_LOG_F0,
    OF_EXPECTED,
    PHONE_ERROR_RATE,
    Evaluator,
    Golden,
    MelCepLogF0,
    PhoneErrorRate,
    Sequences,
    TopK,
)
from asyncnn.tools.samples import (
    Sample,
    Tolerance,
    fitting,
    load_arrays,
    random_sample,
    samples,
)

_OUTPUT, _FLOAT_WEIGHTS_OUTPUT = "output", "output_f32weights"
_RANDOM_SAMPLES = 4


class Trial(msgspec.Struct, frozen=True, eq=False):
    """Samples in sequences, and what judges devices and other runtimes on them.

    Nothing judges random samples. ``of_peers`` is for runtimes that read the file.
    """

    sequences: Sequences
    evaluator: Evaluator | None = None
    of_peers: Evaluator | None = None

    @property
    def samples(self) -> list[Sample]:
        """All samples in order."""
        return [step for steps in self.sequences for step in steps]

    @property
    def has_steps(self) -> bool:
        """Whether a sample depends on one before it."""
        return any(len(steps) > 1 for steps in self.sequences)

    @property
    def is_shared(self) -> bool:
        """Whether devices and other runtimes are held beside the same outputs."""
        return self.evaluator is self.of_peers


def trial_of(
    model: NamedModel,
    golden: Path | None,
    dataset: Path | None,
    tolerance: Tolerance,
    seed: int = 0,
) -> Trial:
    """Return what a model is tried on: a data set, golden outputs or random inputs.

    :raises InvalidArgumentError: if a file is damaged, or does not fit the model.
    :raises OSError: if a file cannot be read.
    """
    if dataset is not None:
        return labelled_trial(model, load_arrays(dataset), dataset)
    if golden is not None:
        return golden_trial(model, load_arrays(golden), golden, tolerance)
    rng = np.random.default_rng(seed)
    drawn = [random_sample(model.inputs, rng) for _ in range(_RANDOM_SAMPLES)]
    return Trial([[sample] for sample in drawn])


def published_trial(
    model: NamedModel, dataset: Published, file: Path, tolerance: Tolerance
) -> Trial:
    """Return what a model of ``file`` is tried on by a data set as it is published.

    :raises InvalidArgumentError: if the set is not there, or does not fit the model.
    :raises AsyncnnError: if what reads it is not installed.
    """
    arrays = dataset.arrays(model, file)
    if "labels" in arrays:
        return labelled_trial(model, arrays, dataset.folder)
    if "output_0" in arrays:
        return golden_trial(model, arrays, dataset.folder, tolerance)
    given = samples(arrays, "input", model.inputs, dataset.folder)
    return Trial(_in_sequences(given, arrays["sequences"].tolist()))


def golden_trial(
    model: NamedModel, arrays: Mapping[str, Array], file: Path, tolerance: Tolerance
) -> Trial:
    """Return the samples of a file and what judges by the outputs there.

    :raises InvalidArgumentError: if they do not fit the model or one another.
    """
    known = dict(arrays)
    given = samples(known, "input", model.inputs, file)
    name = str(known.get("evaluator", GOLDEN))
    with located(file):
        require_known("evaluator", name, OF_EXPECTED)
    fitting(given, model.inputs, file)
    if "lsb" in known:
        lsb = max(tolerance.lsb, int(known["lsb"]))
        tolerance = replace(tolerance, lsb=lsb)
    lengths = _lengths(known, len(given), file)
    has_floats = f"{_FLOAT_WEIGHTS_OUTPUT}_0" in known
    keys = [_FLOAT_WEIGHTS_OUTPUT, _OUTPUT] if has_floats else [_OUTPUT]
    evaluators = []
    for key in keys:
        expected = samples(known, key, model.outputs, file)
        if len(expected) != len(given):
            raise InvalidArgumentError(
                f"{file} has {len(given)} inputs, but {len(expected)} of {key}"
            )
        steps = _in_sequences(expected, lengths)
        evaluators.append(_evaluator(name, model.outputs, steps, tolerance))
    return Trial(_in_sequences(given, lengths), evaluators[0], evaluators[-1])


def _evaluator(
    name: str, infos: Sequence[TensorInfo], expected: Sequences, tolerance: Tolerance
) -> Evaluator:
    if name == PHONE_ERROR_RATE:
        return PhoneErrorRate(infos[0], expected)
    if name == MEL_CEP_LOG_F0:
        return MelCepLogF0(infos[0], expected)
    return Golden(infos, expected, tolerance)


def _lengths(arrays: Mapping[str, Array], count: int, file: Path) -> list[int]:
    if "sequences" not in arrays:
        return [1] * count
    lengths = [int(length) for length in arrays["sequences"].reshape(-1)]
    if sum(lengths) != count or min(lengths, default=0) < 1:
        raise InvalidArgumentError(
            f"{file} has {count} samples, but sequences of {lengths[:8]}"
        )
    return lengths


def _in_sequences(
    items: Sequence[Sample], lengths: Sequence[int]
) -> list[list[Sample]]:
    ends = np.cumsum(lengths).tolist()
    return [
        list(items[end - length : end])
        for end, length in zip(ends, lengths, strict=True)
    ]


def labelled_trial(model: NamedModel, arrays: Mapping[str, Array], file: Path) -> Trial:
    """Return the samples of a labelled data set, which the first output classifies.

    Floats for a quantised input are quantised as the model says.

    :raises InvalidArgumentError: if the set does not fit the model.
    """
    for key in ("inputs", "labels"):
        if key not in arrays:
            raise InvalidArgumentError(
                f"{file} is no data set: it has no {key}",
                hint="it needs inputs [N, ...] and labels [N]",
            )
    inputs, labels = arrays["inputs"], arrays["labels"]
    if len(model.inputs) != 1:
        raise InvalidArgumentError(
            f"{file} does not fit: the model has {len(model.inputs)} inputs, not one"
        )
    info, output = model.inputs[0], model.outputs[0]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise InvalidArgumentError(f"{file} has labels that are no list of integers")
    if inputs.ndim < 1 or len(inputs) != len(labels):
        raise InvalidArgumentError(
            f"{file} has {len(labels)} labels for inputs {list(inputs.shape)}"
        )
    classes = math.prod(output.dimensions)
    low, high = int(labels.min()), int(labels.max())
    if classes and not (low >= 0 and high < classes):
        raise InvalidArgumentError(
            f"{file} does not fit: labels are {low} to {high}, and {output.name} has "
            f"{classes} classes"
        )
    given = [[{info.name: _fitting(info, each, file)}] for each in inputs]
    expected = arrays.get("expected_top_1")
    evaluator = TopK(
        output, labels.tolist(), None if expected is None else float(expected)
    )
    return Trial(given, evaluator, evaluator)


def _fitting(info: TensorInfo, array: Array, file: Path) -> Array:
    """Return a sample as the model takes it; axes of length 1 may be missing."""
    shape = tuple(axis or 1 for axis in info.dimensions)
    if _without_ones(array.shape) != _without_ones(shape):
        raise InvalidArgumentError(
            f"{file} does not fit: samples are {list(array.shape)}, and {info.name} is "
            f"{list(info.dimensions)}"
        )
    if info.scale and array.dtype.kind == "f":
        limits = np.iinfo(info.dtype)
        codes = np.rint(array / info.scale) + info.zero_point
        array = codes.clip(limits.min, limits.max).astype(info.dtype)
    if array.dtype != info.dtype:
        raise InvalidArgumentError(
            f"{file} does not fit: samples are {array.dtype}, and {info.name} is "
            f"{info.dtype}"
        )
    return np.ascontiguousarray(array.reshape(shape))


def _without_ones(shape: Sequence[int]) -> list[int]:
    return [axis for axis in shape if axis != 1]
