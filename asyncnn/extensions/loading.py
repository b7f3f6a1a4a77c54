"""Finds extensions by name, as commands are given them."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions.extension import Extension

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINTS = "asyncnn.extensions"
"""Group of the entry points by which distributions install extensions.

The name of an entry point is that of the extension.
"""


def installed_extensions() -> tuple[str, ...]:
    """Return the names of all that are installed, without importing any."""
    return tuple(sorted(_entry_points().names))


def load_extension(place: str) -> Extension:
    """Import an extension: ``package.module:attribute``, or an installed one's name.

    :raises InvalidArgumentError: if there is none.
    """
    if ":" not in place:
        return _installed(place)
    module, _, attribute = place.partition(":")
    return _loaded(place, lambda: getattr(import_module(module), attribute))


def _entry_points() -> "EntryPoints":
    # Takes tens of milliseconds to import, and is seldom needed.
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)


def _installed(name: str) -> Extension:
    found = {point.value: point for point in _entry_points().select(name=name)}
    if not found:
        known = ", ".join(installed_extensions()) or "none"
        raise InvalidArgumentError(
            f"there is no installed extension {name!r}",
            hint=f"installed: {known}; others are given as package.module:attribute",
        )
    if len(found) > 1:
        raise InvalidArgumentError(
            f"{name} is installed more than once: {', '.join(sorted(found))}",
            hint="give the one that is meant as package.module:attribute",
        )
    ((value, point),) = found.items()
    extension = _loaded(value, point.load)
    if extension.name != name:
        raise InvalidArgumentError(f"{value} is {extension.name}, installed as {name}")
    return extension


def _loaded(place: str, load: Callable[[], Any]) -> Extension:
    try:
        extension = load()
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"there is no extension at {place!r}: {error}",
            hint="give the module and its attribute: package.module:attribute",
        ) from error
    if not isinstance(extension, Extension):
        raise InvalidArgumentError(f"{place} is a {type(extension).__name__}")
    return extension
