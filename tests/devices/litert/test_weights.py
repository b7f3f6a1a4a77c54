"""Packed weights: shared, kept, and never trusted without a look."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices.litert import weights as packed
from asyncnn.devices.litert.c_api_engine import CApiGraph
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import CompiledGraph, Engine
from asyncnn.devices.litert.weights import PackedWeights, checksum, weights_key
from asyncnn.hal.errors import ForkedError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import OperationType
from tests.devices.litert.conftest import Case
from tests.devices.litert.running import segment_of_one
from tests.forks import in_child_blocking
from tests.kernels.operations import F32, bind, constant, result, tensor
from tests.processes import python

KEY = "0123456789abcdef"
OTHER_KEY = "f" * 16
MODEL = np.zeros(100, np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "weights"


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one each time that weights are packed."""
    counted: list[int] = []
    pack = PackedWeights._pack

    def counting(self: PackedWeights, compile_with: Callable[[int], object]) -> object:
        counted.append(1)
        return pack(self, compile_with)  # type: ignore[type-var]

    monkeypatch.setattr(PackedWeights, "_pack", counting)
    return counted


def file_in(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


def works(graph: CompiledGraph, chain: Chain) -> None:
    case = Case(chain)
    assert graph.run([case.x], case.outputs)
    case.assert_right()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_graphs_share_what_was_packed_once_in_memory(
    c_api: Engine, chain: Chain, packings: list[int]
) -> None:
    weights = PackedWeights(KEY)
    graphs = [c_api.compile(chain.model(), weights=weights) for _ in range(3)]
    weights.close()
    for graph in graphs:
        works(graph, chain)
    assert len(packings) == 1


def test_what_has_packed_is_closed_with_the_memory_that_it_took(
    c_api: Engine, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = CApiGraph.close

    def closing(self: CApiGraph) -> None:
        closed.append("the graph that has packed")
        close(self)

    monkeypatch.setattr(CApiGraph, "close", closing)
    graph = c_api.compile(chain.model(), weights=PackedWeights(KEY))
    assert closed
    works(graph, chain)


def test_a_graph_without_others_packs_for_itself(
    c_api: Engine, packings: list[int]
) -> None:
    weights = np.ones((512, 512), np.float32)
    x = tensor(F32, np.zeros((1, 512)))
    operands = [x, constant(F32, weights), constant(F32, np.zeros(512)), 0]
    y = result(F32, (1, 512))
    segment = segment_of_one(bind(OperationType.FULLY_CONNECTED, operands, [y]))
    kernel = LiteRtDelegate(c_api).prepare(segment, b"")
    assert kernel is not None
    graphs = [kernel.take(1)]
    assert not packings
    graphs += [kernel.take(1), kernel.take(1)]
    assert len(packings) == 1
    for graph in graphs:
        assert graph is not None
        got = np.zeros((1, 512), np.float32)
        assert graph.run([np.ones((1, 512), np.float32)], [got])
        np.testing.assert_array_equal(got, np.full((1, 512), 512))


def test_others_find_what_was_packed_in_a_file(
    c_api: Engine, chain: Chain, folder: Path, packings: list[int]
) -> None:
    for _ in range(3):
        weights = PackedWeights(KEY, folder)
        for _ in range(2):
            graph = c_api.compile(chain.model(), weights=weights)
            works(graph, chain)
    assert len(packings) == 1
    file = file_in(folder)
    assert str(file) in Path("/proc/self/maps").read_text()
    assert file.name.startswith(f"{KEY}-")
    assert file.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_interpreter_has_no_use_for_them(chain: Chain, folder: Path) -> None:
    from asyncnn.devices.litert.engine import load_engine

    graph = load_engine("interpreter").compile(
        chain.model(), weights=PackedWeights(KEY, folder)
    )
    works(graph, chain)
    assert not folder.exists()


@pytest.mark.parametrize("place", ["begin", "middle", "end"])
def test_a_flipped_bit_is_noticed(
    c_api: Engine, chain: Chain, folder: Path, packings: list[int], place: str
) -> None:
    c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)).close()
    content = bytearray(file_in(folder).read_bytes())
    content[{"begin": 0, "middle": len(content) // 2, "end": -1}[place]] ^= 1
    file_in(folder).write_bytes(content)
    works(c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)), chain)
    assert len(packings) == 2
    works(c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)), chain)
    assert len(packings) == 2


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "zeros", "swapped"])
def test_any_damage_is_noticed(
    c_api: Engine, folder: Path, packings: list[int], damage: str
) -> None:
    chain = Chain(3, 4, 64)  # several pages
    case = Case(chain, (4, 64))
    c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)).close()
    content = file_in(folder).read_bytes()
    assert len(content) > 3 * 4096
    pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
    damaged = {
        "cut": content[:-1],
        "longer": content + b"\0",
        "empty": b"",
        "zeros": bytes(len(content)),
        "swapped": b"".join([pages[0], pages[2], pages[1], *pages[3:]]),
    }[damage]
    file_in(folder).write_bytes(damaged)
    graph = c_api.compile(chain.model(), weights=PackedWeights(KEY, folder))
    assert len(packings) == 2
    assert graph.run([case.x], case.outputs)
    case.assert_right()
    assert file_in(folder).read_bytes() == content


