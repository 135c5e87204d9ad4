// SPDX-License-Identifier: Apache-2.0
// Sums of rows: their values are part of the wire, and the same in every variant.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/hash/hash.h"
#include "proto/sums/rows_sum_run.h"

static uint8_t bytes[1 << 16];

static void fill(void)
{
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)common_mix64(i);
}

static struct proto_rows_piece piece_of(size_t len, uint32_t heads, uint64_t count)
{
    return (struct proto_rows_piece){.data = bytes,
                                     .len = len,
                                     .row_pitch = len * heads,
                                     .head_pitch = len,
                                     .part = PROTO_ROWS_V,
                                     .first_head = 3,
                                     .heads = heads,
                                     .first = 1000,
                                     .count = count};
}

static void values_never_change(void **state)
{
    (void)state;
    const struct proto_rows_piece small = piece_of(32, 2, 5), large = piece_of(512, 4, 7);
    fill();
    assert_true(proto_rows_sum(&small) == UINT64_C(0x133735758ac3258e));
    assert_true(proto_rows_sum(&large) == UINT64_C(0x43ee093afadf5499));
}

// Lengths on both sides of every step that XXH3 makes: 16, 128, 240, a stripe, a block of 1024.
static void variants_agree(void **state)
{
    (void)state;
    static const size_t lens[] = {1,   4,   16,  17,  128,  129,  240,  241,  255,  256,
                                  257, 320, 321, 512, 1000, 1023, 1024, 1025, 2048, 4096};
    fill();
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        const struct proto_rows_piece piece = piece_of(lens[i], 2, 6);
        uint64_t plain = proto_rows_sum_plain(&piece);
        assert_true(proto_rows_sum(&piece) == plain);
#ifdef __x86_64__
        if (common_cpu_avx2())
            assert_true(proto_rows_sum_avx2(&piece) == plain);
#endif
        bytes[lens[i] / 2] ^= 4;
        assert_true(proto_rows_sum(&piece) != plain);
        bytes[lens[i] / 2] ^= 4;
    }
}

// However a range is cut.
static void sums_add_up(void **state)
{
    (void)state;
    const struct proto_rows_piece whole = piece_of(256, 4, 9);
    fill();
    uint64_t sum = 0;
    for (uint64_t row = 0; row < 9; row++)
        for (uint32_t head = 0; head < 4; head++) {
            struct proto_rows_piece one = whole;
            one.data = bytes + row * whole.row_pitch + head * whole.head_pitch;
            one.first += row, one.count = 1;
            one.first_head += head, one.heads = 1;
            sum += proto_rows_sum(&one);
        }
    assert_true(sum == proto_rows_sum(&whole));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_never_change),
        cmocka_unit_test(variants_agree),
        cmocka_unit_test(sums_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
