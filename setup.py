"""The compiled ring; all else about the package is in pyproject.toml.

There, an extension module and the tag of its wheel are experimental: each build warns.
"""

from setuptools import Extension, setup

# Without a compiler the install goes on, and queues use the ring in Python.
RING = Extension(
    "asyncnn.fmq._ring",
    ["asyncnn/fmq/_ring.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[RING], options={"bdist_wheel": {"py_limited_api": "cp311"}})
