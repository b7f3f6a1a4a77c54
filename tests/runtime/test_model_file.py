"""The project's own model file."""

import struct
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import (
    ExtensionNameAndPrefix,
    Memory,
    Operand,
    OperandType,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.memory.pools import from_buffer, view
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.container import read_container, save
from asyncnn.runtime.file_kinds import MAGIC
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import bundled_file, load

PREFIX = struct.Struct("<8sIII")


def product(*sizes: int, copy: bool = True, name: str = "x") -> NamedModel:
    """Return a model that multiplies by one constant vector for each size."""
    builder = ModelBuilder()
    value = builder.input(name, OperandType.TENSOR_FLOAT32, (1, 1))
    none = builder.scalar(0)
    for seed, size in enumerate(sizes):
        array = np.random.default_rng(seed).random((1, size), np.float32)
        value = builder.operation(
            OperationType.MUL,
            [value, builder.constant(array, copy=copy), none],
            Operand(OperandType.TENSOR_FLOAT32),
        )
    builder.output(value, "y")
    return builder.build()


def contents(named: NamedModel) -> tuple[object, ...]:
    """Return all that makes up a model, with the bytes of its pools."""
    model = msgspec.structs.replace(named.model, pools=())
    pools = tuple(bytes(view(pool)) for pool in named.model.pools)
    return model, pools, named.inputs, named.outputs


def saved(named: NamedModel, path: Path) -> bytes:
    save(named, path)
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.asyncnn"


@pytest.fixture
def file(path: Path) -> bytes:
    return saved(product(100, 200, copy=False), path)


class TestRoundTrip:
    @given(
        sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6),
        copy=st.booleans(),
        name=st.text(max_size=30),
    )
    @settings(max_examples=50, deadline=None)
    def test_a_loaded_model_is_the_saved_one(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        sizes: list[int],
        copy: bool,
        name: str,
    ) -> None:
        path = tmp_path_factory.mktemp("models") / "model.asyncnn"
        named = product(*sizes, copy=copy, name=name)
        save(named, path)
        assert contents(load(path)) == contents(named)

    @pytest.mark.parametrize("name", ["vww_96_int8", "hello_world_float"])
    def test_an_imported_model_survives(
        self, shared: Path, path: Path, name: str
    ) -> None:
        named = load(shared / "models" / f"{name}.tflite", strict=True)
        save(named, path)
        assert contents(load(path)) == contents(named)

    def test_every_field_of_a_model_survives(self, path: Path) -> None:
        builder = ModelBuilder(relaxed=True)
        weights = builder.constant(
            np.ones((2, 70), np.int8),
            OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
            channel_quant=SymmPerChannelQuantParams((0.5, 0.25), 0),
        )
        y = builder.operation(
            OperationType.DEQUANTIZE,
            [weights],
            Operand(OperandType.TENSOR_FLOAT32, (2, 70)),
        )
        builder.output(y, "y")
        named = builder.build()
        extensions = (ExtensionNameAndPrefix("com.example.things", 7),)
        model = msgspec.structs.replace(
            named.model, extension_name_to_prefix=extensions
        )
        named = msgspec.structs.replace(named, model=model)
        save(named, path)
        assert contents(load(path)) == contents(named)


