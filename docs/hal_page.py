"""Writes the tables of ``docs/hal.md``: methods and rules of the HAL, and their tests.

Run it from a checkout: ``python -m docs.hal_page``; with ``--check`` it writes nothing
and exits with 1 if the tables are out of date. The rest of the page is written by hand.

Both tables stand here as text. After ``#`` comes a heading; ``name():`` is a method,
``name:`` an argument of the method above it or the number of a rule, and what comes
after ``-`` a test, from the folder ``tests`` on. ``*`` stands for the words that the
suite of conformance has for a row of mutations.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType

import msgspec

from asyncnn.hal import interfaces
from asyncnn.hal.versions import VersionedDevice, VersionedPreparedModel, v1_0, v1_2
from asyncnn.tools.conformance.mutations.trial import WORDS
from docs.generated import ROOT, GeneratedPart, table

PART = GeneratedPart(
    ROOT / "docs" / "hal.md",
    "<!-- methods and rules: python -m docs.hal_page -->",
    "<!-- the end of methods and rules -->",
)

INTERFACES: Mapping[str, Sequence[type]] = {
    "IDevice": (interfaces.IDevice, VersionedDevice),
    "IPreparedModel": (
        interfaces.IPreparedModel,
        interfaces.ISavable,
        VersionedPreparedModel,
    ),
    "IBurstContext": (interfaces.IBurstContext,),
    "IBurstCallback": (interfaces.IBurstCallback,),
    "IBuffer": (interfaces.IBuffer,),
    "IFencedExecutionCallback": (interfaces.IFencedExecutionCallback,),
    "IPreparedModelCallback": (
        interfaces.IPreparedModelCallback,
        v1_0.IPreparedModelCallback,
        v1_2.IPreparedModelCallback,
    ),
    "IExecutionCallback": (
        interfaces.IExecutionCallback,
        v1_0.IExecutionCallback,
        v1_2.IExecutionCallback,
    ),
}
"""Where the methods of each interface stand, for every version."""

METHODS = """
# IDevice 1.0
get_capabilities(): Cuts the newest figures down to float32 and quantised tensors.
- hal/versions/test_device.py::test_capabilities_come_in_the_shape_of_each_version
- hal/versions/test_capabilities.py::test_1_1_and_1_0_take_their_figures_from_tensors
get_supported_operations(): Asks the newest method, and returns an answer for each operation.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
model: Has to be valid in 1.0.
- hal/versions/test_models.py::TestAModel::test_complies_from_the_version_that_has_all_it_uses
- hal/validate/test_model.py::test_a_model_passes_from_the_version_that_has_all_it_uses
prepare_model(): Prepares for a fast single answer, MEDIUM, without deadline and cache.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
model: Has to be valid in 1.0.
- hal/versions/test_device.py::test_what_a_version_does_not_have_is_refused_there
callback: Is notified by `notify`, with a status of 1.0.
- hal/versions/test_device.py::test_null_callbacks_are_invalid
- hal/versions/test_device.py::test_statuses_of_1_3_do_not_reach_an_older_callback
get_status(): AVAILABLE, BUSY while a queue is full, OFFLINE when it is closed.
- devices/test_status.py::test_a_device_is_busy_while_its_queue_is_full
- devices/test_device.py::TestQueries::test_answers_are_what_the_hal_allows

# IDevice 1.1
get_capabilities_1_1(): Has relaxed float32 as well.
- hal/versions/test_device.py::test_capabilities_come_in_the_shape_of_each_version
get_supported_operations_1_1(): As in 1.0.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
model: Has to be valid in 1.1; may be relaxed.
- hal/versions/test_models.py::TestAModel::test_goes_there_and_back_without_loss_where_it_complies
prepare_model_1_1(): Prepares with a preference.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
model: Has to be valid in 1.1.
- hal/versions/test_device.py::test_what_a_version_does_not_have_is_refused_there
preference: As for `prepare_model_1_3`.
- hal/versions/test_device.py::test_a_preference_and_cache_of_an_older_call_count
callback: Is notified by `notify`.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes

# IDevice 1.2
get_version_string(): Names the package, its version and the engine.
- devices/test_device.py::TestQueries::test_answers_are_what_the_hal_allows
- devices/test_accelerated.py::TestResults::test_its_version_names_the_engine
get_type(): CPU; GPU or ACCELERATOR for ONNX Runtime on a provider; OTHER for a driver of before 1.2.
- devices/test_device.py::TestQueries::test_answers_are_what_the_hal_allows
get_capabilities_1_2(): Has a figure for each operand type, and none for control flow.
- hal/versions/test_capabilities.py::test_1_2_has_neither_control_flow_nor_signed_bytes
get_supported_extensions(): Lists those that the device was opened with, and the regions of its engines.
- extensions/test_devices.py::test_a_device_lists_its_extensions
get_supported_operations_1_2(): As in 1.0, and looks at the pools of constants.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
model: Has to be valid in 1.2; may use extensions.
- hal/validate/test_model.py::test_a_model_passes_from_the_version_that_has_all_it_uses
- devices/test_undecodable_pools.py::test_a_model_that_needs_one_for_its_constants_is_not_supported
get_number_of_cache_files_needed(): One of each kind.
- devices/test_device.py::TestQueries::test_answers_are_what_the_hal_allows
prepare_model_1_2(): Prepares and saves, MEDIUM and without deadline.
- hal/versions/test_device.py::test_a_preference_and_cache_of_an_older_call_count
model: Has to be valid in 1.2.
- hal/versions/test_device.py::test_what_a_version_does_not_have_is_refused_there
preference: As for `prepare_model_1_3`.
- hal/versions/test_device.py::test_a_preference_and_cache_of_an_older_call_count
model_cache: As for `prepare_model_1_3`.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open
data_cache: As for `prepare_model_1_3`.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open
token: As for `prepare_model_1_3`.
- hal/versions/test_device.py::test_a_preference_and_cache_of_an_older_call_count
callback: Is notified by `notify_1_2`, with a status of 1.2.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open
prepare_model_from_cache(): Loads without a deadline.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open
model_cache: As for `prepare_model_from_cache_1_3`.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open
data_cache: As for `prepare_model_from_cache_1_3`.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open
token: As for `prepare_model_from_cache_1_3`.
- hal/versions/test_device.py::test_a_preference_and_cache_of_an_older_call_count
callback: Is notified by `notify_1_2`.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_of_a_cached_model_open

# IDevice, first draft of 1.2
is_caching_supported(): Whether a model is saved in one file of each kind.
- devices/cache/test_saving_late.py::TestDraft::test_a_device_says_whether_it_saves_models

