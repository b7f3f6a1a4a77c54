"""Metadata of TFLite files: texts, labels, normalisation, and damage of them."""

import zipfile

import numpy as np
import pytest

from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.model_description import (
    ModelMetadata,
    Normalization,
    TensorMetadata,
)
from asyncnn.runtime.tflite.metadata import MAX_LABEL_BYTES
from tests.runtime.tflite.cases import f32
from tests.runtime.tflite.files import Op, write
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.metadata_files import Described, archive, written

IMAGE = Described("image", "what to look at", mean=[127.5, 0], std=[127.5, 1])
CLASSES = Described("class", "", [("notes.txt", 1, ""), ("labels.txt", 2, "")])
LABELS = {"labels.txt": "cat\ndog\nMöwe\n"}
TEXTS = "animals", "tells them apart", "2", "a zoo", "Apache-2.0"


def file_with(metadata: bytes, behind: bytes = b"") -> bytes:
    x, y = f32(1, 2), f32(1, 2)
    return write([Op("NEG", [x], [y])], [x], [y], metadata=metadata) + behind


def read(metadata: bytes, behind: bytes = b"") -> ModelMetadata | None:
    return import_tflite(from_buffer(file_with(metadata, behind))).metadata


def labels_of(metadata: ModelMetadata | None) -> tuple[str, ...]:
    assert metadata is not None
    return metadata.outputs[0].labels


def test_all_that_is_said_is_read() -> None:
    metadata = read(written([IMAGE], [CLASSES], *TEXTS), archive(LABELS))
    assert metadata == ModelMetadata(
        *TEXTS,
        inputs=(
            TensorMetadata(
                "image",
                "what to look at",
                normalization=Normalization((127.5, 0), (127.5, 1)),
            ),
        ),
        outputs=(TensorMetadata("class", "", ("cat", "dog", "Möwe")),),
    )


def test_a_file_without_metadata_has_none() -> None:
    assert read(b"") is None
    assert read(b"\x08\0\0\0M999" + bytes(64)) is None


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_labels_of_no_language_come_first(method: int) -> None:
    files = [("de.txt", 3, "de"), ("all.txt", 3, "")]
    metadata = written([], [Described("", "", files)])
    packed = archive({"de.txt": "Katze", "all.txt": "cat"}, method)
    assert labels_of(read(metadata, packed)) == ("cat",)


@pytest.mark.parametrize(
    "behind",
    [
        b"",
        archive({"other.txt": "cat"}),
        archive(LABELS)[:-1],
        archive(LABELS, zipfile.ZIP_LZMA),
        archive({"labels.txt": "x\n" * MAX_LABEL_BYTES}),
        archive(LABELS).replace(b"labels.txt", b"\xff\xff\xff\xff"),
    ],
    ids=["none", "other name", "cut", "unusual method", "very long", "damaged"],
)
def test_an_archive_that_is_not_sound_gives_no_labels(behind: bytes) -> None:
    metadata = read(written([IMAGE], [CLASSES]), behind)
    assert labels_of(metadata) == ()
    assert metadata is not None
    assert metadata.inputs[0].name == "image"


def test_a_tensor_of_which_nothing_is_said_has_empty_metadata() -> None:
    x, y, z = f32(2), f32(2), f32(2)
    operators = [Op("NEG", [x], [y]), Op("EXP", [x], [z])]
    data = written([IMAGE] * 3, [CLASSES])
    metadata = import_tflite(
        from_buffer(write(operators, [x], [y, z], metadata=data))
    ).metadata
    assert metadata is not None
    assert len(metadata.inputs) == 1
    assert metadata.outputs[1] == TensorMetadata()


def test_damaged_metadata_never_refuse_a_model() -> None:
    data = written([IMAGE], [CLASSES], *TEXTS)
    rng = np.random.default_rng(0)
    damaged = 0
    for _ in range(400):
        mutant = np.frombuffer(data, np.uint8).copy()
        places = rng.integers(8, len(data), rng.integers(1, 6))
        mutant[places] = rng.integers(0, 256, len(places), np.uint8)
        damaged += read(mutant.tobytes(), archive(LABELS)) is None
    assert damaged > 30


def test_metadata_that_are_cut_short_never_refuse_a_model() -> None:
    data = written([IMAGE], [CLASSES], *TEXTS)
    for length in range(1, len(data)):
        read(data[:length])
