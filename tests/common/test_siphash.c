// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/hash/siphash.h"

// The paper's key 00 01 .. 0f and messages "", 00, 00 01, ..: its appendix A (15 bytes) and the authors'
// vectors.
static void test_known_values(void **state)
{
    (void)state;
    static const struct {
        size_t len;
        uint64_t value;
    } known[] = {
        {0, UINT64_C(0x726fdb47dd0e0e31)},  {1, UINT64_C(0x74f839c593dc67fd)},
        {7, UINT64_C(0xab0200f58b01d137)},  {8, UINT64_C(0x93f5f5799a932462)},
        {15, UINT64_C(0xa129ca6149be45e5)},
    };
    const uint64_t key[2] = {UINT64_C(0x0706050403020100), UINT64_C(0x0f0e0d0c0b0a0908)};
    uint8_t message[16];
    for (size_t i = 0; i < sizeof message; i++)
        message[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(common_siphash(key, message, known[i].len) == known[i].value);
}

static void test_key_matters(void **state)
{
    (void)state;
    const uint64_t key[2] = {1, 2};
    for (unsigned bit = 0; bit < 128; bit++) {
        uint64_t other[2] = {key[0], key[1]};
        other[bit / 64] ^= UINT64_C(1) << bit % 64;
        assert_true(common_siphash(other, "x", 1) != common_siphash(key, "x", 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_key_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
