"""Chooses the model files that are measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tools.bench.tflite.mobilenet import mobilenet_v1

DEFAULT_FOLDER = Path("../shared/models")
"""Measured where no folder is named, if it is there."""

_MOBILENETS = {"mobilenet_v1_224_float": False, "mobilenet_v1_224_int8": True}
"""Generated models by name, and whether they are quantised."""


@contextmanager
def model_files(
    folder: Path | None, pattern: str = "*", *, mobilenet: bool = True
) -> Iterator[list[Path]]:
    """Yield the TFLite files whose name without suffix matches ``pattern``, sorted.

    ``folder`` may be a single file. Generated MobileNets come last and are removed in
    the end.

    :raises InvalidArgumentError: if there is no such folder, or nothing to measure.
    :raises PeerMissingError: if MobileNets are wanted but LiteRT is not installed.
    """
    files = [path for path in _found(folder) if fnmatchcase(path.stem, pattern)]
    wanted = [name for name in _MOBILENETS if mobilenet and fnmatchcase(name, pattern)]
    if not files and not wanted:
        raise InvalidArgumentError(
            f"there is no .tflite file {pattern!r} in {folder or DEFAULT_FOLDER}"
        )
    with TemporaryDirectory(prefix="asyncnn-bench-") as temporary:
        for name in wanted:
            file = Path(temporary, f"{name}.tflite")
            file.write_bytes(mobilenet_v1(quantized=_MOBILENETS[name]))
            files.append(file)
        yield files


def _found(folder: Path | None) -> list[Path]:
    if folder is None:
        folder = DEFAULT_FOLDER
    elif not folder.exists():
        raise InvalidArgumentError(f"there is no folder {folder}")
    return [folder] if folder.is_file() else sorted(folder.glob("*.tflite"))
