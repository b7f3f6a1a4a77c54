"""Feeds modules in C by libFuzzer, with sanitizers.

``python -m tests.tools.fuzz.native`` takes the name of a module and seconds. clang
builds both module and harness, so that the module's own coverage guides what it is fed
with.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncnn

MODULES = {
    "asyncnn.fmq._ring": "ring",
    "asyncnn.hal.validate._prescan": "models",
    "asyncnn.tflite._scan": "tflite",
}
"""Modules, and the targets that feed them."""

HARNESS = Path(__file__).with_name("native_harness.c")

_CODE = """
import importlib.util, sys
sys.path[:] = {paths}
name, path = {name!r}, {path!r}
spec = importlib.util.spec_from_file_location(name, path)
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
from asyncnn.tools.fuzz.targets import TARGETS
target = TARGETS[{target!r}]
opened = target.opened("")
feed = opened.__enter__()

def run(data):
    try:
        feed(data)
    except target.answers:
        pass
"""


def clang() -> str:
    """Return the newest clang, empty where there is none with libFuzzer."""
    names = ("clang", *(f"clang-{version}" for version in range(22, 11, -1)))
    return next(filter(None, map(shutil.which, names)), "")


def fuzzed(module: str, seconds: int, sanitizers: str = "address,undefined") -> str:
    """Return what libFuzzer has written, which ends with how often it ran.

    :raises subprocess.CalledProcessError: if something was found.
    """
    include = f"-I{sysconfig.get_path('include')}"
    libraries = sysconfig.get_config_var("LIBDIR")
    version = sysconfig.get_config_var("LDVERSION")
    options = ["-g", "-O1", include, "-fno-sanitize-recover=undefined"]
    source = Path(asyncnn.__file__).parents[1] / f"{module.replace('.', '/')}.c"
    with TemporaryDirectory() as folder:
        built, runner = Path(folder, "module.so"), Path(folder, "runner")
        alone = ["-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000", str(source)]
        link = [f"-L{libraries}", f"-lpython{version}", f"-Wl,-rpath,{libraries}"]
        for command in (
            [f"-fsanitize=fuzzer-no-link,{sanitizers}", *alone, "-o", str(built)],
            [
                *(f"-fsanitize=fuzzer,{sanitizers}", "-rdynamic", str(HARNESS)),
                *(*link, "-o", str(runner)),
            ],
        ):
            subprocess.run([clang(), *options, *command], check=True)
        target = MODULES[module]
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, data in enumerate(_originals(target)):
            (corpus / f"{number}").write_bytes(data)
        code = _CODE.format(paths=sys.path, name=module, path=str(built), target=target)
        environment = os.environ | {
            "FUZZED_CODE": code,
            "PYTHONHOME": sys.base_prefix,
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0",
        }
        ran = subprocess.run(
            [runner, f"-max_total_time={seconds}", "-max_len=16384", corpus],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=True,
        )
        return ran.stdout


def _originals(target: str) -> Iterator[bytes]:
    from asyncnn.tools.fuzz.targets import TARGETS

    yield from TARGETS[target].corpus()


if __name__ == "__main__":
    name, seconds = sys.argv[1:3]
    sys.stdout.write(fuzzed(name, int(seconds)))
