"""The models of a run: files of a folder, and reference models that are made for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, in_one_line
from asyncnn.hal.operations.bound import Array
from asyncnn.input_files import call_abandonable, in_one
from asyncnn.pacing import completed
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.translation import translating
from asyncnn.tools.bench.measured_models import weights_bytes
from asyncnn.tools.mlts.datasets import Published
from asyncnn.tools.mlts.suite_records import JudgedModel
from asyncnn.tools.mlts.trials import Trial, published_trial, trial_of
from asyncnn.tools.other_runtimes import LiteRt
from asyncnn.tools.reference_models import MORE_MODELS, REFERENCE_MODELS, ReferenceModel
from asyncnn.tools.samples import Tolerance

SUFFIXES = (".tflite", ".onnx", ".asyncnn")
"""Of the files of a folder that are taken for models."""

_LSB_OF_MOBILENETS = 3
"""Steps that the HAL's suite allows quantised MobileNets."""

_SEQUENCES = 2
_IMAGES = 4
"""Sequences and images of a reference model whose outputs are held beside expected."""


class SuiteModel(msgspec.Struct, frozen=True, eq=False):
    """A model of a run; ``named`` and ``trial`` are None if its file is no model."""

    record: JudgedModel
    path: Path
    named: NamedModel | None = None
    trial: Trial | None = None

    @property
    def name(self) -> str:
        """The name of its file without the suffix, unless another one has that."""
        return self.record.name


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which models, and how they are judged.

    Those that are ``builtin`` are the reference models, and where ``pattern`` asks for
    them also MobileNets of other sizes, widths and codes.

    ``needs_accuracy`` is whether a model with nothing to judge it by is an error, and
    None that nothing is judged. What lies beyond ``tolerance`` is not accurate.
    """

    folder: Path | None = None
    builtin: bool = False
    pattern: str = "*"
    dataset: Path | Published | None = None
    needs_accuracy: bool | None = False
    tolerance: Tolerance = Tolerance(scales_atol=True)


@contextmanager
def suite_models(wanted: Wanted) -> Iterator[list[SuiteModel]]:
    """Yield the models that are wanted, the folder's first.

    Reference models are removed in the end.

    :raises InvalidArgumentError: if there is none, one has nothing to judge it by but
        should, a data set does not fit, or no file of the folder is a model.
    :raises OSError: if a file cannot be read.
    :raises PeerMissingError: if reference models are wanted but LiteRT, which their
        schema and expected outputs are of, is not installed.
    """
    known = [*REFERENCE_MODELS]
    if wanted.pattern != Wanted().pattern:
        known += MORE_MODELS
    made = [name for name in known if fnmatchcase(name, wanted.pattern)]
    if not wanted.builtin:
        made = []
    with TemporaryDirectory(prefix="asyncnn-mlts-") as temporary:
        for name in made:
            write_reference_model(Path(temporary), name)
        found = call_abandonable(
            f"looking into {wanted.folder}", in_one(_files, wanted)
        )
        files = [*found, *(Path(temporary, f"{name}.tflite") for name in made)]
        if not files:
            where = f" in {wanted.folder}" if wanted.folder else ""
            raise InvalidArgumentError(f"no model matches {wanted.pattern!r}{where}")
        models = [_model(file, _name(file, files), wanted) for file in files]
        if all(model.named is None for model in models):
            raise InvalidArgumentError(models[0].record.problem)
        yield models


def _files(wanted: Wanted) -> list[Path]:
    folder = wanted.folder
    if folder is None:
        return []
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise InvalidArgumentError(f"there is no folder {folder}")
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not found:
        raise InvalidArgumentError(
            f"there is no model in {folder}", hint=f"looked for {', '.join(SUFFIXES)}"
        )
    return [path for path in found if fnmatchcase(path.stem, wanted.pattern)]


def _name(file: Path, files: Sequence[Path]) -> str:
    """Return what a file is called; with its suffix if two would be called the same."""
    is_only = sum(other.stem == file.stem for other in files) == 1
    # In reports, which cannot hold what is no text.
    return in_one_line(file.stem if is_only else file.name)


def _model(file: Path, name: str, wanted: Wanted) -> SuiteModel:
    shown = in_one_line(file.name)
    try:
        named = load(file)
    except AsyncnnError as error:
        return SuiteModel(JudgedModel(name, shown, problem=str(error)), file)
    beside = file.with_suffix(".npz")
    is_judged = wanted.needs_accuracy is not None
    golden = beside if is_judged and beside.exists() else None
    dataset = wanted.dataset if is_judged else None
    try:
        if isinstance(dataset, Published):
            trial = published_trial(named, dataset, file, wanted.tolerance)
        else:
            trial = trial_of(named, golden, dataset, wanted.tolerance)
    except InvalidArgumentError as error:
        raise error.at(name) from None
    if wanted.needs_accuracy and trial.evaluator is None:
        raise InvalidArgumentError(
            f"{name} has nothing to judge it by: there is no {beside.name} beside it",
            hint="write one by asyncnn run --output, or give --dataset",
        )
    form = named
    with suppress(AsyncnnError):  # what only an engine runs is one operation
        form = completed(translating(named))
    record = JudgedModel(
        name,
        shown,
        operations=len(form.model.main.operations),
        weights_bytes=weights_bytes(form.model),
        states=len(named.states),
        samples=len(trial.samples),
        evaluator="" if trial.evaluator is None else trial.evaluator.name,
    )
    return SuiteModel(record, file, named, trial)


def write_reference_model(folder: Path, name: str) -> Path:
    """Write a reference model and, beside it, samples with expected outputs.

    These are what LiteRT's reference kernels give, without any delegate.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    model = REFERENCE_MODELS.get(name) or MORE_MODELS[name]
    file = folder / f"{name}.tflite"
    file.write_bytes(model.make())
    np.savez(file.with_suffix(".npz"), allow_pickle=False, **_expected(file, model))
    return file


def _expected(file: Path, model: ReferenceModel) -> dict[str, Array]:
    peer = LiteRt(file, reference=True)
    sequences = _SEQUENCES if model.steps > 1 else _IMAGES
    ((shape, _),) = peer.input_kinds()
    arrays: dict[str, Array] = {
        "evaluator": np.array(model.evaluator),
        "sequences": np.full(sequences, model.steps),
    }
    if model.quantized:
        arrays["lsb"] = np.array(_LSB_OF_MOBILENETS)
    for number, frame in enumerate(model.inputs(shape, seed=0, sequences=sequences)):
        if number % model.steps == 0:
            peer.reset()
        arrays[f"input_{number}"] = frame
        (arrays[f"output_{number}"],) = map(np.array, peer.run([frame]))
    return arrays
