"""What was measured is kept whole, and nothing else is believed."""

import errno
import logging
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from asyncnn.devices import measured_capabilities
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
    capabilities_of,
    default_path,
    known_capabilities,
    known_measurement,
    load_measurement,
    measurement_at_opening,
    reference_capabilities,
    store_measurement,
)
from asyncnn.hal.errors import GeneralFailureError

Edit = Callable[[dict[str, Any]], object]


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


class TestKeeping:
    def test_what_was_stored_is_what_devices_know(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        assert known_capabilities(known_measurement()) == reference_capabilities()
        assert store_measurement(measurement) == default_path()
        assert load_measurement() == measurement
        assert known_capabilities(known_measurement()) == capabilities_of(
            measurement.exec_times
        )

    def test_the_file_is_its_owners_alone_and_the_only_one(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        path = store_measurement(measurement)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [file.name for file in state.iterdir()] == ["capabilities.json"]

    def test_looking_for_it_creates_nothing(self, state: Path) -> None:
        assert load_measurement() is None
        assert not state.exists()

    def test_another_path_may_be_given(
        self, state: Path, tmp_path: Path, measurement: CapabilityMeasurement
    ) -> None:
        path = tmp_path / "elsewhere" / "figures.json"
        assert store_measurement(measurement, str(path)) == path
        assert load_measurement(str(path)) == measurement
        assert load_measurement() is None

    def test_the_newest_measurement_takes_the_place_of_the_last(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        store_measurement(measurement)
        times = dict.fromkeys(ReferenceWorkload, 2.0)
        store_measurement(replace(measurement, exec_times=times))
        assert known_capabilities(known_measurement()) == capabilities_of(times)

    def test_readers_see_a_whole_measurement_whoever_writes(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        written = [
            replace(measurement, exec_times=dict.fromkeys(ReferenceWorkload, number))
            for number in (0.5, 1.5, 2.5, 3.5)
        ]
        store_measurement(measurement)

        def use(number: int) -> CapabilityMeasurement | None:
            store_measurement(written[number % 4])
            return load_measurement()

        with ThreadPoolExecutor(8) as pool:
            seen = list(pool.map(use, range(64)))
        assert all(found in written for found in seen)
        assert [file.name for file in state.iterdir()] == ["capabilities.json"]

    def test_what_could_not_be_used_is_not_stored(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        times = measurement.exec_times | {ReferenceWorkload.IF: float("inf")}
        with pytest.raises(GeneralFailureError, match="not kept"):
            store_measurement(replace(measurement, exec_times=times))
        assert load_measurement() is None

    def test_a_folder_that_cannot_be_made_is_an_error(
        self, tmp_path: Path, measurement: CapabilityMeasurement
    ) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(GeneralFailureError, match="not kept"):
            store_measurement(measurement, str(tmp_path / "file" / "figures"))

    def test_drafts_of_writers_that_were_killed_are_removed(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        state.mkdir(parents=True)
        drafts = [state / f".capabilities.json-{digit * 16}" for digit in "ab"]
        others = [state / ".capabilities.json-mine", state / ".other-0123456789abcdef"]
        for path in (*drafts, *others):
            path.touch()
        for path in (drafts[0], *others):
            os.utime(path, (0, 0))
        store_measurement(measurement)
        left = {path for path in state.iterdir() if path.name.startswith(".")}
        assert left == {drafts[1], *others}

    def test_what_is_no_file_is_not_replaced(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        state.mkdir(parents=True)
        os.mkfifo(default_path())
        with pytest.raises(GeneralFailureError, match="a FIFO, not a regular file"):
            store_measurement(measurement)
        assert default_path().is_fifo()

    async def test_a_path_that_can_be_none_is_an_error(
        self, measurement: CapabilityMeasurement
    ) -> None:
        assert await measurement_at_opening("a\0b") is None
        with pytest.raises(GeneralFailureError, match="null byte"):
            store_measurement(measurement, "a\0b")

    def test_a_read_only_folder_is_an_error_and_stays_readable(
        self,
        state: Path,
        measurement: CapabilityMeasurement,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        store_measurement(measurement)
        open_file = os.open

        def read_only(path: Path, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_CREAT:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return open_file(path, flags, mode)

        monkeypatch.setattr(os, "open", read_only)
        with pytest.raises(GeneralFailureError, match="Read-only"):
            store_measurement(measurement)
        assert load_measurement() == measurement


class TestBoots:
    """The answers of one boot stay the same."""

    def test_what_was_measured_is_in_force_from_the_next_one_on(
        self, state: Path, reboot: Callable[[], object]
    ) -> None:
        def reported() -> float:
            capabilities = known_capabilities(known_measurement())
            return capabilities.if_performance.exec_time

        def measured(time: float) -> None:
            times = dict.fromkeys(ReferenceWorkload, time)
            store_measurement(CapabilityMeasurement.now(times))

        assert reported() == 1.0
        for time in (2.0, 3.0):
            measured(time)
            assert reported() == 1.0
        reboot()
        assert reported() == 3.0
        for time in (4.0, 5.0):
            measured(time)
            newest = load_measurement()
            assert newest is not None
            assert not newest.is_in_force
            assert newest.exec_times[ReferenceWorkload.IF] == time
            assert reported() == 3.0
        reboot()
        assert reported() == 5.0
        assert [file.name for file in state.iterdir()] == ["capabilities.json"]

    def test_what_was_before_it_is_for_the_same_surroundings(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        before = replace(
            measurement, surroundings=replace(measurement.surroundings, numpy="1.0")
        )
        newest = replace(
            CapabilityMeasurement.now(measurement.exec_times), before=before
        )
        assert newest.in_force() is None

    def test_where_boots_are_not_told_apart_it_is_in_force_at_once(
        self,
        state: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        measurement: CapabilityMeasurement,
    ) -> None:
        monkeypatch.setattr(measured_capabilities, "BOOT_ID", tmp_path / "none")
        store_measurement(CapabilityMeasurement.now(measurement.exec_times))
        found = known_measurement()
        assert found is not None
        assert found.exec_times == measurement.exec_times

    def test_energy_is_of_its_own(
        self, state: Path, measurement: CapabilityMeasurement
    ) -> None:
        powers = dict.fromkeys(ReferenceWorkload, 7.0)
        store_measurement(replace(measurement, power_usages=powers))
        capabilities = known_capabilities(known_measurement())
        infos = [entry.info for entry in capabilities.operand_performance]
        assert {info.power_usage for info in infos} == {7.0}
        assert {info.exec_time for info in infos} <= set(
            measurement.exec_times.values()
        )


def without_one(record: dict[str, Any]) -> object:
    return record["exec_times"].pop("WHILE")


def with_another(record: dict[str, Any]) -> object:
    return record["exec_times"].update(TENSOR_FLOAT64=1.0)


def with_time(time: object) -> Edit:
    return lambda record: record["exec_times"].update(IF=time)


def with_surroundings(**fields: str) -> Edit:
    return lambda record: record["surroundings"].update(fields)


class TestDoubting:
    @pytest.fixture
    def path(self, state: Path, measurement: CapabilityMeasurement) -> Path:
        return store_measurement(measurement)

    def assert_ignored(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(GeneralFailureError, match="not used") as caught:
            load_measurement()
        with caplog.at_level(logging.WARNING):
            assert known_capabilities(known_measurement()) == reference_capabilities()
        assert [record.message for record in caplog.records] == [str(caught.value)]

    @pytest.mark.parametrize(
        "edit",
        [
            pytest.param(without_one, id="a workload is missing"),
            pytest.param(with_another, id="an unknown workload"),
            *(
                pytest.param(with_time(time), id=f"a time of {time}")
                for time in (0, -1, 1e-9, 1e9, None, "fast")
            ),
            pytest.param(lambda record: record.pop("measured_at"), id="no moment"),
            pytest.param(
                lambda record: record.update(measured_at="2025-01-01T00:00:00"),
                id="no time zone",
            ),
            pytest.param(lambda record: record.update(more=1), id="a field too many"),
            pytest.param(with_surroundings(asyncnn="0.0.0"), id="another asyncnn"),
            pytest.param(with_surroundings(numpy="1.0"), id="another numpy"),
            pytest.param(with_surroundings(blas="none"), id="another blas"),
            pytest.param(with_surroundings(cpu="6502"), id="another cpu"),
        ],
    )
    def test_what_does_not_fit_is_ignored_with_the_reason(
        self, path: Path, edit: Edit, caplog: pytest.LogCaptureFixture
    ) -> None:
        record = msgspec.json.decode(path.read_bytes())
        edit(record)
        write(path, msgspec.json.encode(record))
        self.assert_ignored(caplog)

    @pytest.mark.parametrize(
        "content", [b"", b"{}", b"[" * 20_000, b"\xff\x00", b"1", b'{"\xff": 1}']
    )
    def test_what_is_no_record_is_ignored(
        self, path: Path, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        write(path, content)
        self.assert_ignored(caplog)

    def test_a_damaged_file_is_either_whole_or_ignored(
        self, path: Path, measurement: CapabilityMeasurement
    ) -> None:
        whole = path.read_bytes().rstrip()
        for length in range(0, len(whole), 7):
            write(path, whole[:length])
            with pytest.raises(GeneralFailureError):
                load_measurement()
        write(path, whole)
        assert load_measurement() == measurement

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o602])
    def test_a_file_that_others_may_use_is_ignored(
        self, path: Path, mode: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        path.chmod(mode)
        self.assert_ignored(caplog)

    def test_a_link_is_ignored(
        self, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path.rename(tmp_path / "target")
        path.symlink_to(tmp_path / "target")
        self.assert_ignored(caplog)

    def test_a_pipe_is_ignored_and_not_waited_for(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path.unlink()
        os.mkfifo(path, 0o600)
        self.assert_ignored(caplog)

    def test_a_user_without_a_home_gets_the_cpus(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def no_home() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
        self.assert_ignored(caplog)
