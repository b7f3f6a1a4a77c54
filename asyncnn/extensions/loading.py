"""Finds extensions by name, for drivers that are started by a command."""

from importlib import import_module

from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions.extension import Extension


def load_extension(place: str) -> Extension:
    """Import the extension at ``place``, like ``package.module:attribute``.

    :raises InvalidArgumentError: if there is none.
    """
    module, _, attribute = place.partition(":")
    try:
        extension = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"there is no extension at {place!r}: {error}",
            hint="give the module and its attribute: package.module:attribute",
        ) from error
    if not isinstance(extension, Extension):
        raise InvalidArgumentError(f"{place} is a {type(extension).__name__}")
    return extension