# IDevice 1.3
get_capabilities_1_3(): The newest figures: measured once for the machine, else the CPU's.
- devices/test_device.py::TestQueries::test_capabilities_are_positive_sorted_and_complete
- devices/capabilities/test_devices.py::test_a_device_reports_what_was_measured
get_supported_operations_1_3(): An answer for each operation of the main subgraph; control flow is as supported as all it refers to.
- devices/test_device.py::TestSupportedOperations::test_there_is_an_answer_for_each_operation
- devices/test_support.py::test_only_what_runs_a_subgraph_without_kernels_does_not_run
model: Is checked whole; INVALID_ARGUMENT and nothing if it is malformed.
- devices/test_device.py::TestSupportedOperations::test_a_malformed_model_is_invalid
prepare_model_1_3(): Plans the model beside the loop, and saves it where cache files are given.
- devices/test_device.py::TestPrepare::test_a_launch_error_has_notified_when_the_call_returns
- devices/test_quality_of_service.py::test_models_are_prepared_with_any_priority
model: Is checked before the call returns.
- devices/test_device.py::TestPrepare::test_a_launch_error_has_notified_when_the_call_returns
- tools/conformance/test_vts.py::test_every_vector_passes_on_every_path
preference: FAST_SINGLE_ANSWER has threads that are idle, LOW_POWER wakes none, SUSTAINED_SPEED stays ready for longer.
- devices/test_preferences.py::TestThreads::test_a_fast_single_answer_has_several_while_lanes_are_idle
- devices/test_inline.py::test_a_model_prepared_for_low_power_wakes_no_thread_for_a_while
- devices/test_idle.py::test_a_model_for_sustained_speed_stays_ready_for_longer
priority: Orders preparations and executions of a client.
- devices/test_quality_of_service.py::test_a_high_execution_overtakes_low_ones
- devices/test_preparing.py::test_a_high_one_passes_a_low_one_that_is_under_way
deadline: Ends the preparation, which is reported at that moment.
- devices/test_preparing.py::test_a_deadline_is_reported_when_it_passes
- devices/test_quality_of_service.py::test_preparing_succeeds_or_misses_its_deadline
model_cache: Gets what decides the results, authenticated.
- devices/cache/test_cache.py::TestSavingAndLoading::test_a_saved_model_is_loaded_and_works
- devices/cache/test_cache.py::TestWrongFiles::test_a_wrong_number_of_files_is_refused_where_it_matters
data_cache: Gets the constants.
- devices/cache/test_cache.py::TestSavingAndLoading::test_a_saved_model_is_loaded_and_works
- devices/cache/test_cache.py::TestSecurity::test_the_data_cache_of_another_compilation_is_noticed
token: Is sealed with the model, so that only who has it loads it.
- devices/cache/test_cache.py::TestSecurity::test_a_token_that_is_not_that_of_the_model_is_noticed
callback: Gets the prepared model or an error, once; INVALID_ARGUMENT if there is none.
- devices/test_device.py::TestPrepare::test_a_null_callback_is_refused
- devices/test_preparing.py::test_a_cancelled_one_stops_computing
prepare_model_from_cache_1_3(): Loads a model without its description.
- devices/cache/test_cache.py::TestSavingAndLoading::test_a_saved_model_is_loaded_and_works
deadline: As for `prepare_model_1_3`.
- devices/cache/test_cache.py::TestLoadedModels::test_a_deadline_that_has_passed_is_missed
model_cache: Is copied and authenticated whole before any of it is used.
- devices/cache/test_cache.py::TestSecurity::test_every_flipped_bit_of_the_model_cache_is_noticed
- devices/cache/test_cache.py::TestWrongFiles::test_a_file_that_cannot_be_read_fails_the_loading
data_cache: Has to be of the same compilation; is copied, or mapped where `DeviceSettings.maps_cache_files` says so and nobody else can write it.
- devices/cache/test_cache.py::TestSecurity::test_a_data_cache_of_another_length_fails_the_loading
- devices/cache/test_files.py::test_files_that_others_may_write_are_copied
token: Has to be as for the saving.
- devices/cache/test_cache.py::TestSecurity::test_a_token_that_is_not_that_of_the_model_is_noticed
callback: As for `prepare_model_1_3`.
- devices/cache/test_cache.py::TestLoadedModels::test_a_null_callback_is_invalid
allocate(): Gives a buffer in the memory of the device, which the client's quota allows.
- devices/test_domains_allocation.py::test_unknown_axes_and_ranks_go_with_known_ones
- devices/test_domains_allocation.py::test_a_client_has_as_many_bytes_as_the_settings_say
desc: Fixes dimensions that the roles leave open.
- devices/test_domains_allocation.py::test_a_description_of_other_dimensions_is_refused
- devices/test_domains_allocation.py::test_unknown_axes_and_ranks_go_with_known_ones
prepared_models: Have to be of this device; others are not called.
- devices/test_domains_allocation.py::test_models_of_another_device_are_refused
- devices/test_domains_allocation.py::test_models_of_others_are_refused_and_not_called
input_roles: Which inputs the buffer may be; a frequency is checked, and decides nothing, as `explain` says.
- devices/test_domains_allocation.py::test_a_role_that_cannot_be_is_refused
- devices/test_domains_execution.py::TestRules::test_a_buffer_of_another_argument_is_refused
output_roles: Which outputs it may be.
- devices/test_domains_allocation.py::test_a_role_that_cannot_be_is_refused
- devices/test_domains_execution.py::TestRules::test_a_buffer_of_another_direction_is_refused

# IPreparedModel 1.0
execute(): Executes asynchronously and reports nothing but the status.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
request: Leaves no dimensions of outputs open.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_open
callback: Is notified by `notify`.
- hal/versions/test_device.py::test_null_callbacks_are_invalid
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_open

# IPreparedModel 1.2
execute_1_2(): Executes asynchronously, without deadline.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
request: May leave dimensions of outputs open; has no tokens.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_open
- hal/versions/test_models.py::test_the_pools_of_a_request_decide_which_versions_can_carry_it
measure: As for `execute_1_3`.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
callback: Is notified by `notify_1_2`.
- hal/versions/test_device.py::test_null_callbacks_are_invalid
execute_synchronously(): Returns status, shapes and times.
- hal/versions/test_device.py::test_a_model_of_1_2_executes_synchronously
request: As for `execute_1_2`.
- hal/versions/test_device.py::test_a_model_of_1_2_executes_synchronously
measure: As for `execute_1_3`.
- hal/versions/test_device.py::test_a_model_of_1_2_executes_synchronously
configure_execution_burst(): Opens a burst, of which there are as many as the limits say.
- burst/test_opened.py::test_a_burst_is_counted_until_it_is_closed
- burst/test_opened.py::test_bursts_are_limited
callback: Is asked for memories; INVALID_ARGUMENT if there is none.
- burst/test_opened.py::test_a_null_callback_is_an_invalid_argument
- burst/test_server.py::test_slots_are_asked_for_once_each
request_channel: Is mapped; a queue that cannot be is INVALID_ARGUMENT.
- burst/test_opened.py::test_a_queue_of_other_sizes_is_an_invalid_argument
- burst/test_opened.py::test_a_handle_of_something_else_is_an_invalid_argument
result_channel: The same; its length bounds results.
- burst/test_opened.py::test_a_queue_of_other_sizes_is_an_invalid_argument
- burst/test_server.py::test_a_result_longer_than_its_queue_is_a_general_failure

# IPreparedModel, first draft of 1.2
save_to_cache(): Saves at any time.
- devices/cache/test_saving_late.py::TestDraft::test_a_model_is_saved_after_it_was_prepared_and_executed
model_cache: One empty file, at its beginning, readable and writable.
- devices/cache/test_saving_late.py::TestDraft::test_a_file_has_to_be_empty_and_at_its_beginning
- devices/cache/test_saving_late.py::TestDraft::test_a_handle_has_one_descriptor
data_cache: Another such file.
- devices/cache/test_saving_late.py::TestDraft::test_a_file_cannot_be_both
- devices/cache/test_saving_late.py::TestDraft::test_a_file_has_to_be_readable_and_writable
token: Has 32 bytes.
- devices/cache/test_saving_late.py::TestDraft::test_a_token_has_32_bytes

# IPreparedModel 1.3
execute_1_3(): Executes asynchronously, by priority.
- devices/test_execution.py::test_results_are_written_into_the_request
- devices/test_execution.py::TestLaunch::test_success_is_notified_after_the_call_and_once
request: Is checked before the call returns.
- devices/test_execution.py::TestLaunch::test_a_malformed_request_has_notified_when_the_call_returns
measure: With YES, times come with NONE.
- devices/test_execution.py::test_timing_is_reported_if_asked_for
- devices/test_execution.py::TestLaunch::test_a_measure_that_is_no_enumerator_is_invalid
deadline: Ends what waits and what runs; orders what is due at different times.
- devices/test_execution.py::TestDeadline::test_a_deadline_during_the_run_aborts_at_the_next_operation
- qos/test_simulation.py::test_what_is_due_earlier_begins_earlier
loop_timeout_duration: Each WHILE has as long, 2 s if none is given, 15 s at most.
- devices/test_execution.py::TestDeadline::test_a_loop_without_end_ends_at_its_timeout
- engine/test_control_flow.py::TestWhile::test_no_timeout_is_longer_than_the_longest
callback: Is notified once; if it dies, the execution is cancelled.
- devices/test_execution.py::TestLaunch::test_a_null_callback_is_refused_without_notification
- devices/test_execution.py::test_an_aborted_execution_lets_go_of_its_pools_at_once
execute_synchronously_1_3(): Executes, and is awaited.
- devices/test_execution.py::test_results_are_written_into_the_request
request: As for `execute_1_3`.
- devices/test_execution.py::test_unknown_dimensions_come_with_the_request
- tools/conformance/test_mutations.py::test_mutants_of_a_sample_are_refused
measure: As for `execute_1_3`.
- devices/test_execution.py::test_timing_is_reported_if_asked_for
deadline: As for `execute_1_3`.
- devices/test_execution.py::TestDeadline::test_a_deadline_during_the_run_aborts_at_the_next_operation
loop_timeout_duration: As for `execute_1_3`.
- devices/test_execution.py::TestDeadline::test_a_loop_without_end_ends_at_its_timeout
execute_fenced(): Executes when fences allow it, and signals one.
- devices/test_fenced.py::test_it_executes_without_fences
request: Leaves no dimensions open.
- devices/test_fenced.py::TestLaunch::test_a_malformed_request_is_refused
- devices/test_fenced.py::TestLaunch::test_an_output_of_unknown_or_no_size_is_refused
wait_for: Fences that are duplicated in the call; an empty, closed or failed one is INVALID_ARGUMENT.
- devices/test_fenced.py::test_it_begins_when_the_last_fence_has_signalled
- devices/test_fenced.py::TestLaunch::test_an_empty_fence_is_refused
- devices/test_fenced.py::TestLaunch::test_a_closed_fence_is_refused
measure: Gives times since the launch and since the last fence.
- devices/test_fenced.py::TestTiming::test_both_timings_are_there_if_asked_for
- devices/test_fenced.py::TestTiming::test_nothing_is_measured_unasked
deadline: Covers the waiting.
- devices/test_fenced_failing.py::TestDeadline::test_the_deadline_covers_the_waiting
loop_timeout_duration: As for `execute_1_3`.
- devices/test_fenced_failing.py::TestFailure::test_an_endless_loop_misses_its_deadline
duration: Counts from the last fence.
- devices/test_fenced_failing.py::TestDeadline::test_the_duration_counts_from_the_last_fence

