"""The compiled ring, and the description that package indexes show.

All else about the package is in pyproject.toml, where an extension module and the tag
of its wheel are experimental still: each build would warn. The package is pure Python,
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

# Without a compiler the install goes on, and queues use the ring in Python.
RING = Extension(
    "asyncnn.fmq._ring",
    ["asyncnn/fmq/_ring.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    optional=True,
)

_LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)(?=[)\s])")
_SOURCE = re.compile(r'(<img [^>]*?src=")(?![a-z]+:)([^"]+)(?=")')


def description(readme: str, repository: str, version: str) -> str:
    """Return the README with links and pictures that lead into the repository.

    An index shows it without the files beside it: those of the version are meant.
    """
    pages = f"{repository}/blob/v{version}/"
    pictures = f"{repository}/raw/v{version}/"

    def absolute(link: re.Match[str]) -> str:
        return f"{link[1]}{link[2]}{pictures if link[1] else pages}{link[3]}"

    return _SOURCE.sub(rf"\g<1>{pictures}\g<2>", _LINK.sub(absolute, readme))


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
        ext_modules=[RING] if has_extension else [],
        options={"bdist_wheel": {"py_limited_api": "cp311"}} if has_extension else {},
    )


if __name__ == "__main__":
    main()
