"""Reads TFLite model files into HAL models.

`importer` drives it. `subgraphs` finds out what each graph calls and assigns, and a
`scope` converts one, operator by operator, by way of a `node`. Converters of single
operators are in files named after their families; `branches` has those that run
other graphs or use `variables`. `shapes` follows inputs of other shapes than the
file's, `metadata` reads what the author says. A `region` is a file as it is, for
which nothing of the rest is imported.
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.runtime.tflite.importer import importing_tflite as importing_tflite
    from asyncnn.runtime.tflite.importer import outline_of_tflite as outline_of_tflite
    from asyncnn.runtime.tflite.region import loading_tflite as loading_tflite
    from asyncnn.runtime.unsupported import (
        UnsupportedOperatorError as UnsupportedOperatorError,
    )
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "asyncnn.runtime.tflite.importer": "importing_tflite outline_of_tflite",
            "asyncnn.runtime.tflite.region": "loading_tflite",
            "asyncnn.runtime.unsupported": "UnsupportedOperatorError",
        },
    )