# IBurstContext 1.2
free_memory(): Forgets a memory before the next request.
- burst/test_server.py::TestFreeing::test_a_freed_slot_is_asked_for_again
slot: One that is unknown is ignored.
- burst/test_server.py::TestFreeing::test_freeing_unknown_slots_and_freeing_twice_has_no_effect
close(): Stands for letting go of the context: what runs is stopped, and no result sent.
- burst/test_server.py::TestEnding::test_closing_stops_what_runs_without_a_result
- burst/test_server.py::TestEnding::test_closing_lets_go_of_memories
link_to_death(): Reports that the driver sends no more results.
- burst/test_server.py::TestEnding::test_impossible_counters_are_the_end_of_the_burst
recipient: Is called once, and not for a close.
- burst/test_server.py::TestEnding::test_closing_is_no_death

# IBurstCallback 1.2
get_memories(): Is asked of the client, and not waited for for ever.
- burst/test_slots.py::test_the_driver_gets_the_pools_of_taken_slots
- service/test_calls.py::TestASilentClient::test_is_not_waited_for_for_ever
slots: One that is unknown is INVALID_ARGUMENT for all.
- burst/test_slots.py::test_one_unknown_slot_is_an_invalid_argument

# IBuffer 1.3
copy_to(): Copies beside the loop what the buffer holds.
- devices/test_domains_copies.py::test_contents_come_back_as_they_were
destination: A pool of exactly its size that can be written.
- devices/test_domains_copies.py::test_pools_to_copy_to_have_the_size_of_the_contents
- devices/test_domains_copies.py::test_a_pool_that_is_read_only_is_not_written
copy_from(): Sets what it holds; after an error it holds nothing.
- devices/test_domains_copies.py::test_contents_come_back_as_they_were
- devices/test_domains_copies.py::test_a_copy_that_fails_leaves_the_buffer_uninitialised
source: A pool of exactly the size.
- devices/test_domains_copies.py::test_pools_to_copy_from_have_the_size_of_the_buffer
dimensions: Those that were left open.
- devices/test_domains_copies.py::test_dimensions_that_were_left_open_are_given

# IFencedExecutionCallback 1.3
get_execution_info(): GENERAL_FAILURE until the end, then status and both times.
- test_callbacks.py::test_a_fenced_outcome_is_a_failure_until_it_is_filled_in
- devices/test_fenced.py::TestTiming::test_both_timings_are_there_if_asked_for

# IPreparedModelCallback 1.0
notify(): Reports a preparation through 1.0 and 1.1.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
status: One of 1.0; newer ones become GENERAL_FAILURE.
- hal/versions/test_device.py::test_statuses_of_1_3_do_not_reach_an_older_callback
prepared_model: There is one if and only if the status is NONE.
- hal/versions/test_device.py::test_what_a_version_does_not_have_is_refused_there

# IPreparedModelCallback 1.2
notify_1_2(): Reports a preparation through 1.2.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
status: One of 1.2.
- hal/versions/test_models.py::test_statuses_of_1_3_are_general_failures_before_it
prepared_model: There is one if and only if the status is NONE.
- hal/versions/test_device.py::test_a_model_of_1_2_executes_synchronously

# IPreparedModelCallback 1.3
notify_1_3(): Reports a preparation.
- devices/test_device.py::TestPrepare::test_a_launch_error_has_notified_when_the_call_returns
status: How it ended.
- test_callbacks.py::TestPreparedModelFuture::test_an_error_status_is_raised
prepared_model: There is one if and only if the status is NONE.
- test_callbacks.py::TestPreparedModelFuture::test_success_without_a_model_is_a_failure
- devices/test_quality_of_service.py::test_of_a_model_that_is_not_supported_there_is_no_prepared_one

# IExecutionCallback 1.0
notify(): Reports an execution through 1.0.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
status: All that is reported.
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_open

# IExecutionCallback 1.2
notify_1_2(): Reports an execution through 1.2.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
status: One of 1.2.
- hal/versions/test_models.py::test_statuses_of_1_3_are_general_failures_before_it
output_shapes: As for `notify_1_3`.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes
timing: As for `notify_1_3`.
- hal/versions/test_device.py::test_a_model_of_any_version_is_supported_and_computes

# IExecutionCallback 1.3
notify_1_3(): Reports an execution, once.
- devices/test_storm.py::test_each_execution_ends_exactly_once_with_a_legal_status
status: How it ended.
- devices/test_storm.py::test_each_execution_ends_exactly_once_with_a_legal_status
output_shapes: Are there with NONE, and where an output was too short.
- devices/test_execution.py::test_a_short_output_is_insufficient_and_its_shape_is_reported
- devices/test_execution.py::test_unknown_dimensions_come_with_the_request
timing: Is there with NONE, if it was asked for.
- devices/test_execution.py::test_timing_is_reported_if_asked_for
- devices/test_execution.py::TestLaunch::test_a_malformed_request_has_notified_when_the_call_returns
"""  # noqa: E501

RULES = """
# Calling
G1: What is launched is notified of once, whether it succeeds, fails, or is refused at launch.
- devices/test_storm.py::test_each_execution_ends_exactly_once_with_a_legal_status
- test_callbacks.py::TestOneShot::test_a_second_notification_is_an_error_that_reaches_nobody
G2: An error of a launch is notified first and returned then; success returns NONE at once and is notified later.
- devices/test_device.py::TestPrepare::test_a_launch_error_has_notified_when_the_call_returns
- devices/test_execution.py::TestLaunch::test_success_is_notified_after_the_call_and_once
G3: Work that no thread can be started for fails its own callback, with the word that 1.3 has for it.
- runtime/test_ending.py::TestThreads::test_a_run_and_a_preparation_are_refused_for_now
- qos/test_closing.py::test_work_for_which_no_thread_starts_is_refused_and_the_next_is_not
G4: Without a callback the answer is INVALID_ARGUMENT, and nobody is notified.
- devices/test_device.py::TestPrepare::test_a_null_callback_is_refused
- devices/test_execution.py::TestLaunch::test_a_null_callback_is_refused_without_notification
- hal/versions/test_device.py::test_null_callbacks_are_invalid
G5: A callback that fails is logged and counts as notified; an older one is notified by the method of its version.
- test_callbacks.py::TestOneShot::test_a_failing_callback_is_logged_and_counts_as_notified
- hal/versions/test_device.py::test_statuses_of_1_3_do_not_reach_an_older_callback
G6: Calls may overlap, also of one prepared model.
- devices/test_accelerated.py::TestResults::test_runs_of_one_model_overlap
- runtime/test_liveness.py::test_a_thousand_concurrent_runs_each_complete_once
G7: What a device says of itself stays the same until the next boot, capabilities that are measured meanwhile included.
- devices/capabilities/test_stored.py::TestBoots::test_what_was_measured_is_in_force_from_the_next_one_on
- devices/capabilities/test_devices.py::test_its_answer_stays_as_long_as_it_is_open
- devices/capabilities/test_devices.py::test_two_opens_give_the_same
G8: A prepared model goes with the client's last reference.
- service/test_client.py::TestLifetimes::test_the_last_reference_releases_the_model_in_the_driver
G9: Whatever is passed, there is a status, and no crash, no hang and no access out of bounds.
- hal/validate/test_garbage.py::test_garbage_in_a_model_never_escapes
- hal/validate/test_garbage.py::test_garbage_in_a_request_never_escapes
- service/test_hostile.py::TestPackets::test_garbage
- burst/test_mutations.py::test_random_packets_neither_crash_nor_hang_nor_leak
G10: The memory of runs is assigned by the first of them.
- devices/test_preferences.py::TestStayingReady::test_sustained_speed_takes_no_memory_before_its_first_run
- runtime/test_warm.py::TestRunning::test_it_has_run_once_only_if_that_was_asked_for
G11: A valid model that is not supported is launched with NONE; the callback gets an error and no model.
- devices/test_quality_of_service.py::test_of_a_model_that_is_not_supported_there_is_no_prepared_one
- devices/test_undecodable_pools.py::test_such_a_model_is_valid_and_cannot_be_prepared
G12: A deadline that has passed is reported to the callback; synchronous and fenced calls return it.
- devices/test_execution.py::TestDeadline::test_a_passed_deadline_is_an_outcome_not_a_launch_error
- devices/test_quality_of_service.py::test_preparing_succeeds_or_misses_its_deadline
- devices/test_fenced.py::TestLaunch::test_a_passed_deadline_is_refused

