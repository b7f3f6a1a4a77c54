"""What can be wrong with a TFLite file, and the border where foreign errors stop."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from asyncnn.errors import GeneralFailureError, InvalidArgumentError


class UnsupportedOperatorError(GeneralFailureError):
    """A valid file uses an operator, or a variant of one, that has no HAL form."""


@contextmanager
def decoding() -> Iterator[None]:
    """Turn what a decoder raises on damaged bytes into one error of the family.

    :raises InvalidArgumentError: if the block raises such an error.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise InvalidArgumentError(
            f"damaged TFLite file ({type(error).__name__}: {error})"
        ) from error
