"""Drivers of HAL 1.2 as devices of HAL 1.3: what is expected of every device.

These are the tests of other devices, as far as their models are of HAL 1.2.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asyncnn.devices import DeviceSettings
from asyncnn.hal.interfaces import IDevice
from asyncnn.runtime.framework.sample_devices import hal_1_2
from asyncnn.service import RemoteDevice, Server

# ruff: noqa: F401 - each is a test here, too
from tests.devices.test_device import TestPrepare, TestQueries
from tests.devices.test_domains_allocation import (
    test_a_buffer_goes_with_the_last_reference,
    test_a_buffer_outlives_its_models,
    test_a_role_is_given_once_however_its_model_is_called,
    test_models_of_another_device_are_refused,
    test_models_of_others_are_refused_and_not_called,
    test_the_same_slot_of_two_models_is_two_roles,
)
from tests.devices.test_domains_copies import (
    TestLongCopies,
    test_a_copy_that_fails_leaves_the_buffer_uninitialised,
    test_what_is_no_pool_is_refused,
)
from tests.devices.test_domains_execution import (
    PATHS,
    TestCompany,
    TestFences,
    test_scalars_come_out_of_buffers,
    test_state_goes_from_buffer_to_buffer,
    test_two_models_share_a_buffer,
)
from tests.devices.test_execution import (
    TestLaunch,
    test_a_pool_that_cannot_be_mapped_is_a_failure,
    test_a_read_only_pool_cannot_take_an_output,
    test_a_short_output_is_insufficient_and_its_shape_is_reported,
    test_arguments_lie_anywhere_in_a_pool,
    test_results_are_written_into_the_request,
    test_timing_is_reported_if_asked_for,
    test_unknown_dimensions_come_with_the_request,
)
from tests.devices.test_fenced import TestLaunch as TestFencedLaunch
from tests.devices.test_fenced import (
    TestTiming,
    test_a_chain_of_two_has_fences_that_exist,
    test_it_begins_when_the_last_fence_has_signalled,
    test_it_executes_without_fences,
    test_it_waits_for_a_descriptor_of_another_maker,
    test_the_fence_may_be_closed_after_the_call,
    test_waiting_takes_no_thread,
    test_what_has_ended_holds_nothing,
)
from tests.devices.test_quality_of_service import (
    test_executing_succeeds_or_misses_its_deadline,
    test_models_are_prepared_with_any_priority,
    test_of_a_model_that_is_not_supported_there_is_no_prepared_one,
    test_preparing_succeeds_or_misses_its_deadline,
)
from tests.places import PLACES, placed


@pytest.fixture(params=PLACES)
async def device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[IDevice]:
    """A driver of HAL 1.2 that an adapter serves, here or behind a socket."""
    async with placed(
        request.param, hal_1_2(DeviceSettings(inline_below_us=0)), tmp_path
    ) as device:
        yield device


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return request.param
