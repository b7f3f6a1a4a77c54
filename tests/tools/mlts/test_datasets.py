"""Data sets as they are published are read, from tiny folders of the same layout."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

import asyncnn
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.tools.mlts.datasets import MOST_UTTERANCES, Published
from asyncnn.tools.mobilenets import mobilenet_v1
from asyncnn.tools.reference_models import speech_recognition, speech_synthesis
from tests.cli.conftest import Ran, asyncnn_command

Command = Callable[..., Ran]

__all__ = ("asyncnn_command",)

CLASSES = ("/m/01", "/m/02", "/m/03")


@pytest.fixture
def open_images(tmp_path: Path) -> Path:
    """Three images of one colour each; of the last nobody has confirmed a label."""
    folder = tmp_path / "open images"
    (folder / "validation").mkdir(parents=True)
    rows = ["ImageID,Source,LabelName,Confidence"]
    for number, name in enumerate(CLASSES):
        identity = f"00{number}abc"
        pixels = np.zeros((40, 60, 3), np.uint8)
        pixels[..., number] = 200
        Image.fromarray(pixels).save(folder / "validation" / f"{identity}.jpg")
        rows.append(f"{identity},verification,/m/unknown,1")
        rows.append(f"{identity},verification,{CLASSES[0]},0")
        rows.append(f"{identity},verification,{name},{int(number < 2)}")
    labels = folder / "validation-annotations-human-imagelabels.csv"
    labels.write_text("\n".join(rows))
    described = ["LabelName,DisplayName", *(f'{c},"a, {c}"' for c in CLASSES)]
    (folder / "oidv6-class-descriptions.csv").write_text("\n".join(described))
    return folder


@pytest.fixture
def librispeech(tmp_path: Path) -> Path:
    chapter = tmp_path / "LibriSpeech" / "dev-clean" / "84" / "121123"
    chapter.mkdir(parents=True)
    lines = []
    for number, seconds in enumerate((0.1, 0.25)):
        identity = f"84-121123-000{number}"
        times = np.arange(int(16_000 * seconds)) / 16_000
        sound = 0.5 * np.sin(times * 2000 * (number + 1))
        soundfile.write(chapter / f"{identity}.flac", sound, 16_000)
        lines.append(f"{identity} GO DO YOU HEAR")
    (chapter / "84-121123.trans.txt").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def cmu_arctic(tmp_path: Path) -> Path:
    voice = tmp_path / "cmu_us_bdl_arctic"
    for folder in ("etc", "lab", "wav"):
        (voice / folder).mkdir(parents=True)
    done = '( arctic_a0001 "AUTHOR OF THE DANGER TRAIL" )\n( arctic_a0002 "NOT" )\n'
    (voice / "etc" / "txt.done.data").write_text(done)
    for number, phones in ((1, "pau ao th er"), (2, "pau n aa t")):
        ends = (f"{0.05 * (k + 1):.5f} 125 {p}" for k, p in enumerate(phones.split()))
        lab = voice / "lab" / f"arctic_a000{number}.lab"
        lab.write_text("\n".join(["separator ;", "nfields 1", "#", *ends]))
    return tmp_path


def written(folder: Path, content: bytes) -> Path:
    pytest.importorskip("ai_edge_litert")
    path = folder / "model.tflite"
    path.write_bytes(content)
    return path


def arrays_of(kind: str, folder: Path, model: Path) -> dict[str, np.ndarray]:
    return Published(kind, folder).arrays(asyncnn.load(model), model)


def test_images_have_the_size_of_the_model_and_confirmed_classes(
    open_images: Path, tmp_path: Path
) -> None:
    small = partial(mobilenet_v1, quantized=False, size=32, width=0.25)
    found = arrays_of("open-images", open_images, written(tmp_path, small()))
    assert found["labels"].tolist() == [0, 1]
    assert found["inputs"].shape == (2, 32, 32, 3)
    for number, image in enumerate(found["inputs"]):
        assert abs(image[..., number].mean() - 200 / 255) < 0.05
        assert image.sum(-1).mean() < 0.9
    (open_images / "classes-trainable.txt").write_text("/m/02\n/m/01\n")
    found = arrays_of("open-images", open_images, tmp_path / "model.tflite")
    assert found["labels"].tolist() == [1, 0]


@pytest.mark.parametrize("unsigned", [True, False])
def test_a_model_is_measured_on_images(
    asyncnn_command: Command, open_images: Path, tmp_path: Path, unsigned: bool
) -> None:
    model = written(
        tmp_path, mobilenet_v1(quantized=True, size=32, width=0.25, unsigned=unsigned)
    )
    ran = asyncnn_command(
        *("mlts", model, "--dataset", f"open-images={open_images}", "--no-peers"),
        *("--device", "reference", "--transport", "inprocess", "--path", "sync"),
        *("--runs", 5),
    )
    assert ran.status == 0, ran.err
    assert "judged by top-k" in ran.out


@pytest.mark.parametrize(
    ("kind", "make", "lengths", "evaluator"),
    [
        ("librispeech", speech_recognition, [5, 12], "phone-error-rate"),
        ("cmu-arctic", speech_synthesis, [10, 10], "mel-cep-log-f0"),
    ],
)
def test_sound_is_cut_into_steps_and_held_beside_litert(
    request: pytest.FixtureRequest,
    asyncnn_command: Command,
    tmp_path: Path,
    kind: str,
    make: Callable[..., bytes],
    lengths: list[int],
    evaluator: str,
) -> None:
    folder = request.getfixturevalue(kind.replace("-", "_"))
    model = written(tmp_path, make(cells=8))
    found = arrays_of(kind, folder, model)
    assert found["sequences"].tolist() == lengths
    steps = [found[f"input_{k}"] for k in range(sum(lengths))]
    assert len({step.tobytes() for step in steps}) == len(steps)
    assert f"output_{len(steps) - 1}" in found
    ran = asyncnn_command(
        *("mlts", model, "--dataset", f"{kind}={folder}", "--no-peers", "--runs", 5),
        *("--device", "reference", "--transport", "inprocess", "--path", "session"),
    )
    assert ran.status == 0, ran.out + ran.err
    assert f"judged by {evaluator}" in ran.out


def test_frames_of_sound_are_its_samples(librispeech: Path, tmp_path: Path) -> None:
    model = written(tmp_path, speech_recognition(cells=8))
    found = arrays_of("librispeech", librispeech, model)
    times = np.arange(320) / 16_000
    np.testing.assert_allclose(
        found["input_0"][0], 0.5 * np.sin(times * 2000), atol=1e-3
    )


def test_few_utterances_are_taken_however_many_voices_there_are(
    cmu_arctic: Path, tmp_path: Path
) -> None:
    (voice,) = cmu_arctic.glob("cmu_us_*")
    for name in ("cmu_us_clb_arctic", "cmu_us_rms_arctic"):
        shutil.copytree(voice, cmu_arctic / name)
    model = written(tmp_path, speech_synthesis(cells=8))
    found = arrays_of("cmu-arctic", cmu_arctic, model)
    assert len(found["sequences"]) == MOST_UTTERANCES


def test_features_tell_the_phones_around(cmu_arctic: Path, tmp_path: Path) -> None:
    model = written(tmp_path, speech_synthesis(cells=8))
    found = arrays_of("cmu-arctic", cmu_arctic, model)
    first, fourth = found["input_0"][0], found["input_3"][0]
    assert [int(each.sum()) for each in np.split(first[:205], 5)] == [0, 0, 1, 1, 1]
    assert [int(each.sum()) for each in np.split(fourth[:205], 5)] == [0, 1, 1, 1, 1]
    assert not first[209:].any()


def break_classes(folder: Path) -> None:
    (folder / "oidv6-class-descriptions.csv").unlink()


def break_image(folder: Path) -> None:
    (folder / "validation" / "000abc.jpg").write_bytes(b"no image")


def break_labels(folder: Path) -> None:
    path = folder / "validation-annotations-human-imagelabels.csv"
    path.write_text("000abc,verification\n")


def break_confidences(folder: Path) -> None:
    path = folder / "validation-annotations-human-imagelabels.csv"
    path.write_text(path.read_text().replace(",1", ",sure"))


def remove_labels(folder: Path) -> None:
    (folder / "validation-annotations-human-imagelabels.csv").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (break_classes, "which classes there are"),
        (break_image, "000abc.jpg is no image"),
        (break_labels, "line 1: not ImageID"),
        (break_confidences, "line 2: not ImageID"),
        (remove_labels, "no image that is labelled"),
    ],
)
def test_images_that_are_not_as_published_are_refused(
    open_images: Path, tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    change(open_images)
    model = written(tmp_path, mobilenet_v1(quantized=False, size=32, width=0.25))
    with pytest.raises(InvalidArgumentError, match=message):
        arrays_of("open-images", open_images, model)


def test_sound_that_is_not_as_published_is_refused(
    librispeech: Path, cmu_arctic: Path, tmp_path: Path
) -> None:
    model = written(tmp_path, speech_recognition(cells=8))
    (flac, *_) = sorted(librispeech.rglob("*.flac"))
    soundfile.write(flac, np.zeros(8000), 8000)
    with pytest.raises(AsyncnnError, match="8000 samples a second"):
        arrays_of("librispeech", librispeech, model)
    flac.write_bytes(b"no sound")
    with pytest.raises(AsyncnnError, match="is no sound"):
        arrays_of("librispeech", librispeech, model)
    (lab, *_) = sorted(cmu_arctic.rglob("*.lab"))
    lab.write_text("#\nsoon 125 pau\n")
    with pytest.raises(AsyncnnError, match="line 2: not END NUMBER PHONE"):
        arrays_of("cmu-arctic", cmu_arctic, model)
    lab.unlink()
    with pytest.raises(AsyncnnError, match="No such file"):
        arrays_of("cmu-arctic", cmu_arctic, model)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("imagenet=folder", "no data set 'imagenet'"),
        ("librispeech=nowhere", "there is no folder nowhere"),
    ],
)
def test_bad_input_is_one_line(
    asyncnn_command: Command, folder: Path, dataset: str, message: str
) -> None:
    ran = asyncnn_command("mlts", folder, "--dataset", dataset)
    assert ran.status == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1