# Models
M1: Each subgraph has an operand and an operation.
- hal/validate/test_model.py::test_a_subgraph_cannot_be_empty
M2: Operand types are of the version, or of an extension that the model names.
- hal/validate/test_operands.py::test_an_unknown_operand_type_is_refused
- hal/validate/test_operands.py::test_an_operand_type_newer_than_the_model_is_refused
M3: Scalars have rank 0; tensors leave theirs open from 1.2 on, unless they are constants.
- hal/validate/test_operands.py::test_a_scalar_has_no_dimensions
- hal/validate/test_operands.py::test_before_1_2_a_rank_must_be_known
M4: Scale, zero point and parameters of channels are what the type allows.
- hal/validate/test_operands.py::test_a_scale_must_be_what_its_type_allows
- hal/validate/test_operands.py::test_a_zero_point_must_be_what_its_type_allows
- hal/validate/test_operands.py::test_scales_per_channel_must_fit_the_channels
- hal/validate/test_operands.py::test_other_types_have_no_extra_parameters
M5: A location is what the lifetime says, and within its memory.
- hal/validate/test_operands.py::test_what_is_no_constant_has_no_location
- hal/validate/test_operands.py::test_a_copied_constant_lies_within_the_operand_values
- hal/validate/test_operands.py::test_a_referenced_constant_lies_within_a_pool
- hal/validate/test_operands.py::test_a_subgraph_operand_names_a_referenced_subgraph
M6: A constant has the bytes of its dimensions, which are all known; no size overflows.
- hal/validate/test_operands.py::test_a_constant_has_exactly_the_bytes_of_its_dimensions
- hal/validate/test_operands.py::test_dimensions_must_not_overflow_even_of_temporaries
M7: Lifetimes are those that exist; a SUBGRAPH has its type and lifetime both.
- hal/validate/test_operands.py::test_an_unknown_lifetime_is_refused
- hal/validate/test_operands.py::test_subgraph_is_both_type_and_lifetime_or_neither
M8: Operations are of the version, and name operands that exist.
- hal/validate/test_model.py::test_an_unknown_operation_is_refused
- hal/validate/test_model.py::test_an_operation_names_operands_that_exist
M9: An operation fits its signature.
- hal/validate/test_model.py::test_an_operation_must_match_its_signature
- hal/operations/test_check.py::test_an_illegal_use_is_refused_by_name
M10: Operations write temporaries and outputs alone, each of them once.
- hal/validate/test_model.py::test_an_operation_writes_no_input_and_no_constant
- hal/validate/test_model.py::test_an_operand_is_written_once
M11: Inputs and outputs are listed once each, all of them.
- hal/validate/test_model.py::test_inputs_and_outputs_are_listed_exactly_once
M12: Nothing is read before it is written, and all is written.
- hal/validate/test_model.py::test_an_operand_is_not_read_before_it_is_written
- hal/validate/test_model.py::test_every_temporary_is_written
M13: The number of consumers is right.
- hal/validate/test_model.py::test_consumers_are_counted
M14: Pools are of a kind that the version has, and have their bytes.
- hal/validate/test_model.py::test_a_pool_is_of_a_known_kind_and_has_its_bytes
- hal/versions/test_models.py::test_pools_of_a_newer_kind_do_not_comply
M15: Names of extensions are well formed, they and their prefixes unique.
- hal/validate/test_model.py::test_extensions_have_proper_unique_names_and_prefixes
M16: Subgraphs contain no cycle; all are checked, also those that nothing refers to; IF and WHILE fit theirs.
- hal/validate/test_model.py::test_subgraphs_do_not_contain_themselves
- hal/validate/test_model.py::test_a_subgraph_that_nothing_refers_to_is_checked_as_well
- hal/operations/test_control_flow.py::TestIf::test_a_branch_unlike_the_operation_is_refused
- hal/operations/test_control_flow.py::TestWhile::test_subgraphs_that_do_not_make_a_loop_are_refused
M17: Preference and priority are ones that exist.
- hal/validate/test_settings.py::test_an_unknown_value_is_refused
- devices/test_device.py::TestPrepare::test_a_launch_error_has_notified_when_the_call_returns

# Mutants of models
VM1-VM21: *
- hal/validate/test_mutations.py::test_every_kind_of_mutant_of_a_small_model_is_refused
- tools/conformance/test_mutations.py::test_mutants_of_every_vector_are_refused
- tools/conformance/test_mutations.py::test_nothing_is_started_for_any_mutant
VM22: A preference that does not exist.
- devices/test_device.py::TestPrepare::test_a_launch_error_has_notified_when_the_call_returns
- tools/conformance/test_mutations.py::test_mutants_of_every_vector_are_refused
VM23: A priority that does not exist.
- devices/test_device.py::TestPrepare::test_a_launch_error_has_notified_when_the_call_returns
- tools/conformance/test_mutations.py::test_mutants_of_every_vector_are_refused
VM24: Two operations feed each other.
- tools/conformance/test_mutations.py::test_mutants_of_a_sample_are_refused
- hal/validate/test_model.py::test_an_operand_is_not_read_before_it_is_written

# Requests
R1: There are as many arguments as the model has.
- hal/validate/test_request.py::test_there_are_as_many_arguments_as_the_model_has
R2: What is omitted has neither location nor dimensions.
- hal/validate/test_request.py::test_an_omitted_argument_says_nothing_else
R3: All else lies within its pool; buffers are used as a whole.
- hal/validate/test_request.py::test_an_argument_lies_within_its_pool
- hal/validate/test_request.py::test_pools_without_bytes_are_used_as_a_whole
R4: Dimensions agree with the model's.
- hal/validate/test_request.py::test_given_dimensions_agree_with_the_model
R5: Inputs' dimensions are known in the end; outputs' too before 1.2 and in fenced executions.
- hal/validate/test_request.py::test_the_dimensions_of_an_input_must_all_be_known
- hal/validate/test_request.py::test_the_dimensions_of_an_output_may_stay_open_where_that_is_allowed
- hal/versions/test_device.py::test_1_0_cannot_leave_output_dimensions_open
- devices/test_fenced.py::TestLaunch::test_an_output_of_unknown_or_no_size_is_refused
R6: Pools are of a known kind, tokens positive, whether they are used or not.
- hal/validate/test_request.py::test_every_pool_is_checked_even_if_unused
- service/test_buffers.py::test_what_is_no_token_is_refused_before_it_is_sent
R7: An input has exactly its bytes. An output that is too short is insufficient, in a fenced execution invalid; a longer one is taken.
- hal/validate/test_request.py::test_an_input_has_exactly_the_bytes_of_its_dimensions
- devices/test_execution.py::test_a_short_output_is_insufficient_and_its_shape_is_reported
- devices/test_execution.py::test_an_output_longer_than_needed_is_accepted
- devices/test_fenced.py::TestLaunch::test_an_output_that_is_too_short_is_refused
R8: That outputs lie apart is up to the client; whatever it does, only their own bytes are written.
- devices/test_execution.py::test_outputs_over_other_arguments_write_nothing_else
R9: A loop has 15 s at most, whatever is asked for.
- engine/test_control_flow.py::TestWhile::test_no_timeout_is_longer_than_the_longest

