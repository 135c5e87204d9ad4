// SPDX-License-Identifier: Apache-2.0
// What engines leave of a device's memory to K and V, where no option says how much that is.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/processors/engine.h"

#define GIB (UINT64_C(1) << 30)

static void test_nccl_has_room_for_communicators(void **state)
{
    (void)state;
    assert_true(worker_engine_room("nccl", 80 * GIB) == 2 * GIB);
    assert_true(worker_engine_room("nccl", 8 * GIB) == GIB);
    assert_true(worker_engine_room("stream", 80 * GIB) == 0);
    assert_true(worker_engine_room("mpi", 80 * GIB) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nccl_has_room_for_communicators)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
