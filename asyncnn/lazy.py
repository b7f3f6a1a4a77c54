"""Packages whose public names are imported when they are first used (PEP 562).

A process loads the parts that it uses: a client no kernels, a driver no model files.
What computes or serves names its imports by their modules all the same: a driver that
imported something late could not do so once its descriptors have run out. Kernels, and
tables of the files that models are read from and written to, are for preparations,
which are refused then anyway.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from types import ModuleType


def lazy_names(
    package: str, names: Mapping[str, str], subpackages: str = "", *, extra: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], tuple[str, ...]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of ``package``.

    ``names`` are its public names, separated by spaces, by the modules that define
    them. The package imports the same names under ``TYPE_CHECKING``, for type checkers.
    ``subpackages``, separated likewise, are attributes even before anybody imports
    them. What is not installed is in the ``extra``.
    """
    module_of = {
        name: module for module, those in names.items() for name in those.split()
    }
    parts = subpackages.split()
    namespace = vars(sys.modules[package])

    def getattr_(name: str) -> object:
        value: object
        if name in module_of:
            try:
                value = getattr(import_module(module_of[name]), name)
            except ModuleNotFoundError as error:
                if extra:
                    error.add_note(f"install it with: pip install 'asyncnn[{extra}]'")
                raise
        elif name in parts:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        namespace[name] = value  # found without this function from now on
        return value

    def dir_() -> list[str]:
        return sorted({*namespace, *module_of, *parts})

    return getattr_, dir_, tuple(sorted(module_of))


def exported(package: str) -> tuple[str, ...]:
    """Return the public names of a package: all that it has by now but modules."""
    known = vars(sys.modules[package]).items()
    names = [name for name, value in known if not isinstance(value, ModuleType)]
    return tuple(sorted(name for name in names if not name.startswith("_")))


def compiled_module(name: str, pure: str) -> ModuleType | None:
    """Return a module in C; None if it was not built, or ``pure`` asks for its twin.

    That is the name of a variable of the environment, which is 1 then.
    """
    if os.environ.get(pure) == "1":
        return None
    try:
        return import_module(name)
    except ImportError:  # there was no compiler
        return None


@cache
def module_alone(package: str, name: str) -> ModuleType:
    """Return a module of another package, without all that the package imports.

    :raises ModuleNotFoundError: if there is none.
    """
    from importlib.util import module_from_spec

    found = PathFinder.find_spec(package)
    folders = None if found is None else found.submodule_search_locations
    spec = PathFinder.find_spec(f"{package}.{name}", folders) if folders else None
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module {package}.{name}", name=package)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