# Mutants of requests
VR1: An input is missing, on any path.
- tools/conformance/test_mutations.py::test_mutants_of_every_vector_are_refused
- tools/conformance/test_burst_mutations.py::test_requests_are_to_be_refused_by_burst_too
VR2: An output is missing, on any path.
- tools/conformance/test_mutations.py::test_mutants_of_every_vector_are_refused
VR3: A slot is freed twice, or never was one.
- burst/test_server.py::TestFreeing::test_freeing_unknown_slots_and_freeing_twice_has_no_effect
- tools/conformance/test_burst_mutations.py::test_every_packet_of_a_vector_is_refused
VR4: Vectors that are to fail do so, without shapes or timing.
- tools/conformance/test_vts.py::test_every_vector_passes_on_every_path
- tools/conformance/test_judging.py::TestExpectedFailure::test_anything_else_fails
VR5: A fence to wait for is empty.
- devices/test_fenced.py::TestLaunch::test_an_empty_fence_is_refused
VR6: No timing is reported for an invalid request, asked for or not.
- devices/test_execution.py::TestLaunch::test_a_malformed_request_has_notified_when_the_call_returns
- tools/conformance/test_mutations.py::test_wrong_answers_to_a_request_are_found

# Mutants of bursts
VB1-VB3: A datum is missing, inserted or another one: an error, no shapes, no timing, and the burst goes on.
- burst/test_mutations.py::test_every_mutation_of_a_request_is_refused_and_the_burst_goes_on
- tools/conformance/test_burst_mutations.py::test_every_packet_of_a_vector_is_refused
VB4: The queue has no room for the result.
- burst/test_server.py::test_a_result_longer_than_its_queue_is_a_general_failure
- tools/conformance/test_burst_mutations.py::test_a_result_that_is_longer_than_its_queue_has_to_fail
VB5: Bytes between the fields of results are 0.
- burst/test_mutations.py::test_padding_of_results_is_zero

# Fenced executions
F1: The request is checked, then the fences, then the deadline; an error comes without fence and callback.
- devices/test_fenced.py::TestLaunch::test_a_malformed_request_is_refused
- devices/test_fenced.py::TestLaunch::test_a_fence_that_has_failed_is_refused
- devices/test_fenced.py::TestLaunch::test_a_passed_deadline_is_refused
F2: The call waits for nothing.
- devices/test_fenced.py::test_waiting_takes_no_thread
F3: It begins when all fences have signalled.
- devices/test_fenced.py::test_it_begins_when_the_last_fence_has_signalled
F4: If one of them fails, it fails without being executed, and so does its own fence.
- devices/test_fenced_failing.py::TestFailure::test_a_fence_that_fails_makes_all_that_follow_fail
F5: The deadline covers the waiting, the duration counts from the last fence, the earlier one holds.
- devices/test_fenced_failing.py::TestDeadline::test_the_deadline_covers_the_waiting
- devices/test_fenced_failing.py::TestDeadline::test_the_duration_counts_from_the_last_fence
- devices/test_fenced_failing.py::TestDeadline::test_the_earlier_of_deadline_and_duration_counts
F6: One that is over when the call returns may have no fence.
- devices/test_fenced.py::test_an_execution_that_is_over_has_no_fence
F7: Its fence signals at once when it ends, as failed after any error; nothing is written afterwards.
- devices/test_fenced_failing.py::TestFailure::test_an_execution_that_fails_has_a_failed_fence
- service/test_fenced.py::TestWaiting::test_outputs_are_in_place_when_the_fence_signals
- devices/test_left_executions.py::test_it_ends_at_the_deadline_and_writes_nothing_afterwards
F8: Before the end, its information is GENERAL_FAILURE without times.
- test_callbacks.py::test_a_fenced_outcome_is_a_failure_until_it_is_filled_in
F9: One that waits for another has a fence that exists.
- devices/test_fenced.py::test_a_chain_of_two_has_fences_that_exist
F10: Readable is signalled, an error is failed, a descriptor that is none is unknown.
- fences/test_fence.py::TestStates::test_a_descriptor_shows_every_status
- fences/test_fence.py::TestClosing::test_a_closed_fence_is_unknown_and_of_no_use
F11: The client may close its fences after the call.
- devices/test_fenced.py::test_the_fence_may_be_closed_after_the_call
F12: Many may wait, and end in any order.
- service/test_fenced.py::TestWaiting::test_thousands_of_runs_on_arrays_of_their_own_may_be_under_way
- runtime/test_fenced.py::test_runs_respect_every_edge

# Bursts
B1: The client makes both queues and a callback for memories; one without is refused.
- burst/test_opened.py::test_a_null_callback_is_an_invalid_argument
- burst/test_opened.py::test_a_queue_of_other_sizes_is_an_invalid_argument
- burst/test_opened.py::test_the_descriptors_stay_the_callers
B2: A packet is a request, whose result is sent before the next is taken.
- burst/test_server.py::test_a_request_is_executed
- burst/test_controller.py::test_the_next_request_waits_until_a_cancelled_one_has_ended
B3: A malformed packet gets GENERAL_FAILURE, and the burst goes on.
- burst/test_mutations.py::test_every_mutation_of_a_request_is_refused_and_the_burst_goes_on
B4: A result too long for its queue becomes a failure; one without room at the moment waits for it.
- burst/test_server.py::test_a_result_longer_than_its_queue_is_a_general_failure
- burst/test_server.py::test_a_result_waits_for_room
B5: Unknown slots are asked for together and once; without an answer the request fails.
- burst/test_server.py::test_slots_are_asked_for_once_each
- burst/test_server.py::test_an_unknown_slot_is_an_invalid_argument
- burst/test_server.py::test_memories_that_do_not_come_fail_the_request_alone
B6: A memory lives until its slot is freed, which holds from the next request on.
- burst/test_server.py::TestFreeing::test_a_slot_freed_meanwhile_is_forgotten_before_the_next_request
- burst/test_server.py::TestFreeing::test_a_freed_slot_is_asked_for_again
B7: A client that does not answer for its slots holds up nobody else.
- service/test_calls.py::TestASilentClient::test_is_not_waited_for_for_ever
- burst/test_server.py::TestEnding::test_closing_while_memories_are_asked_for_ends_the_asking
B8: The request is checked like any other.
- burst/test_server.py::test_a_request_that_breaks_a_rule_is_an_invalid_argument
B9: Its time begins when the packet is taken.
- burst/test_server.py::test_time_in_driver_begins_when_the_packet_is_taken
B10: Statuses of 1.3 become GENERAL_FAILURE.
- burst/test_results.py::test_statuses_of_hal_1_3_become_general_failure
- burst/test_server.py::test_statuses_that_bursts_do_not_know_are_general_failures
B11: All bytes between fields are 0.
- burst/test_mutations.py::test_padding_of_results_is_zero

# Pools
P1: Descriptors are duplicated where they are needed longer; a pool is mapped once, with the access that it allows.
- memory/test_pools.py::TestMapFile::test_a_descriptor_is_duplicated
- memory/test_mapping.py::TestSealedPools::test_they_are_mapped_once
- memory/test_mapping.py::TestIdentity::test_a_protection_is_kept_to
- memory/test_handles.py::test_other_bits_are_no_protection
P2: A file that is shorter than it says, or becomes so, harms nobody.
- memory/test_hostile.py::test_bytes_outside_of_the_file_are_refused
- memory/test_hostile.py::TestTruncation::test_a_file_cut_off_beneath_a_pool_does_not_harm_the_driver
- service/test_hostile.py::TestFilesThatShrink::test_during_executions
P3: Data may begin at any byte.
- devices/test_execution.py::test_an_unaligned_input_gives_the_very_same_result
P4: Inputs are left alone, outputs written within their bounds; what changes after it was checked does no harm.
- devices/test_execution.py::test_arguments_lie_anywhere_in_a_pool
- test_execution.py::test_any_memory_is_read_and_left_as_it_was
- kernels/layout/test_slicing.py::test_indices_that_change_once_they_were_checked_stay_within
P5: Once a model is prepared, the client may let go of the pools of its constants.
- devices/test_execution.py::test_constants_stay_when_the_client_lets_go_of_them
P6: What was written is in the client's memory before the end is reported.
- memory/test_copying.py::TestWriting::test_another_mapping_sees_what_was_flushed
- service/test_fenced.py::TestWaiting::test_outputs_are_in_place_when_the_fence_signals
P7: A constant that cannot be decoded makes a model unsupported, a request with such a pool fails.
- devices/test_undecodable_pools.py::test_a_model_that_needs_one_for_its_constants_is_not_supported
- devices/test_undecodable_pools.py::test_such_a_model_is_valid_and_cannot_be_prepared
- devices/test_undecodable_pools.py::test_a_request_that_needs_one_fails
P8: Padding behind a location is AIDL's. Here there is none, and what lies behind an output stays as it was.
- devices/test_execution.py::test_an_output_longer_than_needed_is_accepted
- devices/test_execution.py::test_arguments_lie_anywhere_in_a_pool

