"""LiteRT as a peer: its absence and its refusals."""

from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import AsyncnnError
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.mobilenets import mobilenet_v1
from asyncnn.tools.other_runtimes import (
    LiteRt,
    PeerRefusedError,
    litert_module,
    litert_version,
)


@pytest.mark.usefixtures("without_litert")
def test_a_missing_litert_is_one_of_our_errors_and_says_what_to_install() -> None:
    with pytest.raises(PeerMissingError, match=r"pip install asyncnn\[bench\]") as info:
        litert_module("interpreter")
    assert isinstance(info.value, AsyncnnError)
    with pytest.raises(PeerMissingError):
        litert_version()
    with pytest.raises(PeerMissingError):
        mobilenet_v1(quantized=False)


class TestInstalled:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("ai_edge_litert")

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "small.tflite"
        path.write_bytes(mobilenet_v1(quantized=True, size=32, width=0.25))
        return path

    def test_its_version_is_known(self) -> None:
        assert litert_version().count(".") == 2

    def test_inputs_are_described(self, path: Path) -> None:
        assert LiteRt(path).input_kinds() == [((1, 32, 32, 3), np.dtype(np.int8))]

    def test_a_file_that_is_no_model_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "text.tflite"
        path.write_text("not a model at all")
        with pytest.raises(PeerRefusedError):
            LiteRt(path)

    def test_an_input_that_does_not_fit_is_refused_in_one_line(
        self, path: Path
    ) -> None:
        with pytest.raises(PeerRefusedError) as info:
            LiteRt(path).set_inputs([np.zeros((1, 2), np.int8)])
        assert "\n" not in str(info.value)

    def test_outputs_are_copies(self, path: Path) -> None:
        peer = LiteRt(path, reference=True)
        first = peer.first_outputs()[0].copy()
        held = peer.first_outputs()[0]
        peer.set_inputs([np.full((1, 32, 32, 3), 90, np.int8)])
        peer.invoke()
        np.testing.assert_array_equal(held, first)
