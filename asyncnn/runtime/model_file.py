"""Model files: `load_model` reads every kind.

`bundled_file` finds the ones that come with the package, to try things with.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from asyncnn.deadlines import deadline_after
from asyncnn.extensions import Extension
from asyncnn.hal.errors import InvalidArgumentError, WrongTypeError
from asyncnn.hal.types import Memory
from asyncnn.input_files import call_abandonable, in_one, offload_abandonable
from asyncnn.memory.pools import from_buffer, view
from asyncnn.offload import SWITCH_INTERVAL_S, switching_at_least_every
from asyncnn.pacing import Steps, completed
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model import (
    InputShapes,
    NamedModel,
    located,
    open_model_file,
    read_model_file,
)
from asyncnn.runtime.model_description import Outline
from asyncnn.runtime.states import pairs_by_name
from asyncnn.runtime.tflite import loading_tflite
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.turn import require_loop

if TYPE_CHECKING:
    from asyncnn.runtime.onnx import Constants

BUNDLED = Path(__file__).parent / "bundled"
"""The folder of what `bundled_file` finds."""

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview
"""The path of a model file, or its bytes."""

_SHORT_BYTES = 1 << 20
"""Files of so many bytes load in a moment."""


async def load_model(
    source: ModelSource,
    *,
    signature: str | None = None,
    input_shapes: InputShapes = None,
    constants: "Constants | None" = None,
    states: Mapping[str, str] | None = None,
    extensions: Iterable[Extension | str] = (),
    strict: bool = False,
    timeout: float | None = None,  # noqa: ASYNC109 - it also ends what is cancelled
) -> NamedModel:
    """Load a model file on a thread: TFLite, ONNX or the project's own container.

    The event loop goes on meanwhile. Cancelling, or the end of the time, ends the call
    at once, even if the file's folder does not answer any more.

    ``source`` is the file's path or its bytes, which decide what kind it is, not the
    name. A file is copied into memory, and may be changed, replaced or deleted
    afterwards. Bytes that are given are used where they are, and must not change while
    the model is in use.

    :param signature: name of the signature of a TFLite file whose graph is the model;
        None for the first graph.
    :param input_shapes: of inputs, by name, or of all in order. Shapes of a TFLite file
        replace the file's, of the same rank, and all other shapes follow. For an
        ONNX file they fix axes that it leaves open, where 0 leaves one open still.
    :param constants: values, by name, of inputs of an ONNX file that are always the
        same; the model has them no more.
    :param states: inputs that a session keeps, by name, each with the output that is
        its next value. None for those whose names leave no doubt, or that a container
        was saved with; ``{}`` for none.
    :param extensions: where custom operators of the file are looked for, besides those
        that asyncnn brings and that packages have installed.
    :param strict: translate the file into the HAL's own operations at once. Without it,
        an ONNX file is one region, which devices with an engine for such files take as
        it is; it is translated when another device prepares it. So is a TFLite file in
        which nothing is lost by that, or that cannot be translated.
    :param timeout: seconds from now until it is given up.
    :raises InvalidArgumentError: if the file is empty, damaged or of no known kind, has
        no such signature, or none of what is given is for files of its kind.
    :raises UnsupportedOperatorError: if an operator has no HAL form, and needs one.
    :raises GeneralFailureError: if the file cannot be read or is changed meanwhile, or
        the package `onnx` is needed for it and is not installed. It is also a
        `FileNotFoundError` if there is none.
    :raises MissedDeadlineError: if it is not loaded in time.
    :raises ResourceExhaustedError: if there is no thread, as too many hang in folders
        that do not answer.
    """
    require_loop()
    order = _Order(signature, input_shapes, constants, states, extensions, strict)
    steps, what = order.reading(source), f"loading {_where(source)}"
    return await offload_abandonable(what, steps, deadline=deadline_after(timeout))


def load(
    source: ModelSource,
    *,
    signature: str | None = None,
    input_shapes: InputShapes = None,
    constants: "Constants | None" = None,
    states: Mapping[str, str] | None = None,
    extensions: Iterable[Extension | str] = (),
    strict: bool = False,
) -> NamedModel:
    """Load a model file as `load_model` does, and block; an interrupt ends that.

    :raises AsyncnnError: as `load_model`.
    """
    order = _Order(signature, input_shapes, constants, states, extensions, strict)
    what = f"loading {_where(source)}"
    memory = call_abandonable(what, in_one(order.bytes_of, source))
    steps = order.loading(source, memory)
    # Another thread takes longer to begin than this does, where nothing can hang.
    is_short = memory.size <= _SHORT_BYTES and not _reads_others(source, memory)
    return completed(steps) if is_short else call_abandonable(what, steps)


def _reads_others(source: ModelSource, memory: Memory) -> bool:
    """Return whether a short file may have more to read: weights beside the graph."""
    data = view(memory)
    # What has weights elsewhere names their location.
    is_path = isinstance(source, str | os.PathLike)
    return is_path and kind_of(data) is FileKind.ONNX and b"location" in bytes(data)


def _where(source: ModelSource) -> str:
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return "the model in memory"


class _Order(NamedTuple):
    """What to load of a file; see `load_model`."""

    signature: str | None
    input_shapes: InputShapes
    constants: "Constants | None"
    states: Mapping[str, str] | None
    extensions: Iterable[Extension | str]
    strict: bool

    def reading(self, source: ModelSource) -> Steps[NamedModel]:
        memory = self.bytes_of(source)
        yield
        return (yield from self.loading(source, memory))

    def bytes_of(self, source: ModelSource) -> Memory:
        """Read a file, or take bytes as they are."""
        if not isinstance(source, str | os.PathLike):
            try:
                return from_buffer(memoryview(source).toreadonly())
            except TypeError:
                wrong = type(source).__name__
                raise WrongTypeError(
                    f"a model is loaded from a path or bytes, not {wrong}"
                ) from None
        file = open_model_file(source)
        with located(source):
            kind = kind_of(file)  # first: what is no model may be of any size
        # What has the HAL's operations stays mapped, for drivers too.
        is_region = kind is not FileKind.CONTAINER and not self.strict
        return file.read() if is_region else file.copy()

    def loading(self, source: ModelSource, memory: Memory) -> Steps[NamedModel]:
        with located(_where(source)), switching_at_least_every(SWITCH_INTERVAL_S):
            if not memory.size:
                raise InvalidArgumentError("it is empty")
            kind, states = kind_of(view(memory)), self.states
            given = {
                "a signature": (self.signature, (FileKind.TFLITE,)),
                "input_shapes": (self.input_shapes, (FileKind.TFLITE, FileKind.ONNX)),
                "constants": (self.constants, (FileKind.ONNX,)),
            }
            for what, (value, kinds) in given.items():
                if value and kind not in kinds:
                    raise InvalidArgumentError(
                        f"{what} cannot be given for {kind.value} files"
                    )
            if kind is FileKind.CONTAINER:
                from asyncnn.runtime.container import read_container

                named = read_container(memory)
                return named if states is None else named.with_pairs(states)
            if kind is FileKind.TFLITE:
                named = yield from loading_tflite(
                    *(memory, self.signature, self.input_shapes),
                    *(self.extensions, self.strict),
                )
            else:
                folder = None
                if isinstance(source, str | os.PathLike):
                    folder = Path(source).parent
                named = yield from self._onnx(memory, folder)
            return named.with_pairs(pairs_by_name(named) if states is None else states)

    def _onnx(self, memory: Memory, folder: Path | None) -> Steps[NamedModel]:
        """Make a region of an ONNX file; translate it if asked for that, or none."""
        from asyncnn.runtime.onnx import importing_onnx
        from asyncnn.runtime.onnx.whole_file import reading_whole

        refusal: UnsupportedOperatorError | None = None
        if not self.strict:
            try:
                return (
                    yield from reading_whole(
                        memory, folder, self.input_shapes, self.constants
                    )
                )
            except UnsupportedOperatorError as error:
                refusal = error
        try:
            return (
                yield from importing_onnx(
                    memory,
                    folder=folder,
                    input_shapes=self.input_shapes,
                    constants=self.constants,
                    strict=self.strict,
                )
            )
        except UnsupportedOperatorError as error:
            if refusal is None or refusal.message in error.message:
                raise
            raise UnsupportedOperatorError(
                f"{refusal.message}; translated: {error.message}",
                hint=refusal.hint or error.hint,
                operators=error.operators,
            ) from error


def outline_of(path: str | os.PathLike[str]) -> Outline | None:
    """Return what a file says of its inputs and outputs, even if it isn't imported.

    A container says no more than what `load` returns, for which this is None.

    :raises InvalidArgumentError: if it is damaged or of no known kind.
    :raises GeneralFailureError: as `load`.
    """
    memory = read_model_file(path)
    with located(path):
        kind = kind_of(view(memory))
        if kind is FileKind.CONTAINER:
            return None
        if kind is FileKind.TFLITE:
            from asyncnn.runtime.tflite import outline_of_tflite

            return outline_of_tflite(memory)
        from asyncnn.runtime.onnx import outline_of_onnx

        return outline_of_onnx(memory)


def bundled_file(name: str) -> Path:
    """Return the path of a file that comes with the package, to try things with.

    ``digits_float.asyncnn`` and ``digits_int8.asyncnn`` are classifiers of handwritten
    digits. An image is ``image``, float32 or quantised int8 [1, 8, 8, 1], grey levels
    from 0 (paper) to 1 (ink); ``probabilities`` [1, 10] are how likely each digit is.
    ``digits_test.npz`` has 360 images that they have not seen, ``images``, uint8
    [360, 8, 8], grey levels from 0 to 16, and which digits these are, ``labels``, uint8
    [360].

    :raises InvalidArgumentError: if no file of that name comes with the package.
    """
    known = sorted(path.name for path in BUNDLED.iterdir())
    if name not in known:
        raise InvalidArgumentError(
            f"no file {name!r} comes with asyncnn", hint=f"known: {', '.join(known)}"
        )
    return BUNDLED / name