# Buffers of the device
A1: Roles name models of this device, arguments that exist and a frequency; there is at least one.
- devices/test_domains_allocation.py::test_a_buffer_without_roles_is_refused
- devices/test_domains_allocation.py::test_a_role_that_cannot_be_is_refused
- devices/test_domains_allocation.py::test_models_of_another_device_are_refused
A2: Each role is given once, however its model is called.
- devices/test_domains_allocation.py::test_a_role_is_given_once_however_its_model_is_called
A3: All have one type and quantisation.
- devices/test_domains_allocation.py::test_roles_of_two_types_are_refused
- devices/test_domains_allocation.py::test_roles_quantised_differently_are_refused
A4: Known axes of roles and description agree; unknown ones go with them.
- devices/test_domains_allocation.py::test_unknown_axes_and_ranks_go_with_known_ones
- devices/test_domains_allocation.py::test_a_description_of_other_dimensions_is_refused
- devices/test_domains_allocation.py::test_roles_of_other_dimensions_are_refused
A5: A scalar has no dimensions.
- devices/test_domains_allocation.py::test_the_buffer_of_a_scalar_has_no_dimensions
A6: What is valid and not to be had is GENERAL_FAILURE.
- devices/test_domains_allocation.py::test_a_client_has_as_many_bytes_as_the_settings_say
A7: Tokens are positive, hard to guess and unique; a buffer goes with its last reference.
- devices/test_domains_allocation.py::test_tokens_are_unlike_one_another
- devices/test_domains_allocation.py::test_a_buffer_goes_with_the_last_reference
- devices/test_domains_execution.py::TestCompany::test_an_execution_keeps_a_buffer_that_its_client_let_go_of
A8: It holds nothing at first.
- devices/test_domains_copies.py::test_an_uninitialised_buffer_cannot_be_read
A9: A token is of no use to another client.
- service/test_buffers.py::test_a_token_of_another_client_is_refused

# Suite of allocations
MA1: No models, or no roles.
- devices/test_domains_allocation.py::test_a_buffer_without_roles_is_refused
MA2: A model that is null.
- devices/test_domains_allocation.py::test_models_of_others_are_refused_and_not_called
MA3: A model that the client has made itself, which is not called.
- devices/test_domains_allocation.py::test_models_of_others_are_refused_and_not_called
MA4: A model that is not in the list.
- devices/test_domains_allocation.py::test_a_role_that_cannot_be_is_refused
MA5: An argument that the model has not.
- devices/test_domains_allocation.py::test_a_role_that_cannot_be_is_refused
MA6: A frequency above 1, of 0 or below.
- devices/test_domains_allocation.py::test_a_role_that_cannot_be_is_refused
MA7: The same role twice.
- devices/test_domains_allocation.py::test_a_role_is_given_once_however_its_model_is_called
MA8: Roles of two types.
- devices/test_domains_allocation.py::test_roles_of_two_types_are_refused
MA9: Roles of two scales.
- devices/test_domains_allocation.py::test_roles_quantised_differently_are_refused
MA10: Roles of two zero points.
- devices/test_domains_allocation.py::test_roles_quantised_differently_are_refused
MA11: Roles of two ranks.
- devices/test_domains_allocation.py::test_roles_of_other_dimensions_are_refused
MA12: Roles whose axes differ.
- devices/test_domains_allocation.py::test_roles_of_other_dimensions_are_refused
MA13: A description of another rank.
- devices/test_domains_allocation.py::test_a_description_of_other_dimensions_is_refused
MA14: A description of other axes.
- devices/test_domains_allocation.py::test_a_description_of_other_dimensions_is_refused
MA15: A description with dimensions for a scalar.
- devices/test_domains_allocation.py::test_the_buffer_of_a_scalar_has_no_dimensions

# Suite of copies
MC0: A valid allocation gives a buffer and a positive token.
- devices/test_domains_allocation.py::test_unknown_axes_and_ranks_go_with_known_ones
MC1: Half and twice the bytes to copy from.
- devices/test_domains_copies.py::test_pools_to_copy_from_have_the_size_of_the_buffer
MC2: The same where an axis is open.
- devices/test_domains_copies.py::test_pools_to_copy_from_have_the_size_of_what_is_given
MC3: Other dimensions than the buffer's.
- devices/test_domains_copies.py::test_dimensions_of_what_is_copied_are_those_of_the_buffer
MC4: The same where an axis is open.
- devices/test_domains_copies.py::test_dimensions_that_were_left_open_are_given
MC5: A buffer that holds nothing is copied to a pool.
- devices/cache/test_cache.py::TestReportingAtOnce::test_that_a_model_cache_was_changed
- devices/test_domains_copies.py::test_an_uninitialised_buffer_cannot_be_read
MC6: Half and twice the bytes to copy to.
- devices/test_domains_copies.py::test_pools_to_copy_to_have_the_size_of_the_contents
MC7: The same where an axis is open.
- devices/test_domains_copies.py::test_pools_to_copy_to_have_the_size_of_the_contents

# Suite of buffers in requests
ME1: Tokens that nobody has.
- devices/test_domains_execution.py::TestRules::test_an_unknown_token_is_refused
ME2: The buffer of another model, though it is alike.
- devices/test_domains_execution.py::TestRules::test_a_buffer_of_another_model_is_refused
ME3: The buffer of another argument.
- devices/test_domains_execution.py::TestRules::test_a_buffer_of_another_argument_is_refused
ME4: An input's buffer as an output, and the other way round.
- devices/test_domains_execution.py::TestRules::test_a_buffer_of_another_direction_is_refused
ME5: A buffer that holds nothing as an input; it does after it was an output.
- devices/test_domains_execution.py::TestRules::test_a_buffer_is_uninitialised_until_it_was_an_output
ME6: One buffer for an output and anything else.
- devices/test_domains_execution.py::TestRules::test_an_output_shares_its_buffer_with_nothing
ME7: Dimensions that are not the buffer's.
- devices/test_domains_execution.py::TestRules::test_dimensions_are_those_of_the_buffer

# Quality of service
Q1: Priority counts among the models of one client.
- devices/test_quality_of_service.py::test_a_high_execution_overtakes_low_ones
- qos/test_run_queue.py::TestShares::test_priorities_do_not_count_across_clients
Q2: Deadlines are nanoseconds of the steady clock.
- devices/test_execution.py::TestDeadline::test_a_deadline_during_the_run_aborts_at_the_next_operation
- devices/test_execution.py::TestDeadline::test_a_passed_deadline_is_an_outcome_not_a_launch_error
Q3: The far future is no deadline, and overflows nothing.
- devices/test_execution.py::TestDeadline::test_the_far_future_is_no_deadline
Q4: Passed before the start it is PERSISTENT, while it runs TRANSIENT.
- devices/test_execution.py::TestDeadline::test_a_passed_deadline_is_an_outcome_not_a_launch_error
- engine/test_execution.py::test_a_deadline_that_passes_meanwhile_is_missed
Q5: TRANSIENT may work later, as what is refused because too much waits; PERSISTENT would not.
- qos/test_scheduler.py::test_work_is_refused_at_the_bound
- qos/test_scheduler.py::test_what_surely_misses_its_deadline_is_refused
Q6: An execution is on time or has missed its deadline, and nothing else.
- devices/test_quality_of_service.py::test_executing_succeeds_or_misses_its_deadline
Q7: One that is aborted has no shapes and no times, and its buffers hold nothing.
- devices/test_execution.py::TestDeadline::test_a_deadline_during_the_run_aborts_at_the_next_operation
- devices/test_domains_execution.py::TestFailures::test_a_cancelled_execution_gives_its_buffers_up
Q8: Loading from a cache has a deadline; so has a run by burst, behind its packet where both ends agree.
- devices/cache/test_cache.py::TestLoadedModels::test_a_deadline_that_has_passed_is_missed
- runtime/test_burst.py::TestDeadlinesInADriver::test_they_order_what_waits

# Suite of deadlines
QS1-QS2: A model is prepared with LOW and with HIGH priority.
- devices/test_quality_of_service.py::test_models_are_prepared_with_any_priority
QS3-QS5: It is prepared by now, without limit, in 5 ms.
- devices/test_quality_of_service.py::test_preparing_succeeds_or_misses_its_deadline
QS6: Of a model that is not supported there is none, whatever the deadline.
- devices/test_quality_of_service.py::test_of_a_model_that_is_not_supported_there_is_no_prepared_one
QS7-QS12: It is executed by now, without limit, in 5 ms, asynchronously and synchronously.
- devices/test_quality_of_service.py::test_executing_succeeds_or_misses_its_deadline

