"""The compiled modules, and the description that package indexes show.

All else about the package is in pyproject.toml, where extension modules and the tag of
their wheel are experimental still: each build would warn. The package is pure Python,
and so is its wheel, with ``ASYNCNN_NO_EXTENSION=1``, and on free-threaded interpreters,
which have no stable ABI.
"""

import os
import re
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent

# Without a compiler the install goes on: each has a twin in Python.
EXTENSIONS = [
    Extension(
        name,
        [f"{name.replace('.', '/')}.c"],
        depends=["asyncnn/_native.h"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
    )
    for name in (
        "asyncnn._turn",
        "asyncnn.engine._job",
        "asyncnn.fmq._ring",
        "asyncnn.hal.validate._prescan",
        "asyncnn.kernels._compiled",
        "asyncnn.runtime._arrays",
        "asyncnn.service.driver._calls",
        "asyncnn.tflite._scan",
    )
]

_TARGET = r"(?![a-z]+:|[#])[^)\s\"]+"
_REFERENCE = re.compile(
    rf"""(?P<code>```.*?```|`[^`\n]*`)
    |(?P<picture>!\[[^\]]*\]\(|<img\ [^>]*?src=")(?={_TARGET})
    |(?P<page>\]\()(?={_TARGET})""",
    re.DOTALL | re.VERBOSE,
)


def description(readme: str, repository: str, version: str) -> str:
    """Return the README with links and pictures that lead into the repository.

    An index shows it without the files beside it: those of the version are meant.
    """
    places = {
        "code": "",
        "picture": f"{repository}/raw/v{version}/",
        "page": f"{repository}/blob/v{version}/",
    }
    return _REFERENCE.sub(lambda found: found[0] + places[found.lastgroup], readme)


def _long_description() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    code = (ROOT / "asyncnn" / "__init__.py").read_text("utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', code, re.MULTILINE)
    readme = (ROOT / "README.md").read_text("utf-8")
    return description(readme, project["urls"]["Source"], version)


def main() -> None:
    """Set up what pyproject.toml leaves open."""
    has_extension = os.environ.get("ASYNCNN_NO_EXTENSION", "") in ("", "0") and not (
        sysconfig.get_config_var("Py_GIL_DISABLED")
    )
    setup(
        long_description=_long_description(),
        long_description_content_type="text/markdown",
        ext_modules=EXTENSIONS if has_extension else [],
        options={"bdist_wheel": {"py_limited_api": "cp311"}} if has_extension else {},
    )


if __name__ == "__main__":
    main()
