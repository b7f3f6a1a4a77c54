"""Device settings from files and options: what is taken, and what is said if not."""

from pathlib import Path

import pytest

from asyncnn.devices import DeviceSettings, InProcessDevice, ReferenceDevice
from asyncnn.devices.device_settings import options_for, read_settings, with_options
from asyncnn.devices.engine_device import EngineDevice
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.qos import Policy
from tests.devices.process_facts import NAME, facts

USUAL = DeviceSettings()
FOR_ENGINES = "most_threads", "packed_weights_dir", "relaxed_as_float16"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


class TestFiles:
    def test_what_it_has_replaces_what_there_was(self, file: Path) -> None:
        file.write_text(
            "max_pending = 12\nidle_after_s = 3\nrefuses_unmeetable_deadlines = true\n"
            f'extensions = ["{NAME}"]\n[policy]\nstarvation_limit_ns = 5_000\n'
        )
        assert read_settings(file) == DeviceSettings(
            max_pending=12,
            idle_after_s=3.0,
            refuses_unmeetable_deadlines=True,
            extensions=(facts,),
            policy=Policy(starvation_limit_ns=5000),
        )
        assert read_settings(file, DeviceSettings(max_bursts=3)).max_bursts == 3

    def test_an_empty_one_changes_nothing(self, file: Path) -> None:
        file.touch()
        assert read_settings(file) == USUAL

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("max_pendin = 1", "no setting 'max_pendin'.*did you mean max_pending"),
            (
                "[policy]\nstarvation = 1",
                "policy.*'starvation'.*did you mean starvation_limit_ns",
            ),
            ("zebra = 1", "no setting 'zebra'.*known: max_pending"),
            ("policy = 1", "policy is not a table"),
            ("max_pending = '1'", "max_pending: Expected `int`, got `str`"),
            ("extensions = 'one'", "extensions: Expected `array`"),
            ("extensions = ['nowhere:x']", "nowhere"),
            ("max_pending = 0", r"DeviceSettings\.max_pending is 0 \(it is 1 at"),
            ("max_pending = 1 2", "is not TOML: .*line 1"),
            ("max_pending = 1\nmax_pending = 1", "is not TOML"),
        ],
    )
    def test_what_is_wrong_is_said_in_one_line(
        self, file: Path, content: str, message: str
    ) -> None:
        file.write_text(content)
        with pytest.raises(InvalidArgumentError, match=message) as caught:
            read_settings(file)
        assert "\n" not in str(caught.value)

    def test_the_file_is_named(self, file: Path) -> None:
        with pytest.raises(InvalidArgumentError, match=r"settings.toml: No such file"):
            read_settings(file)
        file.write_bytes(b"\xff")
        with pytest.raises(InvalidArgumentError, match=r"settings.toml is not TOML"):
            read_settings(file)


class TestOptions:
    def test_they_change_one_setting_each(self) -> None:
        options = [
            "max_pending=3",
            "inline_below_us = 0",
            "maps_cache_files=true",
            "cache_key_file=/tmp/a key=b",
            "blas_threads=4",
            "policy.slice_ns=7",
            "max_pending=5",
        ]
        assert with_options(USUAL, options) == DeviceSettings(
            max_pending=5,
            inline_below_us=0,
            maps_cache_files=True,
            cache_key_file="/tmp/a key=b",
            blas_threads=4,
            policy=Policy(slice_ns=7),
        )

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ("max_pending", "NAME=VALUE"),
            ("max_pendin=3", "did you mean max_pending"),
            ("policy.slice=3", "did you mean slice_ns"),
            ("policies.starved_slice_ns=3", "did you mean policy"),
            ("policy=3", "policy is not a table"),
            ("max_pending=three", "max_pending: Expected `int`"),
            ("maps_cache_files=maybe", "maps_cache_files: Expected `bool`"),
            ("max_pending=-1", "max_pending is -1"),
            ("extensions=a:b", "extensions: Expected `array`"),
            ("=3", "no setting ''"),
        ],
    )
    def test_what_is_wrong_is_said(self, option: str, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            with_options(USUAL, [option])

    @pytest.mark.parametrize(
        "settings",
        [
            USUAL,
            DeviceSettings(
                max_pending=5, idle_after_s=0.25, refuses_unmeetable_deadlines=True
            ),
            DeviceSettings(freezes_large_models=False, blas_threads=0),
            DeviceSettings(
                policy=Policy(starved_slice_ns=3, slice_ns=5), cache_key_file="a=b"
            ),
        ],
    )
    def test_settings_travel_as_options(self, settings: DeviceSettings) -> None:
        assert with_options(USUAL, options_for(settings)) == settings

    def test_extensions_do_not(self) -> None:
        with pytest.raises(InvalidArgumentError, match="name them"):
            options_for(DeviceSettings(extensions=(facts,)))


def test_a_limit_that_is_no_number_is_refused_by_its_name() -> None:
    with pytest.raises(TypeError, match="max_run_bytes is a str"):
        DeviceSettings(max_run_bytes="1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "unused"),
    [(ReferenceDevice, FOR_ENGINES), (EngineDevice, FOR_ENGINES[1:])],
)
async def test_settings_without_effect_are_told_once(
    device: type[InProcessDevice],
    unused: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Named(device):  # type: ignore[misc, valid-type]
        name = f"asyncnn-{device.__name__}-here"

    settings = DeviceSettings(
        most_threads=2, packed_weights_dir="weights", relaxed_as_float16=False
    )
    for _ in range(2):
        async with Named(settings), Named():
            pass
    assert caplog.messages == [
        f"{Named.name} does not use DeviceSettings.{field}" for field in unused
    ]
