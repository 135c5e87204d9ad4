// SPDX-License-Identifier: Apache-2.0
// The registry, and the conformance suite over every engine in it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/reduce/engine_conformance.h"

static void test_registry(void **state)
{
    (void)state;
    assert_ptr_equal(reduce_engine_find("stream"), &reduce_engine_stream);
    assert_ptr_equal(reduce_engine_at(0), &reduce_engine_stream);
    assert_null(reduce_engine_find("pigeon"));
    assert_null(reduce_engine_at(1));
    assert_int_equal(reduce_engine_register(&reduce_engine_stream), COMMON_ALREADY_EXISTS);
    assert_int_equal(reduce_engine_register(NULL), COMMON_INVALID_ARGUMENT);
    struct reduce_engine_ops broken = reduce_engine_stream;
    broken.name = "broken";
    broken.cancel = NULL;
    assert_int_equal(reduce_engine_register(&broken), COMMON_INVALID_ARGUMENT);
    assert_null(reduce_engine_find("broken"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_registry)};
    int failed = cmocka_run_group_tests_name("reduce/engine", tests, NULL, NULL);
    const struct reduce_engine_ops *ops;
    for (unsigned i = 0; (ops = reduce_engine_at(i)); i++)
        failed += engine_conformance_run(ops, false);
    return failed;
}
