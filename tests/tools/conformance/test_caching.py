"""Cases whose models are saved and loaded before they run."""

from pathlib import Path

import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.tools.conformance.preparing import through_cache
from asyncnn.tools.conformance.suite import VectorRuns, run_spec
from tests.devices.test_device import malformed
from tests.networks import addition
from tests.preparing import prepared_by


async def test_models_come_from_the_cache(tmp_path: Path) -> None:
    loaded = []

    class Watched(ReferenceDevice):
        def prepare_model_from_cache_1_3(self, *arguments):
            loaded.append(arguments)
            return super().prepare_model_from_cache_1_3(*arguments)

    settings = DeviceSettings(cache_key_file=str(tmp_path / "key"))
    async with Watched(settings) as device:
        await prepared_by(through_cache(device), addition(4).model)
        with pytest.raises(InvalidArgumentError):
            await prepared_by(through_cache(device), malformed())
    assert len(loaded) == 1


async def test_a_model_that_is_not_saved_is_refused(tmp_path: Path) -> None:
    settings = DeviceSettings(cache_key_file=str(tmp_path))
    async with ReferenceDevice(settings) as device:
        with pytest.raises(GeneralFailureError):
            await prepared_by(through_cache(device), addition(4).model)


@pytest.mark.parametrize("name", ["add", "while_fib", "lstm_state"])
def test_cases_pass_with_models_from_the_cache(
    shared: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (spec, *_) = sorted((shared / "vts").rglob(f"{name}.*"))
    verdicts = run_spec(spec, VectorRuns(paths=["async"], cached=True))
    assert verdicts
    assert {verdict.outcome for verdict in verdicts} <= {"passed", "skipped"}
