"""Reads data sets as they are published: Open Images, CMU Arctic and LibriSpeech.

Each is a folder with what its archives have. Images are for models that name classes,
and judged by them. Sound is for models with state: LibriSpeech is cut into frames of
samples, and what CMU Arctic says of phones is made features of frames. Nothing in those
says what such a model has to give, so it is held beside LiteRT's reference kernels.
"""

import csv
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model import NamedModel, TensorInfo, open_model_file
from asyncnn.tools.other_runtimes import LiteRt

MOST_IMAGES, MOST_UTTERANCES, MOST_FRAMES = 100, 4, 100
"""How much of a data set is taken, of its beginning."""

_RATE = 16_000
_STEP_S = 0.02
"""Seconds of sound that a step of speech synthesis is for."""

_PHONES = tuple(
    "aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p "  # noqa: SIM905
    "pau r s sh t th uh uw v w y z zh".split()
)
_AROUND = (-2, -1, 0, 1, 2)
_CHANNELS = 3

_IMAGE_KINDS = (".jpg", ".jpeg", ".png")


class Published(msgspec.Struct, frozen=True):
    """A data set of a ``kind``, one of `KINDS`, in a folder."""

    kind: str
    folder: Path

    def arrays(self, model: NamedModel, file: Path) -> dict[str, Array]:
        """Return what a model of a file is tried on, as ``.npz`` files have it.

        :raises InvalidArgumentError: if the folder has not what is published, or it
            does not fit the model.
        :raises GeneralFailureError: if what reads images or sound is not installed.
        """
        if not self.folder.is_dir():
            raise InvalidArgumentError(f"there is no folder {self.folder}")
        if len(model.inputs) != 1:
            raise InvalidArgumentError(
                f"{self.folder} does not fit: the model has {len(model.inputs)} "
                "inputs, not one"
            )
        return KINDS[self.kind](self.folder, model.inputs[0], file)


def _open_images(folder: Path, info: TensorInfo, file: Path) -> dict[str, Array]:
    """Take images with the first label that people have confirmed for each."""
    classes = {name: number for number, name in enumerate(_classes(folder))}
    images, labels = [], []
    for image, name in islice(_labelled(folder, classes), MOST_IMAGES):
        images.append(_image(image, info))
        labels.append(classes[name])
    if not images:
        raise InvalidArgumentError(
            f"{folder} has no image that is labelled",
            hint="it needs *-annotations-human-imagelabels*.csv and images by their "
            "numbers in train, validation or test",
        )
    return {"inputs": np.stack(images), "labels": np.array(labels)}


def _classes(folder: Path) -> list[str]:
    """Return the names of classes, by their numbers."""
    for path in _found(folder, "*classes-trainable*.txt"):
        return path.read_text().split()
    for path in _found(folder, "*class-descriptions*.csv"):
        names = [row[0] for row in _rows(path)]
        return names[1:] if names[:1] == ["LabelName"] else names
    raise InvalidArgumentError(
        f"{folder} does not say which classes there are",
        hint="it needs classes-trainable.txt or class-descriptions.csv",
    )


def _labelled(folder: Path, known: Container[str]) -> Iterator[tuple[Path, str]]:
    """Yield images with a label, in the order of the files of labels."""
    seen: set[str] = set()
    for path in _found(folder, "*annotations-human-imagelabels*.csv"):
        for number, row in enumerate(_rows(path)):
            if number == 0 and row[:1] == ["ImageID"]:
                continue
            try:
                identity, _, name, confidence = row
                is_confirmed = float(confidence or 0) >= 1
            except ValueError:
                raise InvalidArgumentError(
                    f"{path}, line {number + 1}: not "
                    "ImageID,Source,LabelName,Confidence"
                ) from None
            if not is_confirmed or name not in known or identity in seen:
                continue
            for image in _found(folder, f"{Path(identity).name}.*"):
                if image.suffix.lower() in _IMAGE_KINDS:
                    seen.add(identity)
                    yield image, name
                    break


def _image(path: Path, info: TensorInfo) -> Array:
    """Return an image as a model takes it, float32 in [0, 1]."""
    try:
        from PIL import Image
    except ImportError as error:
        raise _missing("pillow") from error
    shape = info.dimensions
    if len(shape) != 4 or _CHANNELS not in (shape[1], shape[3]):
        raise InvalidArgumentError(
            f"{info.name} is {list(shape)}, which is no image of three colours"
        )
    is_first = shape[3] != _CHANNELS
    rows, columns = shape[2:] if is_first else shape[1:3]
    try:
        with Image.open(path) as image:
            size = columns or image.width, rows or image.height
            resized = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise InvalidArgumentError(f"{path} is no image: {error}") from error
    pixels = np.asarray(resized, np.float32) / np.float32(255)
    return np.moveaxis(pixels, 2, 0) if is_first else pixels