# Caches
C1: There is a file for what decides the results, authenticated, and one for constants.
- devices/test_device.py::TestQueries::test_answers_are_what_the_hal_allows
- devices/cache/test_files.py::test_only_numbers_lie_outside_of_what_is_sealed
C2: With other files than were announced a model is prepared and not saved.
- devices/cache/test_cache.py::TestWrongFiles::test_a_wrong_number_of_files_is_refused_where_it_matters
- devices/cache/test_cache.py::TestWrongFiles::test_a_handle_has_exactly_one_descriptor
C3: What was in the files and where they stood does not matter; they may be closed once the model is there.
- devices/cache/test_cache.py::TestSavingAndLoading::test_offsets_and_former_contents_do_not_matter
- devices/cache/test_cache.py::TestSavingAndLoading::test_descriptors_may_be_closed_once_the_model_is_there
C4: All is written or nothing.
- devices/cache/test_cache.py::TestWrongFiles::test_nothing_is_saved_in_a_file_that_cannot_be_written
- devices/cache/test_files.py::test_what_does_not_fit_on_the_disk_is_not_left_there
C5: What cannot be loaded is refused, to the callback and by the call.
- devices/cache/test_cache.py::TestWrongFiles::test_a_wrong_number_of_files_is_refused_where_it_matters
- devices/cache/test_cache.py::TestWrongFiles::test_a_file_that_cannot_be_read_fails_the_loading
- devices/cache/test_files.py::test_another_version_of_the_driver_prepares_anew
C6: The token is authenticated with the model.
- devices/cache/test_cache.py::TestSecurity::test_a_token_that_is_not_that_of_the_model_is_noticed
C7: A key of the driver's own seals contents, order and compilation.
- devices/cache/test_files.py::test_another_key_reads_nothing
- devices/cache/test_cache.py::TestSecurity::test_swapped_files_are_noticed
- devices/cache/test_cache.py::TestSecurity::test_the_data_cache_of_another_compilation_is_noticed
C8: What was checked is what is used, whoever writes meanwhile.
- devices/cache/test_files.py::test_a_copy_is_of_one_compilation_whoever_writes_meanwhile
- devices/cache/test_cache.py::TestOverwrittenFiles::test_while_loading_they_never_yield_another_model
C9: Each flipped bit and each byte too many is noticed.
- devices/cache/test_cache.py::TestSecurity::test_every_flipped_bit_of_the_model_cache_is_noticed
- devices/cache/test_cache.py::TestSecurity::test_bytes_behind_the_model_cache_are_noticed
C10: A loaded model is like one that was prepared.
- devices/cache/test_cache.py::TestSavingAndLoading::test_a_saved_model_is_loaded_and_works
- tools/conformance/test_caching.py::test_cases_pass_with_models_from_the_cache
C11: A device may save nothing.
- devices/cache/test_key.py::test_without_a_place_for_it_there_is_none
- tools/conformance/test_caching.py::test_a_model_that_is_not_saved_is_refused

# Suite of caches
CC1: A model is saved and loaded.
- devices/cache/test_cache.py::TestSavingAndLoading::test_a_saved_model_is_loaded_and_works
CC2: Files with contents, at another offset.
- devices/cache/test_cache.py::TestSavingAndLoading::test_offsets_and_former_contents_do_not_matter
CC3: Saved with a file too many and too few.
- devices/cache/test_cache.py::TestWrongFiles::test_a_wrong_number_of_files_is_refused_where_it_matters
CC4: Loaded with a file too many and too few.
- devices/cache/test_cache.py::TestWrongFiles::test_a_wrong_number_of_files_is_refused_where_it_matters
CC5: Saved with two descriptors in a handle, and none.
- devices/cache/test_cache.py::TestWrongFiles::test_a_handle_has_exactly_one_descriptor
CC6: Loaded with two descriptors in a handle, and none.
- devices/cache/test_cache.py::TestWrongFiles::test_a_handle_has_exactly_one_descriptor
CC7: Saved in a file that is read-only.
- devices/cache/test_cache.py::TestWrongFiles::test_nothing_is_saved_in_a_file_that_cannot_be_written
CC8: Loaded from a file that is write-only.
- devices/cache/test_cache.py::TestWrongFiles::test_a_file_that_cannot_be_read_fails_the_loading
CC9: Overwritten while they are saved.
- devices/cache/test_cache.py::TestOverwrittenFiles::test_while_saving_they_never_yield_another_model
CC10: Overwritten while they are loaded.
- devices/cache/test_cache.py::TestOverwrittenFiles::test_while_loading_they_never_yield_another_model
CC11: The model cache of another token.
- devices/cache/test_cache.py::TestSecurity::test_the_model_cache_of_another_token_is_noticed
CS1: A bit of the model cache flipped.
- devices/cache/test_cache.py::TestSecurity::test_every_flipped_bit_of_the_model_cache_is_noticed
CS2: Bytes behind the model cache.
- devices/cache/test_cache.py::TestSecurity::test_bytes_behind_the_model_cache_are_noticed
CS3: A bit of the data cache flipped.
- devices/cache/test_cache.py::TestSecurity::test_a_flipped_bit_of_the_data_cache_gives_wrong_numbers_at_worst
CS4: A data cache of another length.
- devices/cache/test_cache.py::TestSecurity::test_a_data_cache_of_another_length_fails_the_loading
CS5: A bit of the token flipped.
- devices/cache/test_cache.py::TestSecurity::test_a_token_that_is_not_that_of_the_model_is_noticed

# Beyond the sample driver
S1: Work waits by client and priority, with weights and ageing.
- qos/test_run_queue.py::TestPriorities::test_the_higher_priority_goes_first_whatever_the_deadlines
- qos/test_run_queue.py::TestShares::test_clients_get_time_by_weight
- qos/test_run_queue.py::TestAging::test_a_starved_priority_gets_a_turn
S2: Lanes are few, and what is too much is refused.
- qos/test_scheduler.py::test_work_is_refused_at_the_bound
- qos/test_scheduler.py::test_a_scheduler_without_work_has_no_thread
S3: Fences are waited for by the loop, never in the call.
- devices/test_fenced.py::test_waiting_takes_no_thread
S4: One that has failed is refused at launch, one that fails later fails what waits for it.
- devices/test_fenced.py::TestLaunch::test_a_fence_that_has_failed_is_refused
- devices/test_fenced_failing.py::TestFailure::test_a_fence_that_fails_makes_all_that_follow_fail
S5: Deadlines end what waits, and what runs at its next boundary.
- qos/test_scheduler.py::test_a_deadline_aborts_work_that_waits
- engine/test_job.py::test_a_deadline_ends_the_segment_under_way
S6: Missed by waiting is TRANSIENT, by its own length PERSISTENT.
- qos/test_scheduler.py::test_a_deadline_aborts_work_that_waits
- qos/test_scheduler.py::test_what_surely_misses_its_deadline_is_refused
- devices/test_quality_of_service.py::test_what_takes_longer_than_its_deadline_is_refused_if_so_set
S7: Work makes way at boundaries and goes on later; its time in the driver includes that.
- qos/test_scheduler.py::test_higher_priority_takes_the_lane_and_the_work_goes_on_afterwards
- devices/test_work.py::test_the_measured_time_includes_the_suspension_and_the_computed_does_not
S8: What nobody waits for any more is cancelled.
- service/test_session.py::test_what_a_client_had_pending_ends_with_it
- service/test_faults.py::test_clients_that_are_killed_leave_nothing_and_harm_nobody
S9: After any failure the buffers of its outputs hold nothing.
- devices/test_domains_execution.py::TestFailures::test_a_failed_execution_leaves_its_output_uninitialised
- devices/test_domains_execution.py::TestFences::test_an_execution_that_never_begins_leaves_its_output_uninitialised
S10: Buffers of open size get it from what is written; locks hold up no caller.
- devices/test_domains_execution.py::TestOpenShapes::test_a_shape_that_only_execution_shows_is_taken
- devices/test_domains_execution.py::TestCompany::test_writers_in_each_others_way_fail_or_succeed_and_all_end
S11: Closing ends or waits for all that runs.
- qos/test_scheduler.py::test_closing_finishes_all_that_is_pending
- service/test_large_models.py::TestTheDriver::test_closing_waits_for_threads_that_work_for_clients_that_have_gone
S12: Models are cached.
- devices/cache/test_cache.py::TestSavingAndLoading::test_a_saved_model_is_loaded_and_works
S13: Bursts take no thread each, forget slots used least, and rest.
- service/test_bursts.py::test_many_bursts_take_the_turns_of_their_process
- burst/test_server.py::TestFreeing::test_slots_used_least_are_forgotten_when_there_are_too_many
- burst/test_resting.py::test_memories_are_asked_for_again_after_a_rest
S14: A pool that comes again is not mapped again.
- memory/test_limits.py::TestCache::test_a_pool_in_use_is_mapped_once_even_if_it_left_the_cache
- service/test_connection.py::TestPools::test_each_is_announced_once
S15: The real size of files is checked.
- memory/test_hostile.py::TestTruncation::test_a_file_cut_off_beneath_a_pool_does_not_harm_the_driver
S16: Beside a short output, all others have their shapes.
- devices/test_execution.py::test_beside_a_short_output_all_others_have_their_shapes
S17: Waiting and computing are reported apart, the first within the second.
- devices/test_execution.py::test_timing_is_reported_if_asked_for
- devices/test_work.py::test_the_measured_time_includes_the_suspension_and_the_computed_does_not
S18: The status says whether a device is busy or gone.
- devices/test_status.py::test_a_device_is_busy_while_its_queue_is_full
- devices/test_device.py::test_a_device_that_is_entered_again_is_closed_again
S19: Extensions are added by packages.
- extensions/test_devices.py::test_operations_of_an_extension_run
S20: Each client and user has quotas, and tokens of its own.
- qos/test_clients.py::test_each_has_a_bound_of_its_own
- service/test_users.py::TestAProcessThatTakesAllOfItsUsersQuota::test_of_models
- service/test_buffers.py::TestHostile::test_numbers_of_another_client
S21: Work that hangs is given up and its lane replaced; an idle device gives memory back.
- qos/test_watching.py::test_work_without_a_boundary_fails_and_its_lane_is_replaced
- devices/test_idle.py::test_memory_returns_to_what_it_was_after_preparation

