"""Models with state as files, as graphs, and on the command line."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

import asyncnn
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.container import read_container
from asyncnn.runtime.dot import dot
from tests.cli.conftest import Ran, asyncnn_command
from tests.networks import addition
from tests.runtime.stateful import FIRST, X, counting, picking_sum
from tests.runtime.test_model_file import PREFIX, with_header

__all__ = ("asyncnn_command",)

Command = Callable[..., Ran]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "counting.asyncnn"
    asyncnn.save(counting(), path)
    return path


class TestFile:
    def test_keeps_names_and_first_values(self, path: Path) -> None:
        loaded, made = asyncnn.load(path), counting()
        assert [state.info for state in loaded.states] == [
            state.info for state in made.states
        ]
        total, steps = loaded.states
        assert total.initial is None
        np.testing.assert_array_equal(total.first_value(), np.zeros(4, np.float32))
        np.testing.assert_array_equal(steps.first_value(), [FIRST])
        assert loaded.inputs == made.inputs
        assert loaded.outputs == made.outputs

    async def test_is_run_like_what_was_saved(self, path: Path) -> None:
        async with asyncnn.open_device() as device:
            prepared = await device.prepare(asyncnn.load(path))
            async with prepared.session() as session:
                await session.run(X)
                await session.run(X)
                assert (await session.state())["steps"] == [FIRST + 2]

    def test_has_a_version_of_its_own(self, path: Path, tmp_path: Path) -> None:
        plain = tmp_path / "plain.asyncnn"
        asyncnn.save(addition(4), plain)
        versions = [PREFIX.unpack_from(p.read_bytes())[1] for p in (path, plain)]
        assert versions == [2, 1]

    @pytest.mark.parametrize(
        ("states", "reason"),
        [
            ([["total", None], ["steps", b"123"]], "3 bytes"),
            ([["total", None]] * 2, "not unique"),
            ([["s", None]] * 5, "5 states, but fewer inputs"),
            ([["total", None]], "1 input names|2 input names"),
            ([], "states in a file of format version 2"),
            ([[1, None]], "malformed header"),
        ],
    )
    def test_states_that_do_not_fit_are_refused(
        self, path: Path, states: list[object], reason: str
    ) -> None:
        changed = with_header(path.read_bytes(), states=states)
        with pytest.raises(InvalidArgumentError, match=reason):
            read_container(from_buffer(changed))

    def test_states_in_a_file_of_the_first_version_are_refused(
        self, path: Path
    ) -> None:
        data = bytearray(path.read_bytes())
        data[8] = 1
        with pytest.raises(InvalidArgumentError, match="states in a file of format"):
            read_container(from_buffer(data))

    def test_a_graph_names_states_at_both_ends(self) -> None:
        text = dot(counting())
        assert text.count("total") == text.count("steps") == 2

    def test_types_of_extensions_are_resolved_beside_states(self) -> None:
        known = counting().knowing(())
        assert [state.info.name for state in known.states] == ["total", "steps"]
        assert msgspec.structs.asdict(known)["inputs"] == counting().inputs


class TestRunCommand:
    @pytest.fixture
    def inputs(self, tmp_path: Path) -> Path:
        file = tmp_path / "in.npz"
        np.savez(file, input_0=X, input_1=X, input_2=X)
        return file

    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        return tmp_path / "out.npz"

    @pytest.mark.parametrize("by", ["async", "burst"])
    def test_begins_anew_for_every_sample(
        self, asyncnn_command: Command, path: Path, inputs: Path, out: Path, by: str
    ) -> None:
        options = ("--input", inputs, "--output", out, "--path", by)
        ran = asyncnn_command("run", path, *options)
        assert ran.status == 0, ran.err
        with np.load(out) as written:
            for name in written.files:
                np.testing.assert_array_equal(written[name], 2 * X)

    @pytest.mark.parametrize("by", ["async", "sync", "fenced", "burst"])
    def test_takes_all_samples_as_steps_of_a_session(
        self, asyncnn_command: Command, path: Path, inputs: Path, out: Path, by: str
    ) -> None:
        options = ("--session", "--input", inputs, "--output", out, "--path", by)
        ran = asyncnn_command("run", path, *options)
        assert ran.status == 0, ran.err
        with np.load(out) as written:
            for step in range(3):
                np.testing.assert_array_equal(
                    written[f"output_{step}"], 2 * (step + 1) * X
                )

    def test_checks_them_and_repeats_none(
        self, asyncnn_command: Command, path: Path, inputs: Path, tmp_path: Path
    ) -> None:
        expected = tmp_path / "expected.npz"
        np.savez(expected, output_0=2 * X, output_1=4 * X, output_2=6 * X)
        options = ("--input", inputs, "--check", expected)
        assert asyncnn_command("run", path, "--session", *options).status == 0
        ran = asyncnn_command("run", path, *options)
        assert ran.status == 1
        assert "OUT OF TOLERANCE" in ran.out
        ran = asyncnn_command("run", path, "--session", "--repeat", 2)
        assert ran.status == 2
        assert "one step for each sample" in ran.err

    def test_names_the_first_operation_that_differs(
        self, asyncnn_command: Command, tmp_path: Path
    ) -> None:
        path, inputs = tmp_path / "picking.asyncnn", tmp_path / "in.npz"
        asyncnn.save(picking_sum(), path)
        index = np.arange(4, dtype=np.int32)
        np.savez(inputs, **{"input_0.x": X, "input_0.index": index})
        for before, place in ((X, "first differing"), (-X, "differs before")):
            expected = tmp_path / "expected.npz"
            np.savez(expected, output_0=-X, pre_gather_0=before)
            ran = asyncnn_command("run", path, "--input", inputs, "--check", expected)
            assert ran.status == 1
            assert place in ran.out
            assert "(GATHER)" in ran.out
