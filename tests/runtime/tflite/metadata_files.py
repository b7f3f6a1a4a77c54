"""Writes metadata of TFLite files for tests: a flatbuffer, and an archive of labels."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import flatbuffers
import numpy as np


@dataclass(frozen=True)
class Described:
    """What the metadata say of a tensor; files are names, types and languages."""

    name: str = ""
    description: str = ""
    files: Sequence[tuple[str, int, str]] = ()
    mean: Sequence[float] = ()
    std: Sequence[float] = ()


def written(
    inputs: Sequence[Described], outputs: Sequence[Described], *texts: str
) -> bytes:
    """Return metadata; ``texts`` are name, description, version, author, license."""
    return _Writer().file(inputs, outputs, texts)


def archive(files: Mapping[str, str], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an archive of text files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as file:
        for name, text in files.items():
            file.writestr(name, text)
    return data.getvalue()


class _Writer:
    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(256)

    def file(
        self,
        inputs: Sequence[Described],
        outputs: Sequence[Described],
        texts: Sequence[str],
    ) -> bytes:
        borders = {2: self.tensors(inputs), 3: self.tensors(outputs)}
        subgraphs = self.vector([self.table(9, borders)])
        fields = {3: subgraphs}
        for slot, text in zip((0, 1, 2, 4, 5), texts, strict=False):
            fields[slot] = self.builder.CreateString(text)
        self.builder.Finish(self.table(8, fields), file_identifier=b"M001")
        return bytes(self.builder.Output())

    def tensors(self, tensors: Sequence[Described]) -> int:
        return self.vector([self.tensor(tensor) for tensor in tensors])

    def tensor(self, tensor: Described) -> int:
        files = [
            self.table(
                5,
                {
                    0: self.builder.CreateString(name),
                    3: self.builder.CreateString(language),
                },
                {2: kind},
            )
            for name, kind, language in tensor.files
        ]
        fields = {
            0: self.builder.CreateString(tensor.name),
            1: self.builder.CreateString(tensor.description),
            6: self.vector(files),
        }
        if tensor.mean:
            numbers = [
                self.builder.CreateNumpyVector(np.array(values, np.float32))
                for values in (tensor.mean, tensor.std)
            ]
            options = self.table(2, dict(enumerate(numbers)))
            other = self.table(2, {1: self.table(1, {})}, {0: 3})
            unit = self.table(2, {1: options}, {0: 1})
            fields[4] = self.vector([other, unit])
        return self.table(7, fields)

    def table(
        self, slots: int, offsets: Mapping[int, int], numbers: Mapping[int, int] = {}
    ) -> int:
        self.builder.StartObject(slots)
        for slot, offset in offsets.items():
            self.builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
        for slot, number in numbers.items():
            self.builder.PrependUint8Slot(slot, number, 0)
        return int(self.builder.EndObject())

    def vector(self, offsets: Sequence[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return int(self.builder.EndVector())
