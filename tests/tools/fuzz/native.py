"""Feeds modules in C by libFuzzer, with sanitizers.

``python -m tests.tools.fuzz.native`` takes the name of a target and seconds. clang
builds both its module and the harness, so that the module's own coverage guides what it
is fed with.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import asyncnn

_PRODUCT, _HERE = "asyncnn.tools.fuzz.targets", "tests.tools.fuzz.native_targets"
_MEMORY = "address,undefined"


class Fed(NamedTuple):
    """A module in C, the table that has what feeds it, and what watches it."""

    module: str
    targets: str = _HERE
    sanitizers: str = _MEMORY


FED = {
    "ring": Fed("asyncnn.fmq._ring", _PRODUCT),
    "models": Fed("asyncnn.hal.validate._prescan", _PRODUCT),
    "tflite": Fed("asyncnn.tflite._scan", _PRODUCT),
    "arrays": Fed("asyncnn.runtime._arrays"),
    "turn": Fed("asyncnn._turn"),
    "job": Fed("asyncnn.engine._job"),
    "lanes": Fed("asyncnn.engine._job"),
    "threads": Fed("asyncnn.engine._job", sanitizers="thread"),
}
"""By the names of targets."""

HARNESS = Path(__file__).with_name("native_harness.c")

_CODE = """
import gc, importlib.util, sys
sys.path[:] = {paths}
name, path = {name!r}, {path!r}
spec = importlib.util.spec_from_file_location(name, path)
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])
from {targets} import TARGETS
target = TARGETS[{target!r}]
opened = target.opened("")
feed = opened.__enter__()
gc.freeze()  # a script may collect garbage often

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


def fuzzed(target: str, seconds: int) -> tuple[int, str]:
    """Return the status of libFuzzer, 0 if nothing was found, and what it has written.

    :raises subprocess.CalledProcessError: if something cannot be built.
    """
    module, targets, sanitizers = FED[target]
    include = f"-I{sysconfig.get_path('include')}"
    libraries = sysconfig.get_config_var("LIBDIR")
    version = sysconfig.get_config_var("LDVERSION")
    options = ["-g", "-O1", include, "-fno-sanitize-recover=undefined"]
    source = Path(asyncnn.__file__).parents[1] / f"{module.replace('.', '/')}.c"
    with TemporaryDirectory() as folder:
        built, runner = Path(folder, "module.so"), Path(folder, "runner")
        alone = ["-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000", str(source)]
        link = [f"-L{libraries}", f"-lpython{version}", f"-Wl,-rpath,{libraries}"]
        # Threads race for what counts coverage, so that is left out.
        counting = "" if sanitizers == "thread" else "fuzzer-no-link,"
        for command in (
            [f"-fsanitize={counting}{sanitizers}", *alone, "-o", str(built)],
            [
                *(f"-fsanitize=fuzzer,{sanitizers}", "-rdynamic", str(HARNESS)),
                *(*link, "-o", str(runner)),
            ],
        ):
            subprocess.run([clang(), *options, *command], check=True)
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, data in enumerate(import_module(targets).TARGETS[target].corpus()):
            (corpus / f"{number}").write_bytes(data)
        code = _CODE.format(
            paths=sys.path, name=module, path=str(built), targets=targets, target=target
        )
        environment = os.environ | {
            "FUZZED_CODE": code,
            "PYTHONHOME": sys.base_prefix,
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": "detect_leaks=0",
        }
        ran = subprocess.run(
            # Seeds stay even if nothing of the module says that they are worth it.
            [
                *(runner, f"-max_total_time={seconds}", "-max_len=16384"),
                *("-keep_seed=1", "-detect_leaks=0", corpus),
            ],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        return ran.returncode, ran.stdout


if __name__ == "__main__":
    status, told = fuzzed(sys.argv[1], int(sys.argv[2]))
    sys.stdout.write(told)
    sys.exit(status)