# Where the documents leave a choice or contradict each other
D-1: The oldest validator leaves lengths of outputs unchecked, newer ones demand all bytes. Inputs follow the newer; a short output is OUTPUT_INSUFFICIENT_SIZE, as the suite demands, or INVALID_ARGUMENT where it is fenced; a long one is taken.
- devices/test_execution.py::test_a_short_output_is_insufficient_and_its_shape_is_reported
- devices/test_execution.py::test_an_output_longer_than_needed_is_accepted
D-2: Whether a fence fails after an ordinary error is left open. It does, and the information has the status.
- devices/test_fenced_failing.py::TestFailure::test_an_execution_that_fails_has_a_failed_fence
D-3: The interface names no order of the checks of copyTo. The size is looked at first.
- devices/test_domains_copies.py::test_a_wrong_size_is_reported_before_a_lack_of_contents
D-4: The table of older capabilities leaves TENSOR_QUANT8_ASYMM out. It is in.
- hal/versions/test_capabilities.py::test_figures_of_1_1_say_something_of_every_type_there_was
D-5: Whether a fence may be given twice, or be signalled already, is left open. It may.
- devices/test_fenced.py::test_it_begins_when_the_last_fence_has_signalled
- devices/test_fenced.py::test_a_chain_of_two_has_fences_that_exist
D-6: A deadline that passes before the fences do ends the execution without waiting for them.
- devices/test_fenced_failing.py::TestDeadline::test_the_deadline_covers_the_waiting
D-7: A loop timeout above the maximum is no error; the maximum counts.
- engine/test_control_flow.py::TestWhile::test_no_timeout_is_longer_than_the_longest
Threads: The oldest interface has GENERAL_FAILURE for work that cannot be started. 1.3 has RESOURCE_EXHAUSTED_TRANSIENT, which callers of older versions get as GENERAL_FAILURE.
- runtime/test_ending.py::TestThreads::test_a_run_and_a_preparation_are_refused_for_now
- hal/versions/test_models.py::test_statuses_of_1_3_are_general_failures_before_it
Drafts: 1.2 was drafted with isCachingSupported and saveToCache, in whose place came files that preparation is given. Both are here, each by its own rules.
- devices/cache/test_saving_late.py::TestDraft::test_a_model_is_saved_after_it_was_prepared_and_executed
Loops: The interface demands known sizes in a WHILE, the newer runtime runs others itself. So does a framework here; a driver refuses them.
- runtime/framework/test_open_loops.py::test_a_driver_refuses_them
- runtime/framework/test_open_loops.py::test_a_framework_runs_them_on_its_cpu
"""  # noqa: E501


class Entry(msgspec.Struct):
    """A method, an argument or a rule: what is done, and the tests that prove it."""

    group: str
    name: str
    text: str
    tests: list[str]


def entries(text: str) -> Iterator[Entry]:
    """Yield the entries of a table; one for each rule of a range.

    :raises ValueError: if a line is none of a table.
    """
    group = ""
    entry: Entry | None = None
    for line in filter(None, text.splitlines()):
        if line.startswith("- ") and entry is not None:
            entry.tests.append(f"tests/{line[2:]}")
            continue
        if entry is not None:
            yield from _each(entry)
            entry = None
        if line.startswith("# "):
            group = line[2:]
        elif found := re.fullmatch(r"([\w-]+(?:\(\))?): (.+)", line):
            entry = Entry(group, found[1], found[2], [])
        else:
            raise ValueError(f"{line!r} is no line of a table")
    if entry is not None:
        yield from _each(entry)


def _each(entry: Entry) -> Iterator[Entry]:
    found = re.fullmatch(r"([A-Z]+)(\d+)-\1(\d+)", entry.name)
    if found is None:
        yield entry
        return
    for number in range(int(found[2]), int(found[3]) + 1):
        name = f"{found[1]}{number}"
        text = f"{WORDS[name].capitalize()}." if entry.text == "*" else entry.text
        yield Entry(entry.group, name, text, entry.tests)


def described() -> dict[tuple[str, str, str], Entry]:
    """Return what the table says, by interface, method and argument.

    The argument of a method itself is empty.
    """
    found = {}
    method = ""
    for entry in entries(METHODS):
        interface = re.split(r"[ ,]", entry.group)[0]
        is_method = entry.name.endswith("()")
        if is_method:
            method = entry.name[:-2]
        found[interface, method, "" if is_method else entry.name] = entry
    return found


def declared() -> Iterator[tuple[str, str, str]]:
    """Yield each interface, method and argument that the code has of the HAL."""
    for interface, classes in INTERFACES.items():
        for each in classes:
            for name, function in vars(each).items():
                if name.startswith("_") or not isinstance(function, FunctionType):
                    continue
                if "Not in the HAL" in (function.__doc__ or ""):
                    continue
                yield interface, name, ""
                _, *arguments = inspect.signature(function).parameters
                yield from ((interface, name, argument) for argument in arguments)


def unproven() -> list[str]:
    """Return what has no entry, no test, or a test that does not exist."""
    said = described()
    wrong = [
        f"{'.'.join(filter(None, key))} is not described"
        for key in dict.fromkeys(declared())
        if key not in said
    ]
    wrong += [
        f"{'.'.join(filter(None, key))} is described, and not there"
        for key in said.keys() - set(declared())
    ]
    for entry in (*entries(METHODS), *entries(RULES)):
        if not entry.tests:
            wrong.append(f"{entry.group}, {entry.name}: there is no test")
        wrong += [
            f"{entry.group}, {entry.name}: there is no {test}"
            for test in entry.tests
            if not exists(test)
        ]
    return wrong


def exists(test: str) -> bool:
    """Return whether there is a test of this path."""
    file, *names = test.split("::")
    path = ROOT / file
    return path.is_file() and "::".join(names) in _tests_of(path)


@cache
def _tests_of(path: Path) -> frozenset[str]:
    return frozenset(_names(ast.parse(path.read_text()).body, ""))


_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def _names(body: Sequence[ast.stmt], outer: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _names(node.body, f"{outer}{node.name}::")
        elif isinstance(node, _FUNCTIONS) and node.name.startswith("test_"):
            yield f"{outer}{node.name}"


def render() -> str:
    """Return a section for each interface and version, and for each kind of rules."""
    parts = (
        ("Methods", ("argument", "what it does", "tests"), METHODS),
        ("Rules", ("rule", "what holds", "tests"), RULES),
    )
    lines: list[str] = []
    for title, header, text in parts:
        lines += [f"## {title}", ""]
        groups: dict[str, list[Entry]] = {}
        for entry in entries(text):
            groups.setdefault(entry.group, []).append(entry)
        for group, each in groups.items():
            lines += [f"### {group}", "", *table(header, map(_row, each))]
    return "\n".join(lines)


def _row(entry: Entry) -> Sequence[str]:
    name = f"**`{entry.name}`**" if entry.name.endswith("()") else entry.name
    tests = "<br>".join(f"`{test}`" for test in entry.tests)
    return name, entry.text, tests


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or check them; return the exit status."""
    return PART.main(render, arguments)


if __name__ == "__main__":
    sys.exit(main())
