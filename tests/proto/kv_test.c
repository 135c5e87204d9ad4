// SPDX-License-Identifier: Apache-2.0
// Bytes of rows of keys and values: each type, and what is none.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/model/kv.h"

static void rows_of_each_type(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, element;
        bool scaled;
        size_t row; // of 8 heads of 128
    } types[] = {
        {BANYAN__PB__DTYPE__DTYPE_F32, 4, false, 4096},     {BANYAN__PB__DTYPE__DTYPE_F16, 2, false, 2048},
        {BANYAN__PB__DTYPE__DTYPE_BF16, 2, false, 2048},    {BANYAN__PB__DTYPE__DTYPE_INT8, 1, true, 1056},
        {BANYAN__PB__DTYPE__DTYPE_FP8_E4M3, 1, true, 1056},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_int_equal(proto_kv_element_bytes(types[i].type), types[i].element);
        assert_int_equal(proto_kv_scaled(types[i].type), types[i].scaled);
        assert_int_equal(proto_kv_row_bytes(types[i].type, 8, 128), types[i].row);
        assert_int_equal(proto_kv_row_bytes(types[i].type, 1, 1),
                         types[i].element + (types[i].scaled ? 4 : 0));
        assert_true(proto_kv_row_bytes(types[i].type, PROTO_KV_HEADS_MAX, PROTO_KV_DIM_MAX) <= 4u << 20);
    }
}

static void what_is_none(void **state)
{
    (void)state;
    static const uint32_t none[] = {0, BANYAN__PB__DTYPE__DTYPE_U8, 7, 77, UINT32_MAX};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(proto_kv_element_bytes(none[i]), 0);
        assert_false(proto_kv_scaled(none[i]));
        assert_int_equal(proto_kv_row_bytes(none[i], 8, 128), 0);
    }
    static const uint32_t wrong[] = {0, 1025, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(proto_kv_row_bytes(BANYAN__PB__DTYPE__DTYPE_F32, wrong[i], 128), 0);
        assert_int_equal(proto_kv_row_bytes(BANYAN__PB__DTYPE__DTYPE_INT8, 8, wrong[i]), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_each_type), cmocka_unit_test(what_is_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