class TestFile:
    def test_constants_are_aligned_and_mapped(self, path: Path, file: bytes) -> None:
        named = load(path)
        offsets = [pool.handle.ints[1] for pool in named.model.pools]
        assert offsets == [4096, 4096 + 448]
        assert {pool.name for pool in named.model.pools} == {"mmap_fd"}
        assert all(view(pool).readonly for pool in named.model.pools)

    def test_a_header_longer_than_a_page_moves_the_pools(self, path: Path) -> None:
        named = product(*[40] * 100)
        save(named, path)
        loaded = load(path)
        assert loaded.model.pools[0].handle.ints[1] % 4096 == 0
        assert contents(loaded) == contents(named)

    def test_saving_replaces_the_file_and_spares_who_mapped_it(
        self, path: Path
    ) -> None:
        save(product(100), path)
        before = load(path)
        kept = contents(before)
        save(product(200), path)
        assert contents(before) == kept
        assert load(path).model.pools[0].size == 800

    def test_a_model_can_be_saved_over_the_file_that_it_maps(self, path: Path) -> None:
        save(product(100), path)
        named = load(path)
        save(named, path)
        assert contents(load(path)) == contents(named)

    def test_a_failed_save_leaves_the_old_file_and_nothing_else(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = saved(product(100), path)

        def full(fd: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(GeneralFailureError, match="No space left"):
            save(product(200), path)
        assert path.read_bytes() == old
        assert list(path.parent.iterdir()) == [path]

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(GeneralFailureError, match=r"nowhere/m: .*No such file"):
            save(product(1), tmp_path / "nowhere" / "m")

    def test_a_pool_that_cannot_be_mapped_cannot_be_saved(self, path: Path) -> None:
        named = product(100)
        pools = (Memory("hardware_buffer", 400),)
        model = msgspec.structs.replace(named.model, pools=pools)
        with pytest.raises(GeneralFailureError):
            save(msgspec.structs.replace(named, model=model), path)
        assert not path.exists()


def outcome(data: bytes) -> AsyncnnError | None:
    try:
        read_container(from_buffer(data))
    except AsyncnnError as error:
        return error
    return None


def with_header(file: bytes, **changes: object) -> bytes:
    """Return ``file`` with fields of its header changed and a right checksum."""
    magic, version, length, _ = PREFIX.unpack_from(file)
    header = msgspec.msgpack.decode(file[PREFIX.size : PREFIX.size + length])
    body = msgspec.msgpack.encode(header | changes)
    start = PREFIX.pack(magic, version, len(body), zlib.crc32(body)) + body
    return start + bytes(4096 - len(start)) + file[4096:]


class TestRefusals:
    def test_every_truncation_is_refused(self, file: bytes) -> None:
        for length in [*range(0, len(file), 7), len(file) - 1]:
            assert isinstance(outcome(file[:length]), InvalidArgumentError), length

    def test_every_changed_byte_outside_of_the_padding_is_noticed(
        self, file: bytes
    ) -> None:
        header_end = PREFIX.size + PREFIX.unpack_from(file)[2]
        data = bytearray(file)
        for index in [*range(header_end), *range(4096, 4096 + 400, 13)]:
            data[index] ^= 0x11
            assert isinstance(outcome(bytes(data)), InvalidArgumentError), index
            data[index] ^= 0x11

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"pools": [[4096, 400, 0], [4544, 800, 0]]}, "checksum"),
            ({"pools": [[4096, 2**40, 0]]}, "not within"),
            ({"pools": [[-64, 64, 0]]}, "overlaps"),
            ({"pools": [[4096, -1, 0]]}, "not within"),
            ({"pools": [[0, 0, 0], [0, 4, 0], [0, 4, 0]]}, "checksum|overlaps"),
            ({"pools": [[0, 1]]}, "malformed header"),
            ({"pools": []}, "M5"),
            ({"main": None}, "malformed header"),
            ({"surprise": 1}, "malformed header"),
            ({"input_names": []}, "0 input names"),
            ({"input_names": [1]}, "malformed header"),
            ({"operand_values": b""}, "M5"),
        ],
    )
    def test_a_header_that_does_not_fit_is_refused(
        self, file: bytes, changes: dict[str, object], reason: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=reason):
            read_container(from_buffer(with_header(file, **changes)))

    def test_a_newer_format_is_refused_with_a_hint(self, file: bytes) -> None:
        newer = PREFIX.pack(file[:8], 4, 0, 0) + file[PREFIX.size :]
        with pytest.raises(InvalidArgumentError, match=r"version 4 .*newer asyncnn"):
            read_container(from_buffer(newer))

    def test_any_bytes_in_the_header_end_in_one_error(self, file: bytes) -> None:
        magic, version, length, _ = PREFIX.unpack_from(file)
        body = bytearray(file[PREFIX.size : PREFIX.size + length])
        rng = np.random.default_rng(0)
        for _ in range(300):
            mutant = bytearray(body)
            for index in rng.integers(0, length, 3):
                mutant[index] = rng.integers(256)
            prefix = PREFIX.pack(magic, version, length, zlib.crc32(mutant))
            outcome(prefix + bytes(mutant) + file[PREFIX.size + length :])

    # How many levels are too many, the interpreter decides: 1,000 until Python 3.11.
    @pytest.mark.parametrize(
        ("depth", "reason"),
        [(2_000, "nested too deeply|missing required"), (200_000, "nested too deeply")],
    )
    def test_data_that_is_nested_deeply_is_one_error(
        self, path: Path, depth: int, reason: str
    ) -> None:
        body = b"\x81\xa4main" * depth + b"\xc0"  # {"main": {"main": ... None}}
        path.write_bytes(PREFIX.pack(MAGIC, 1, len(body), zlib.crc32(body)) + body)
        with pytest.raises(InvalidArgumentError, match=reason) as raised:
            load(path)
        assert str(path) in str(raised.value)

    def test_another_file_is_refused(self, path: Path) -> None:
        path.write_bytes(b"something else")
        with pytest.raises(
            InvalidArgumentError,
            match=f"{path}: neither a TFLite, an ONNX nor an asyncnn",
        ):
            load(path)


def test_files_come_with_the_package() -> None:
    with np.load(bundled_file("digits_test.npz")) as arrays:
        assert arrays["images"].shape == (*arrays["labels"].shape, 8, 8)
    for kind in ("float", "int8"):
        model = load(bundled_file(f"digits_{kind}.asyncnn"))
        assert [each.name for each in model.inputs] == ["image"]


@pytest.mark.parametrize("name", ["digits", "", "../model.py"])
def test_a_file_that_does_not_come_with_the_package_is_named(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"known: digits_float\.asyncnn, "):
        bundled_file(name)