def _librispeech(folder: Path, info: TensorInfo, file: Path) -> dict[str, Array]:
    """Take utterances in frames of as many samples as the model takes."""
    width = _width(info)

    def utterances() -> Iterator[Sequence[Array]]:
        for path in _found(folder, "*.trans.txt", deep=True):
            for line in path.read_text().splitlines():
                samples = _samples(path.with_name(f"{line.split(' ')[0]}.flac"))
                whole = samples[: len(samples) // width * width]
                yield [*whole.reshape(-1, width)]

    hint = "it needs SPEAKER-CHAPTER.trans.txt beside SPEAKER-CHAPTER-NUMBER.flac"
    return _sequences(folder, hint, utterances(), info, file, "phone-error-rate")


def _samples(path: Path) -> Array:
    try:
        import soundfile  # type: ignore[import-untyped]
    except ImportError as error:
        raise _missing("soundfile") from error
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError) as error:
        raise InvalidArgumentError(f"{path} is no sound: {error}") from error
    if rate != _RATE:
        raise InvalidArgumentError(f"{path} has {rate} samples a second, not {_RATE}")
    mono: Array = samples[:, 0]
    return mono


def _cmu_arctic(folder: Path, info: TensorInfo, file: Path) -> dict[str, Array]:
    """Take the phones of utterances as features of frames."""
    width = _width(info)

    def utterances() -> Iterator[Sequence[Array]]:
        for path in _found(folder, "txt.done.data", deep=True):
            for line in path.read_text().splitlines():
                words = line.split(maxsplit=2)
                if len(words) < 3 or words[0] != "(":
                    what = f'{path} has {line!r}, not ( NAME "TEXT" )'
                    raise InvalidArgumentError(what)
                phones = _phones(path.parents[1] / "lab" / f"{words[1]}.lab")
                yield list(islice(_features(phones, width), MOST_FRAMES))

    hint = "it needs etc/txt.done.data and lab/NAME.lab of each line there"
    return _sequences(folder, hint, utterances(), info, file, "mel-cep-log-f0")


def _phones(path: Path) -> list[tuple[float, str]]:
    """Return when each phone ends, in seconds, and its name."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from error
    start = lines.index("#") + 1 if "#" in lines else 0
    phones = []
    for number, line in enumerate(lines[start:], start + 1):
        parts = line.split()
        try:
            end, name = float(parts[0]), parts[2].lower()
        except (ValueError, IndexError):
            raise InvalidArgumentError(
                f"{path}, line {number}: not END NUMBER PHONE"
            ) from None
        phones.append((end, name))
    return phones


def _features(phones: Sequence[tuple[float, str]], width: int) -> Iterator[Array]:
    """Yield for each step which phones are around it, and where in its phone it is."""
    least = len(_AROUND) * len(_PHONES) + 4
    if width < least:
        raise InvalidArgumentError(
            f"the model takes {width} numbers, and phones are {least} features"
        )
    total = phones[-1][0] if phones else 0.0
    at = 0
    begin = 0.0
    for step in range(int(total / _STEP_S)):
        time = (step + 0.5) * _STEP_S
        while phones[at][0] <= time:
            begin = phones[at][0]
            at += 1
        features = np.zeros(width, np.float32)
        for place, offset in enumerate(_AROUND):
            if 0 <= at + offset < len(phones):
                name = phones[at + offset][1]
                if name in _PHONES:
                    features[place * len(_PHONES) + _PHONES.index(name)] = 1
        end = phones[at][0]
        features[least - 4 : least] = (
            (time - begin) / (end - begin),
            (end - time) / (end - begin),
            end - begin,
            time / total,
        )
        yield features


def _sequences(
    folder: Path,
    hint: str,
    spoken: Iterable[Sequence[Array]],
    info: TensorInfo,
    file: Path,
    evaluator: str,
) -> dict[str, Array]:
    """Return the steps of utterances, and what LiteRT's kernels give for them."""
    filled = (steps[:MOST_FRAMES] for steps in spoken if len(steps))
    utterances = list(islice(filled, MOST_UTTERANCES))
    if not utterances:
        raise InvalidArgumentError(f"{folder} has no utterance", hint=hint)
    arrays: dict[str, Array] = {
        "evaluator": np.array(evaluator),
        "sequences": np.array([len(steps) for steps in utterances]),
    }
    is_known = kind_of(open_model_file(file)) is FileKind.TFLITE
    peer = LiteRt(file, reference=True) if is_known else None
    number = 0
    for steps in utterances:
        if peer is not None:
            peer.reset()
        for step in steps:
            array = np.ascontiguousarray(step.reshape(info.dimensions))
            arrays[f"input_{number}"] = array
            if peer is not None:
                (arrays[f"output_{number}"],) = map(np.array, peer.run([array]))
            number += 1
    return arrays


def _width(info: TensorInfo) -> int:
    """Return how many numbers a step of a model takes."""
    if 0 in info.dimensions or not info.dimensions or info.dtype != np.float32:
        raise InvalidArgumentError(
            f"{info.name} is {info.dtype} {list(info.dimensions)}; sound is for models "
            "that take a known number of float32"
        )
    return int(np.prod(info.dimensions))


def _found(folder: Path, pattern: str, *, deep: bool = False) -> list[Path]:
    """Return the files of a name in a folder and those below it, sorted."""
    if deep:
        return sorted(folder.rglob(pattern))
    return sorted(folder.glob(pattern)) or sorted(folder.glob(f"*/{pattern}"))


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.reader(file)


def _missing(package: str) -> GeneralFailureError:
    return GeneralFailureError(
        f"{package} is needed for this data set, and not installed",
        hint="pip install asyncnn[datasets]",
    )


KINDS: dict[str, Callable[[Path, TensorInfo, Path], dict[str, Array]]] = {
    "open-images": _open_images,
    "cmu-arctic": _cmu_arctic,
    "librispeech": _librispeech,
}
"""What reads each of the data sets."""
