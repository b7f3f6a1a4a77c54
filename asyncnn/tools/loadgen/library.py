"""The samples that LoadGen asks for, and how accurate the answers to them were."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.samples import (
    Tolerance,
    compare,
    fitting,
    load_arrays,
    random_sample,
    samples,
)

RANDOM_SAMPLES = 64
"""Random samples where no file gives any."""

ACCURACY_LOG = "mlperf_log_accuracy.json"


class AnswerAccuracy(msgspec.Struct, frozen=True):
    """How many of the answers that LoadGen has logged were right.

    ``metric`` is top-1 for labels, and ``golden`` for outputs to compare with.
    """

    metric: str
    right: int
    answers: int

    @property
    def share(self) -> float:
        """The share of answers that were right."""
        return self.right / max(self.answers, 1)


class Library:
    """Samples of a model, in memory that drivers share; inputs in the model's order.

    ``labels`` are the classes of the samples, ``goldens`` the outputs expected.
    """

    def __init__(
        self,
        model: NamedModel,
        inputs: Sequence[Sequence[Array]],
        labels: Array | None = None,
        goldens: Sequence[dict[str, Array]] | None = None,
    ) -> None:
        self.inputs = [tuple(map(_shared, arrays)) for arrays in inputs]
        self._outputs = model.outputs
        self._labels = labels
        self._goldens = goldens

    @classmethod
    def random(cls, model: NamedModel, count: int = RANDOM_SAMPLES) -> "Library":
        """Make random samples, the same each time."""
        rng = np.random.default_rng(0)
        made = [random_sample(model.inputs, rng) for _ in range(count)]
        return cls(model, [[s[i.name] for i in model.inputs] for s in made])

    @classmethod
    def read(cls, model: NamedModel, path: Path) -> "Library":
        """Read ``input_K``, and ``labels`` or ``output_K``, of an ``.npz`` file.

        :raises InvalidArgumentError: if it does not fit the model.
        """
        arrays = load_arrays(path)
        found = fitting(
            samples(arrays, "input", model.inputs, path), model.inputs, path
        )
        labels, goldens = arrays.get("labels"), None
        if labels is not None:
            labels = labels.reshape(-1)
            if len(labels) != len(found) or labels.dtype.kind not in "iu":
                raise InvalidArgumentError(
                    f"{path} has {len(labels)} labels of {labels.dtype}, but "
                    f"{len(found)} samples",
                    hint="labels are one integer for each sample",
                )
        elif "output_0" in arrays or any(k.startswith("output_0.") for k in arrays):
            goldens = samples(arrays, "output", model.outputs, path)
            if len(goldens) != len(found):
                raise InvalidArgumentError(
                    f"{path} has {len(goldens)} outputs for {len(found)} samples"
                )
        return cls(model, found, labels, goldens)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def output_count(self) -> int:
        """Number of outputs of the model."""
        return len(self._outputs)

    def check_judged(self) -> None:
        """Check that it is known which answers are right.

        :raises InvalidArgumentError: if it is not.
        """
        if self._labels is None and self._goldens is None:
            raise InvalidArgumentError(
                "it is not known which answers are right",
                hint="give --input an .npz file with input_K, and labels or output_K",
            )

    def accuracy(self, folder: Path, tolerance: Tolerance) -> AnswerAccuracy:
        """Score what LoadGen has logged in ``folder``.

        :raises InvalidArgumentError: if the log has answers of other lengths.
        """
        self.check_judged()
        logged: list[dict[str, Any]] = json.loads((folder / ACCURACY_LOG).read_text())
        # Some come twice, where they fill up the last query of several samples.
        answers = {int(entry["qsl_idx"]): str(entry["data"]) for entry in logged}
        right = 0
        for number, data in answers.items():
            outputs = self._decoded(bytes.fromhex(data))
            right += self._is_right(number, outputs, tolerance)
        metric = "golden" if self._labels is None else "top-1"
        return AnswerAccuracy(metric, right, len(answers))

    def _decoded(self, data: bytes) -> dict[str, Array]:
        outputs, start = {}, 0
        for info in self._outputs:
            count = int(np.prod(info.dimensions, dtype=np.int64))
            end = start + count * info.dtype.itemsize
            if end > len(data):
                break
            flat = np.frombuffer(data[start:end], info.dtype)
            outputs[info.name] = flat.reshape(info.dimensions)
            start = end
        if start != len(data) or len(outputs) != len(self._outputs):
            raise InvalidArgumentError(
                f"an answer of {len(data)} bytes was logged, which no outputs have"
            )
        return outputs

    def _is_right(
        self, sample: int, outputs: dict[str, Array], tolerance: Tolerance
    ) -> bool:
        if self._labels is not None:
            scores = outputs[self._outputs[0].name]
            return int(np.argmax(scores)) == int(self._labels[sample])
        assert self._goldens is not None
        return all(
            compare(name, outputs[name], expected, tolerance).passed
            for name, expected in self._goldens[sample].items()
        )


def _shared(array: Array) -> Array:
    copy = shared_array(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy
