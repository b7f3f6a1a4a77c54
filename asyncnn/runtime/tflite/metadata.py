"""Reads the metadata of a TFLite file: texts, normalisation, and labels.

A model runs without them. Damaged ones are therefore as good as none: a file is not
refused for what nothing depends on. Labels are text files in a zip archive behind the
flatbuffer; without a sound archive there are no labels.

Source: tflite-support, metadata_schema.fbs.
"""

import io
import struct
import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from asyncnn.runtime.model_description import (
    ModelMetadata,
    Normalization,
    TensorMetadata,
)
from asyncnn.tflite import flatbuffer
from asyncnn.tflite.tables import Graph

if TYPE_CHECKING:  # few files have labels
    import zipfile

IDENTIFIER = b"M001"
"""Bytes 4 to 8 of the metadata."""

MAX_TEXT_BYTES = 1 << 16
"""Longest text that is read."""

MAX_LABEL_BYTES = 1 << 20
"""Largest file of labels, unpacked."""

MAX_ARCHIVE_BYTES = 1 << 23
"""How far from the end of the file the archive may begin."""

_MAX_ENTRIES = 64
"""Most entries that are looked at in one vector."""

_LABEL_FILES = (2, 3)
"""Types of associated files: labels along an axis, and of values."""

_NORMALIZATION = 1
"""Kind of the options of a process unit."""

_F32 = np.dtype("<f4")


def read_metadata(
    metadata: memoryview | None, graph: Graph, file: memoryview
) -> ModelMetadata | None:
    """Return what ``metadata`` say of ``graph``, or None if they are damaged.

    :param file: all of the file, whose end may be the archive of labels.
    """
    if metadata is None or metadata[4:8] != IDENTIFIER:
        return None
    try:
        return _MetadataReader(metadata, file).model(graph)
    except (struct.error, ValueError):
        return None


class _MetadataReader:
    def __init__(self, data: memoryview, file: memoryview) -> None:
        self._data = data
        self._archive = _Archive(file)

    def model(self, graph: Graph) -> ModelMetadata:
        fields = self._fields(flatbuffer.target(self._data, 0), 6)
        subgraphs = self._tables(fields[3])
        inputs: tuple[TensorMetadata, ...] = ()
        outputs: tuple[TensorMetadata, ...] = ()
        if graph.index < len(subgraphs):
            border = self._fields(subgraphs[graph.index], 4)
            inputs = self._tensors(border[2], len(graph.inputs))
            outputs = self._tensors(border[3], len(graph.outputs))
        return ModelMetadata(
            name=self._text(fields[0]),
            description=self._text(fields[1]),
            version=self._text(fields[2]),
            author=self._text(fields[4]),
            license=self._text(fields[5]),
            inputs=inputs,
            outputs=outputs,
        )

    def _tensors(self, place: int, count: int) -> tuple[TensorMetadata, ...]:
        known = [self._tensor(table) for table in self._tables(place, count)]
        if not known:
            return ()
        return (*known, *[TensorMetadata()] * (count - len(known)))

    def _tensor(self, table: int) -> TensorMetadata:
        fields = self._fields(table, 7)
        return TensorMetadata(
            self._text(fields[0]),
            self._text(fields[1]),
            self._archive.lines(self._label_files(fields[6])),
            self._normalization(fields[4]),
        )

    def _normalization(self, units: int) -> Normalization | None:
        for table in self._tables(units):
            kind, options = self._fields(table, 2)
            if (
                kind
                and options
                and flatbuffer.uint8(self._data, kind)[0] == (_NORMALIZATION)
            ):
                mean, std = self._fields(flatbuffer.target(self._data, options), 2)
                return Normalization(self._floats(mean), self._floats(std))
        return None

    def _label_files(self, place: int) -> list[str]:
        """Return the names of files with labels, ones of no language first."""
        names = []
        for table in self._tables(place):
            fields = self._fields(table, 4)
            if fields[2] and flatbuffer.uint8(self._data, fields[2])[0] in _LABEL_FILES:
                names.append((self._text(fields[3]), self._text(fields[0])))
        return [name for _, name in sorted(names, key=lambda pair: bool(pair[0]))]

    def _fields(self, table: int, count: int) -> flatbuffer.Places:
        return flatbuffer.places(self._data, table, count)

    def _tables(self, place: int, limit: int = _MAX_ENTRIES) -> list[int]:
        start, count = flatbuffer.vector(self._data, place)
        return flatbuffer.tables(self._data, start, min(count, limit))

    def _floats(self, place: int) -> tuple[float, ...]:
        start, count = flatbuffer.vector(self._data, place)
        limited = min(count, MAX_TEXT_BYTES)
        return flatbuffer.numbers(self._data, start, limited, _F32)

    def _text(self, place: int) -> str:
        start, count = flatbuffer.vector(self._data, place)
        text = self._data[start : start + min(count, MAX_TEXT_BYTES)]
        return bytes(text).decode(errors="replace")


class _Archive:
    """The archive at the end of ``file``, opened once a label file is asked for."""

    def __init__(self, file: memoryview) -> None:
        self._file = file
        self._zip: zipfile.ZipFile | None = None
        self._left = _MAX_ENTRIES

    def lines(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the lines of the first file among ``names`` that can be read."""
        import zipfile

        for name in names:
            self._left -= 1
            if self._left < 0:
                break
            try:
                return self._read(name)
            except (
                EOFError,
                LookupError,
                NotImplementedError,
                OSError,
                RuntimeError,
                ValueError,
                struct.error,
                zipfile.BadZipFile,
                zlib.error,
            ):
                continue
        return ()

    def _read(self, name: str) -> tuple[str, ...]:
        import zipfile

        if self._zip is None:
            # A part of the file, so that an archive of any size costs no more.
            end = io.BytesIO(self._file[-MAX_ARCHIVE_BYTES:])
            self._zip = zipfile.ZipFile(end)
        entry = self._zip.getinfo(name)
        # The other methods may ask for gigabytes before they unpack a byte.
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("compressed in an unusual way")
        with self._zip.open(entry) as file:
            text = file.read(MAX_LABEL_BYTES + 1)
        if len(text) > MAX_LABEL_BYTES:
            raise ValueError("too many labels")
        return tuple(text.decode(errors="replace").splitlines())
