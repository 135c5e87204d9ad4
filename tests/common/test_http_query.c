// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/http/http.h"

static void values_are_found_and_unescaped(void **state)
{
    (void)state;
    char out[8];
    assert_int_equal(common_http_query("a=1&bc=x%20y+z&d", "bc", out, sizeof out), COMMON_HTTP_GIVEN);
    assert_string_equal(out, "x y z");
    assert_int_equal(common_http_query("a=1&bc=2", "b", out, sizeof out), COMMON_HTTP_ABSENT);
    assert_int_equal(common_http_query("a=1&d", "d", out, sizeof out), COMMON_HTTP_GIVEN);
    assert_string_equal(out, "");
    assert_int_equal(common_http_query("d&a=", "a", out, sizeof out), COMMON_HTTP_GIVEN);
    assert_string_equal(out, "");
    assert_int_equal(common_http_query("a=1&a=2", "a", out, sizeof out), COMMON_HTTP_GIVEN);
    assert_string_equal(out, "1");
    assert_int_equal(common_http_query("a=%C3%bc", "a", out, sizeof out), COMMON_HTTP_GIVEN);
    assert_string_equal(out, "\xc3\xbc");
    assert_int_equal(common_http_query("", "a", out, sizeof out), COMMON_HTTP_ABSENT);
    assert_int_equal(common_http_query(NULL, "a", out, sizeof out), COMMON_HTTP_ABSENT);
    assert_int_equal(common_http_query("x=a=1", "a", out, sizeof out), COMMON_HTTP_ABSENT);
}

static void what_is_no_text_is_refused(void **state)
{
    (void)state;
    char out[8];
    static const char *const bad[] = {"a=%",   "a=%2",  "a=%zz", "a=%0",      "a=%00",
                                      "a=%0a", "a=%7f", "a=\t",  "a=%2&b=22", "a=12345678"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(out, 'x', sizeof out);
        assert_int_equal(common_http_query(bad[i], "a", out, sizeof out), COMMON_HTTP_BAD);
        assert_string_equal(out, ""); // for callers who look at it all the same
    }
    assert_int_equal(common_http_query("a=1234567", "a", out, sizeof out), COMMON_HTTP_GIVEN);
    assert_string_equal(out, "1234567");
}

static void hosts(void **state)
{
    (void)state;
    assert_true(common_http_host_is("localhost", "localhost"));
    assert_true(common_http_host_is("LocalHost:9411", "localhost"));
    assert_true(common_http_host_is("[::1]:80", "[::1]"));
    assert_true(common_http_host_is("[::1]", "[::1]"));
    assert_false(common_http_host_is("localhost.example", "localhost"));
    assert_false(common_http_host_is("local", "localhost"));
    assert_false(common_http_host_is("", "localhost"));
    assert_false(common_http_host_is("[::1", "[::1]"));

    assert_true(common_http_host_is_address("10.0.0.1"));
    assert_true(common_http_host_is_address("10.0.0.1:80"));
    assert_true(common_http_host_is_address("[fe80::1]:80"));
    static const char *const names[] = {
        "",
        "example",
        "10.0.0.1.example",
        "10.0.0",
        "::1",
        "[10.0.0.1]",
        "[]",
        "[example]",
        "[",
        "1",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_false(common_http_host_is_address(names[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_found_and_unescaped),
        cmocka_unit_test(what_is_no_text_is_refused),
        cmocka_unit_test(hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
