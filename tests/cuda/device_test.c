// SPDX-License-Identifier: Apache-2.0
// The suite that every device module passes (kernels/device.h):
//
//     cuda_device_test MODULE.so numbers|latents|persistent|wgmma|life|fault|driver|shrink
//
// numbers: answers against the float64 reference, and bits. latents: the same for MLA. persistent: blocks of
// threads that go on from task to task. wgmma: both with BANYAN_CUDA_WGMMA=1 (status 77 unless the device has
// compute capability 9.0). life: pool, writes, limits, many steps under way. fault: only over the emulated
// module, which makes its third kernel fail. driver: the same with a driver that is too old. shrink:
// emulated, too: real runtimes give memory back in larger pieces. Exit status 77: no device here.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/group.h"
#include "tests/cuda/device_cases.h"
#include "tests/cuda/device_harness.h"

static int open_device(void **state)
{
    (void)state;
    struct common_error err;
    if (ops->open(0, 0, &device, &err) != COMMON_OK) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    struct kernels_device_info info;
    ops->info(device, &info);
    printf("%s, kernel %s\n", info.name, info.kernel);
    return 0;
}

// The last of each group: what fails in a group's teardown fails no test.
static void nothing_is_left(void **state)
{
    (void)state;
    assert_int_equal(ops->used(device), 0);
    assert_int_equal(harness_late_loads(), 0); // no first launch has waited for other work
}

static int close_device(void **state)
{
    (void)state;
    if (!device) // it could not be opened
        return -1;
    ops->close(device);
    device = NULL;
    harness_print_worst();
    return 0;
}

static bool wgmma_is_here(void)
{
    struct common_error err;
    if (ops->open(0, 0, &device, &err) != COMMON_OK)
        return true; // the group says why
    struct kernels_device_info info;
    ops->info(device, &info);
    ops->close(device);
    device = NULL;
    return strstr(info.kernel, "sm_90") != NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(
            stderr,
            "usage: cuda_device_test MODULE.so numbers|latents|persistent|wgmma|life|fault|driver|shrink\n");
        return 2;
    }
    if (!strcmp(argv[2], "life"))
        setenv("BANYAN_EMULATED_MEMORY", "67108864", 1);
    if (!strcmp(argv[2], "fault"))
        setenv("BANYAN_EMULATED_FAULT", "3", 1);
    if (!strcmp(argv[2], "driver"))
        setenv("BANYAN_EMULATED_DRIVER", "12040", 1);
    if (!strcmp(argv[2], "wgmma")) {
        setenv("BANYAN_CUDA_WGMMA", "1", 1);
        setenv("BANYAN_EMULATED_CAPABILITY", "90", 0);
    }
    if (!harness_load(argv[1]))
        return 1;
    if (!strcmp(argv[2], "driver")) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(cases_driver_too_old)};
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    struct common_error err;
    if (ops->count(&err) == 0) {
        struct kernels_device *none = NULL;
        printf("skipped: %s\n", err.message);
        return ops->open(0, 0, &none, &err) == COMMON_UNAVAILABLE && !none ? 77 : 1;
    }
    if (!strcmp(argv[2], "wgmma") && !wgmma_is_here()) {
        printf("skipped: products of a warpgroup need compute capability 9.0\n");
        return 77;
    }
    if (!strcmp(argv[2], "numbers")) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(cases_every_shape),
            cmocka_unit_test(cases_every_bend),
            cmocka_unit_test(cases_every_mask),
            cmocka_unit_test(cases_adversarial_inputs),
            cmocka_unit_test(cases_runs_in_any_order),
            cmocka_unit_test(cases_several_heads),
            cmocka_unit_test(cases_bits_do_not_depend_on_cuts),
            cmocka_unit_test(cases_bits_do_not_depend_on_the_batch),
            cmocka_unit_test(cases_bits_of_short_queries),
            cmocka_unit_test(cases_unseen_keys_do_not_leak),
            cmocka_unit_test(cases_not_finite_flows_through),
            cmocka_unit_test(cases_vanished_rows),
            cmocka_unit_test(cases_no_keys_is_the_identity),
            cmocka_unit_test(cases_scales_of_any_size),
            cmocka_unit_test(nothing_is_left),
        };
        return group_run(tests, open_device, close_device);
    }
    if (!strcmp(argv[2], "latents")) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(cases_latents_of_every_shape),
            cmocka_unit_test(cases_latents_at_random),
            cmocka_unit_test(cases_latents_of_every_kind),
            cmocka_unit_test(cases_latents_have_the_same_bits),
            cmocka_unit_test(cases_latents_that_are_not_finite),
            cmocka_unit_test(nothing_is_left),
        };
        return group_run(tests, open_device, close_device);
    }
    if (!strcmp(argv[2], "persistent")) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(cases_more_tasks_than_blocks),
            cmocka_unit_test(cases_tasks_without_keys),
            cmocka_unit_test(cases_tasks_done_again),
            cmocka_unit_test(cases_tasks_of_different_items),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    if (!strcmp(argv[2], "wgmma")) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(cases_wgmma_is_chosen),
            cmocka_unit_test(cases_wgmma_of_every_shape),
            cmocka_unit_test(cases_wgmma_of_short_queries),
            cmocka_unit_test(cases_wgmma_at_random),
            cmocka_unit_test(cases_every_mask),
            cmocka_unit_test(cases_bits_do_not_depend_on_cuts),
            cmocka_unit_test(cases_bits_of_short_queries),
            cmocka_unit_test(cases_unseen_keys_do_not_leak),
            cmocka_unit_test(cases_not_finite_flows_through),
            cmocka_unit_test(cases_vanished_rows),
        };
        return group_run(tests, open_device, close_device);
    }
    if (!strcmp(argv[2], "life")) {
        const struct CMUnitTest tests[] = {
            cmocka_unit_test(cases_pool_and_limit),
            cmocka_unit_test(cases_bytes_go_and_come),
            cmocka_unit_test(cases_bad_calls),
            cmocka_unit_test(cases_steps_read_what_was_written),
            cmocka_unit_test(cases_to_a_sink),
            cmocka_unit_test(cases_many_under_way),
            cmocka_unit_test(cases_rectangles_are_copied),
            cmocka_unit_test(cases_bandwidth),
            cmocka_unit_test(nothing_is_left),
        };
        return group_run(tests, open_device, close_device);
    }
    if (!strcmp(argv[2], "shrink")) {
        const struct CMUnitTest tests[] = {cmocka_unit_test(cases_workspace_shrinks)};
        return cmocka_run_group_tests(tests, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases_fault_loses_the_device)};
    return cmocka_run_group_tests(tests, open_device, NULL); // the device is lost: it is not closed
}
