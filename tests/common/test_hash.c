// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "common/hash/xxh3.h"

// The values are part of the wire and of the store: these numbers must never change.
static void test_mix64_is_splitmix64(void **state)
{
    (void)state;
    // The first three outputs of splitmix64 seeded with 0: its state rises by the golden gamma.
    const uint64_t gamma = UINT64_C(0x9e3779b97f4a7c15);
    assert_true(common_mix64(0) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(common_mix64(gamma) == UINT64_C(0x6e789e6aa1b965f4));
    assert_true(common_mix64(2 * gamma) == UINT64_C(0x06c45d188009454f));
}

static void test_xxh3(void **state)
{
    (void)state;
    assert_true(common_xxh3("", 0, 0) == UINT64_C(0x2d06800538d394c2));
    assert_true(common_xxh3(NULL, 0, 0) == UINT64_C(0x2d06800538d394c2));
    uint8_t data[1000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7);
    uint64_t whole = common_xxh3(data, sizeof data, 0);
    assert_true(common_xxh3(data, sizeof data, 1) != whole);
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] ^= 1;
        assert_true(common_xxh3(data, sizeof data, 0) != whole);
        data[i] ^= 1;
    }
    assert_true(common_xxh3(data, sizeof data, 0) == whole);
}

// However the bytes are cut.
static void test_gather(void **state)
{
    (void)state;
    static uint8_t data[20000];
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)common_mix64(i);
    for (int round = 0; round < 2000; round++) {
        struct iovec pieces[8];
        size_t len = (seed = common_mix64(seed)) % (round % 2 ? 600 : sizeof data), n = 0, at = 0;
        while (n < 7 && at < len) {
            size_t step = round % 5 ? (seed = common_mix64(seed)) % (len - at + 1) : len - at;
            pieces[n++] = (struct iovec){data + at, step};
            at += step;
        }
        pieces[n++] = (struct iovec){data + at, len - at};
        uint64_t want = common_xxh3(data, len, 0);
        assert_true(common_xxh3_gather(pieces, n) == want);
        assert_true(common_xxh3_run(pieces, n) == want); // for any processor
#ifdef __x86_64__
        if (common_cpu_avx2())
            assert_true(common_xxh3_gather_avx2(pieces, n) == want);
#endif
        assert_true(common_xxh3_gather(&(struct iovec){data, len}, 1) == want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mix64_is_splitmix64),
        cmocka_unit_test(test_xxh3),
        cmocka_unit_test(test_gather),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
