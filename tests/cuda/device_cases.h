// SPDX-License-Identifier: Apache-2.0
// The cases of device_test.c.
#pragma once

// device_cases.c: numbers
void cases_every_shape(void **state);
void cases_every_bend(void **state);
void cases_every_mask(void **state);
void cases_adversarial_inputs(void **state);
void cases_runs_in_any_order(void **state);
void cases_several_heads(void **state);
void cases_bits_do_not_depend_on_cuts(void **state);
void cases_bits_do_not_depend_on_the_batch(void **state);
void cases_bits_of_short_queries(void **state);
void cases_unseen_keys_do_not_leak(void **state);
void cases_not_finite_flows_through(void **state);
void cases_vanished_rows(void **state);
void cases_no_keys_is_the_identity(void **state);
void cases_scales_of_any_size(void **state);

// device_latents.c: numbers
void cases_latents_of_every_shape(void **state);
void cases_latents_at_random(void **state);
void cases_latents_of_every_kind(void **state);
void cases_latents_have_the_same_bits(void **state);
void cases_latents_that_are_not_finite(void **state);

// device_persistent.c
void cases_more_tasks_than_blocks(void **state);
void cases_tasks_without_keys(void **state);
void cases_tasks_done_again(void **state);
void cases_tasks_of_different_items(void **state);

// device_wgmma.c: wgmma
void cases_wgmma_is_chosen(void **state);
void cases_wgmma_of_every_shape(void **state);
void cases_wgmma_of_short_queries(void **state);
void cases_wgmma_at_random(void **state);

// device_life.c
void cases_pool_and_limit(void **state);
void cases_bytes_go_and_come(void **state);
void cases_bad_calls(void **state);
void cases_rectangles_are_copied(void **state);
void cases_steps_read_what_was_written(void **state);
void cases_to_a_sink(void **state);
void cases_many_under_way(void **state);
void cases_bandwidth(void **state);
void cases_workspace_shrinks(void **state);
void cases_driver_too_old(void **state);
void cases_fault_loses_the_device(void **state);
