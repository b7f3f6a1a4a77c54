"""The bundled data: two classifiers of handwritten digits and images to try them on.

Images have 8x8 pixels with grey levels 0 to 16. They come from the test set of the
UCI Machine Learning Repository's "Optical Recognition of Handwritten Digits", as
scikit-learn ships it; the models never saw these ones in training.
"""

from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model import TensorInfo

Images: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.uint8]
ModelKind: TypeAlias = Literal["float", "int8"]

MODEL_KINDS: tuple[ModelKind, ...] = get_args(ModelKind)
DATA = Path(__file__).parent / "data"
CLASSES = 10
MAX_GREY = 16

ACCURACY_FLOORS: dict[ModelKind, float] = {"float": 0.97, "int8": 0.96}
"""Share of right answers that each model must reach on the held-out images."""


def load_digits_test() -> tuple[Images, Labels]:
    """Return the held-out images, uint8 [N, 8, 8], and their labels, uint8 [N]."""
    with np.load(DATA / "digits_test.npz") as arrays:
        return arrays["images"], arrays["labels"]


def model_path(kind: ModelKind, folder: Path = DATA) -> Path:
    """Return where the model of this kind lies."""
    return folder / f"digits_{kind}.asyncnn"


def encode(images: Images, info: TensorInfo) -> Array:
    """Return images as arrays [N, 1, 8, 8, 1] for the model input ``info``.

    Real values are grey levels from 0 to 1, quantised if the input is.
    """
    real = images[:, None, :, :, None].astype(np.float32) / MAX_GREY
    if not info.scale:
        return real.astype(info.dtype)
    limits = np.iinfo(info.dtype)
    codes = np.rint(real / info.scale) + info.zero_point
    stored: Array = np.clip(codes, limits.min, limits.max).astype(info.dtype)
    return stored