def another(chain: Chain) -> Chain:
    """Return a chain of the same shape and size, with other weights."""
    other = Chain(6, 4, 32)
    other._weights = chain._weights[::-1]
    return other


def test_the_weights_of_another_model_are_not_used(
    c_api: Engine, chain: Chain, folder: Path, packings: list[int]
) -> None:
    for made in (another(chain), chain, another(chain)):
        works(c_api.compile(made.model(), weights=PackedWeights(KEY, folder)), made)
    assert len(packings) == 2
    weights = PackedWeights(KEY, folder)
    c_api.compile(chain.model(), weights=weights)
    with pytest.raises(InvalidArgumentError, match="of another model"):
        c_api.compile(another(chain).model(), weights=weights)


def test_a_file_by_another_name_is_not_used(
    c_api: Engine, chain: Chain, folder: Path, packings: list[int]
) -> None:
    c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)).close()
    right = file_in(folder)
    right.rename(folder / "right")
    other = another(chain)
    c_api.compile(other.model(), weights=PackedWeights(KEY, folder)).close()
    (folder / "right").unlink()
    file_in(folder).rename(right)
    works(c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)), chain)
    assert len(packings) == 3


def test_keys_tell_models_versions_and_cpus_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {weights_key(b"a", "1"), weights_key(b"b", "1"), weights_key(b"a", "2")}
    monkeypatch.setattr(packed, "cpu_name", lambda: "another")
    keys.add(weights_key(b"a", "1"))
    monkeypatch.setattr(packed, "cpu_features", lambda: "fewer")
    keys.add(weights_key(b"a", "1"))
    assert len(keys) == 5
    for key in keys:
        PackedWeights(key)


@pytest.mark.parametrize("key", ["", "short", "../../../../etc/passwd", "A" * 16])
def test_what_is_no_hash_is_no_key(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is no key of packed weights"):
        PackedWeights(key)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_others_may_have_written_is_not_used(
    c_api: Engine, chain: Chain, folder: Path, packings: list[int], kind: str
) -> None:
    c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)).close()
    if kind == "folder":
        folder.chmod(0o777)
    else:
        file_in(folder).chmod(0o666)
    works(c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)), chain)
    assert len(packings) == 2


def test_a_link_is_not_followed(
    c_api: Engine, chain: Chain, folder: Path, tmp_path: Path, packings: list[int]
) -> None:
    c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)).close()
    file = file_in(folder)
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    works(c_api.compile(chain.model(), weights=PackedWeights(KEY, folder)), chain)
    assert len(packings) == 2


@pytest.mark.parametrize("kind", ["a file in its place", "too small a limit"])
def test_where_nothing_can_be_kept_they_stay_in_memory(
    c_api: Engine, chain: Chain, folder: Path, packings: list[int], kind: str
) -> None:
    most = 2**30
    if kind == "too small a limit":
        most = 100
    else:
        folder.write_bytes(b"")
    weights = PackedWeights(KEY, folder, most_bytes=most)
    for _ in range(2):
        works(c_api.compile(chain.model(), weights=weights), chain)
    assert len(packings) == 1


def test_the_least_recently_used_make_room(c_api: Engine, folder: Path) -> None:
    chain = Chain(6, 4, 32)
    keys = [f"{number:016x}" for number in range(4)]

    def pack(key: str, most: int) -> None:
        weights = PackedWeights(key, folder, most_bytes=most)
        c_api.compile(chain.model(), weights=weights).close()

    pack(keys[0], 2**30)
    size = file_in(folder).stat().st_size
    for moment, key in enumerate(keys[1:3], 1):
        pack(key, 2**30)
        for file in folder.glob(f"{key}-*"):
            os.utime(file, (moment, moment))
    pack(keys[1], 2**30)  # it is used: its time is now
    (draft := folder / f".{keys[0]}.weights-0123456789abcdef").write_bytes(b"x")
    (others := folder / "yolov3.weights").write_bytes(bytes(4 * size))
    for file in (draft, others):
        os.utime(file, (1, 1))
    pack(keys[3], 3 * size)
    kept = {file.name[:16] for file in folder.iterdir()}
    assert kept == {keys[0], keys[1], keys[3], others.name}


def test_mapped_weights_outlive_their_file(
    c_api: Engine, chain: Chain, folder: Path
) -> None:
    weights = PackedWeights(KEY, folder)
    graph = c_api.compile(chain.model(), weights=weights)
    file_in(folder).unlink()
    works(graph, chain)
    works(c_api.compile(chain.model(), weights=weights), chain)


def test_descriptors_are_closed(c_api: Engine, chain: Chain, folder: Path) -> None:
    c_api.compile(chain.model()).close()
    before = descriptors()
    for place in (None, folder, folder):
        weights = PackedWeights(KEY, place)
        graphs = [c_api.compile(chain.model(), weights=weights) for _ in range(3)]
        with pytest.raises(GeneralFailureError):
            c_api.compile(b"rubbish" * 100, weights=PackedWeights(KEY, place))
        for graph in graphs:
            graph.close()
        weights.close()
        assert descriptors() == before


