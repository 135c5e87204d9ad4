// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/status.h"

static void test_set_fills_and_returns(void **state)
{
    (void)state;
    struct common_error err;
    assert_int_equal(common_error_set(&err, COMMON_NOT_FOUND, "session %d", 7), COMMON_NOT_FOUND);
    assert_int_equal(err.code, COMMON_NOT_FOUND);
    assert_string_equal(err.message, "session 7");
    assert_int_equal(common_error_set(NULL, COMMON_ABORTED, "%s", "x"), COMMON_ABORTED);
}

static void test_message_may_wrap_itself(void **state)
{
    (void)state;
    struct common_error err;
    common_error_set(&err, COMMON_NOT_FOUND, "inner");
    common_error_set(&err, COMMON_UNAVAILABLE, "outer: %s", err.message);
    assert_string_equal(err.message, "outer: inner");
}

static void test_message_is_one_line_of_utf8(void **state)
{
    (void)state;
    struct common_error err;
    common_error_set(&err, COMMON_INTERNAL, "%s", "a\nb\tc\033[31m\x7f");
    assert_string_equal(err.message, "a b c [31m ");

    // Cut at every place inside a character of two, three and four bytes: only whole ones stay.
    static const char *const characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8c\xb3"};
    for (size_t c = 0; c < 3; c++)
        for (int shift = 0; shift < 4; shift++) {
            char text[COMMON_ERROR_BYTES * 2] = "";
            memset(text, 'x', (size_t)shift);
            while (strlen(text) < COMMON_ERROR_BYTES + 8)
                strcat(text, characters[c]);
            common_error_set(&err, COMMON_INTERNAL, "%s", text);
            size_t len = strlen(err.message), width = strlen(characters[c]);
            assert_true(len < COMMON_ERROR_BYTES && len >= COMMON_ERROR_BYTES - 4);
            assert_int_equal((len - (size_t)shift) % width, 0);
            assert_memory_equal(err.message, text, len);
        }
}

// One byte too long, and that byte the end of a character.
static void test_a_character_that_just_does_not_fit(void **state)
{
    (void)state;
    struct common_error err;
    char text[COMMON_ERROR_BYTES + 1];
    memset(text, 'x', sizeof text);
    memcpy(text + COMMON_ERROR_BYTES - 2, "\xc3\xa9", 3);
    common_error_set(&err, COMMON_INTERNAL, "%s", text);
    assert_int_equal(strlen(err.message), COMMON_ERROR_BYTES - 2);
}

static void test_long_ascii_is_cut_at_the_last_byte(void **state)
{
    (void)state;
    struct common_error err;
    char text[COMMON_ERROR_BYTES * 2];
    memset(text, 'y', sizeof text);
    text[sizeof text - 1] = '\0';
    common_error_set(&err, COMMON_INTERNAL, "%s", text);
    assert_int_equal(strlen(err.message), COMMON_ERROR_BYTES - 1);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(common_code_name(COMMON_OK), "OK");
    assert_string_equal(common_code_name(COMMON_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_string_equal(common_code_name(COMMON_IN_PROGRESS), "IN_PROGRESS");
    assert_string_equal(common_code_name((enum common_code)17), "CODE_?");
    assert_string_equal(common_code_name((enum common_code) - 1), "CODE_?");
    for (int i = 0; i < COMMON_CODE_COUNT; i++)
        for (int k = 0; k < i; k++)
            assert_string_not_equal(common_code_name((enum common_code)i),
                                    common_code_name((enum common_code)k));
}

static void test_valid(void **state)
{
    (void)state;
    assert_true(common_code_valid(0) && common_code_valid(16));
    assert_false(common_code_valid(-1) || common_code_valid(17) || common_code_valid(COMMON_IN_PROGRESS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_fills_and_returns),
        cmocka_unit_test(test_message_may_wrap_itself),
        cmocka_unit_test(test_message_is_one_line_of_utf8),
        cmocka_unit_test(test_a_character_that_just_does_not_fit),
        cmocka_unit_test(test_long_ascii_is_cut_at_the_last_byte),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_valid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