EXHAUSTION = """
import os, resource, sys
from pathlib import Path
from asyncnn.devices.litert.c_api_engine import CApiGraph
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.hal.types import OperationType
from tests.devices.litert.conftest import Case
from tests.devices.litert.running import segment_of_one

folder = Path(sys.argv[1]) if sys.argv[1] else None
engine, chain = load_engine("c_api"), Chain(links=6, rows=4, width=32)
engine.compile(chain.model()).close()

def compiled(weights):
    case = Case(chain)
    graph = engine.compile(chain.model(), weights=weights)
    assert graph.run([case.x], case.outputs)
    case.assert_right()
    return graph

is_kept = len(sys.argv) > 2
if is_kept:
    compiled(PackedWeights("a" * 16, folder))
compiled(None)  # so that all is imported
usual = resource.getrlimit(resource.RLIMIT_NOFILE)
private = 0
for left in range(8):
    for file in [] if is_kept or folder is None else folder.glob("*"):
        file.unlink()
    weights = PackedWeights("a" * 16, folder)
    opened = [os.open("/dev/null", os.O_RDONLY)]
    while opened[-1] < 100:  # so that there are no numbers left between others
        opened.append(os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened[-1] + 1 + left, usual[1]))
    compiled(weights)
    private += weights._descriptor is None
    resource.setrlimit(resource.RLIMIT_NOFILE, usual)
    for descriptor in opened:
        os.close(descriptor)
    assert not is_kept or list(folder.iterdir()), left
    compiled(weights)
    compiled(weights)
assert 0 < private < 5, private
"""


@pytest.mark.parametrize("where", ["memory", "new", "kept"])
def test_where_descriptors_run_out_a_graph_packs_for_itself(
    folder: Path, where: str
) -> None:
    arguments = {"memory": ("",), "new": (folder,), "kept": (folder, "kept")}
    ended = python("-c", EXHAUSTION, *arguments[where])
    assert ended.returncode == 0, ended.stderr


def test_a_failed_compilation_leaves_no_descriptor_and_no_file(folder: Path) -> None:
    before = descriptors()

    def fail(descriptor: int) -> CompiledGraph:
        raise GeneralFailureError(str(descriptor))

    for place in (None, folder):
        weights = PackedWeights(KEY, place)
        with pytest.raises(GeneralFailureError):
            weights.compile(MODEL, fail)
        assert descriptors() == before
    assert not folder.exists()


def test_a_forked_child_does_not_use_them(c_api: Engine, chain: Chain) -> None:
    weights = PackedWeights(KEY)
    graph = c_api.compile(chain.model(), weights=weights)

    def child() -> str:
        try:
            weights.compile(MODEL, lambda _: graph)
        except ForkedError as error:
            return error.message
        return ""

    assert "packed weights belongs to the process" in in_child_blocking(child)
    works(c_api.compile(chain.model(), weights=weights), chain)


def test_threads_pack_once(
    c_api: Engine, chain: Chain, folder: Path, packings: list[int]
) -> None:
    weights = PackedWeights(KEY, folder)
    graphs: list[CompiledGraph] = []

    def compile_one() -> None:
        graphs.append(c_api.compile(chain.model(), weights=weights))

    threads = [threading.Thread(target=compile_one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(packings) == 1
    assert len(graphs) == 4
    for graph in graphs:
        works(graph, chain)


ANOTHER_PROCESS = f"""
import sys
from pathlib import Path
from asyncnn.devices.litert.c_api_engine import CApiGraph
from asyncnn.devices.litert.chain_model import Chain
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.hal.types import OperationType
from tests.devices.litert.conftest import Case
from tests.devices.litert.running import segment_of_one

engine, chain = load_engine("c_api"), Chain(6, 4, 32)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(8):
    weights = PackedWeights({KEY!r}, Path(sys.argv[1]))
    graph, case = engine.compile(chain.model(), weights=weights), Case(chain)
    assert graph.run([case.x], case.outputs)
    case.assert_right()
    if sys.argv[2] == "removes":
        for file in Path(sys.argv[1]).iterdir():
            file.unlink(missing_ok=True)
"""


def test_processes_pack_and_remove_at_once(folder: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ANOTHER_PROCESS, str(folder), role],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for role in ("keeps", "removes")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("\n", timeout=60)
        assert process.returncode == 0


def test_each_word_counts_in_a_checksum() -> None:
    content = bytearray(np.random.default_rng(0).bytes(3 * 4096 + 100))
    right = checksum(KEY, content)
    assert checksum(KEY, bytes(content)) == right
    assert checksum(OTHER_KEY, content) != right
    for place in (0, 7, 4095, 4096, 10000, len(content) - 1):
        content[place] ^= 128
        assert checksum(KEY, content) != right
        content[place] ^= 128
    assert checksum(KEY, content + b"\0") != right
    assert checksum(KEY, content[4096:8192] + content[:4096] + content[8192:]) != right
