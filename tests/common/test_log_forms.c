// SPDX-License-Identifier: Apache-2.0
// What a record becomes in each form, whatever its arguments are.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/log/log_record.h"

static struct common_log_record record;
static char bytes[COMMON_LOG_RECORD_BYTES + 1];

static void __attribute__((format(printf, 1, 2))) fill(const char *fmt, ...)
{
    va_list args;
    record =
        (struct common_log_record){.level = COMMON_LOG_WARN, .program = "test", .at = {1700000000, 5000}};
    va_start(args, fmt);
    common_log_record_fill(&record, fmt, args);
    va_end(args);
}

// The record as an object: one line, valid, UTF-8, and no control character but the newline at its end.
static json_t *object(void)
{
    size_t n = common_log_record_json(&record, bytes);
    json_error_t error;
    assert_true(n <= COMMON_LOG_RECORD_BYTES);
    assert_int_equal(bytes[n - 1], '\n');
    bytes[n] = '\0';
    assert_int_equal(strlen(bytes), n);
    for (size_t i = 0; i + 1 < n; i++)
        assert_true((unsigned char)bytes[i] >= 0x20 && bytes[i] != 0x7f);
    json_t *root = json_loads(bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!root)
        fail_msg("%s: %s", error.text, bytes);
    return root;
}

static const char *text_of(const json_t *root, const char *key)
{
    const char *text = json_string_value(json_object_get(root, key));
    assert_non_null(text);
    return text;
}

static void test_members(void **state)
{
    (void)state;
    fill("a peer is lost peer=%s session=%016llx n=%u left=%-4d ratio=%.2f size=%zu (at=%s): %s why=%s/%d "
         "done=yes.",
         "w 3 x=1", 18ULL, 7u, -2, 0.5, (size_t)9, "tcp://h:1", "key=%s", "a", 2);
    json_t *root = object();
    assert_string_equal(text_of(root, "ts"), "2023-11-14T22:13:20.000005Z");
    assert_string_equal(text_of(root, "level"), "warn");
    assert_string_equal(text_of(root, "program"), "test");
    assert_string_equal(
        text_of(root, "message"),
        "a peer is lost peer=w 3 x=1 session=0000000000000012 n=7 left=-2   ratio=0.50 size=9 "
        "(at=tcp://h:1): key=%s why=a/2 done=yes.");
    assert_string_equal(text_of(root, "peer"), "w 3 x=1");
    assert_string_equal(text_of(root, "session"), "0000000000000012"); // an id is no number
    assert_int_equal(json_integer_value(json_object_get(root, "n")), 7);
    assert_true(json_number_value(json_object_get(root, "ratio")) == 0.5);
    assert_int_equal(json_integer_value(json_object_get(root, "size")), 9);
    assert_string_equal(text_of(root, "at"), "tcp://h:1");
    assert_string_equal(text_of(root, "why"), "a/2");
    assert_string_equal(text_of(root, "done"), "yes");
    assert_null(json_object_get(root, "x")); // what an argument says makes no member
    assert_null(json_object_get(root, "key"));
    json_decref(root);
}

static void test_names_are_unique(void **state)
{
    (void)state;
    fill("x level=%d level=%d ts=%d n=%d n=%d message=%f", 1, 2, 3, 4, 5, 1.0 / 0.0);
    json_t *root = object();
    assert_int_equal(json_integer_value(json_object_get(root, "level_")), 1);
    assert_int_equal(json_integer_value(json_object_get(root, "level__")), 2);
    assert_int_equal(json_integer_value(json_object_get(root, "ts_")), 3);
    assert_int_equal(json_integer_value(json_object_get(root, "n")), 4);
    assert_int_equal(json_integer_value(json_object_get(root, "n_")), 5);
    assert_string_equal(text_of(root, "message_"), "inf"); // JSON has no such number
    json_decref(root);
}

static void test_conversions(void **state)
{
    (void)state;
    char expected[400];
#define SAME(...)                                                                                            \
    do {                                                                                                     \
        snprintf(expected, sizeof expected, __VA_ARGS__);                                                    \
        fill(__VA_ARGS__);                                                                                   \
        assert_int_equal(record.len, strlen(expected));                                                      \
        assert_memory_equal(record.text, expected, record.len);                                              \
    } while (0)
    SAME("%d %i %u %x %X %o %c %s %% %p|", -1, 2, 3u, 255u, 255u, 8u, 'z', "s", (void *)expected);
    SAME("%5d|%-5d|%05d|%+d|% d|%#x|%.3d|%8.3f|%e|%g|%G|%a", 1, 2, 3, 4, 5, 6u, 7, 8.0, 9.0, 1e-9, 1e30, 1.5);
    SAME("%*d|%-*d|%.*s|%*.*s|%.*s|%.3s", 5, 1, 6, 2, 2, "abc", 6, 1, "xyz", -1, "all", "abcdef");
    SAME("%ld %lu %lld %llu %zu %zd %jd %td %hd %hhu %Lf", -1L, 2UL, -3LL, 4ULL, (size_t)5, (ssize_t)-6,
         (intmax_t)-7, (ptrdiff_t)-8, (short)-9, (unsigned char)10, 11.5L);
    SAME("100%%");
#undef SAME
}

static void test_hostile_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"\"\\/\b\f\n\r\t\x01\x1f\x7f", "\"\\/\b\f\n\r\t\x01\x1f\x7f"},
        {"h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "h\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xc2\x85\xc2\x9b", "\xc2\x85\xc2\x9b"},                                 // C1 controls, escaped
        {"\xff\xc3", "\xef\xbf\xbd\xef\xbf\xbd"},                                 // not UTF-8; cut short
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                                 // overlong
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},                 // a surrogate
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, // past U+10FFFF
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill("name=%s", cases[i].bytes);
        json_t *root = object();
        assert_string_equal(text_of(root, "name"), cases[i].want);
        assert_null(strstr(bytes, "\xc2\x85"));
        json_decref(root);
    }
}

static void test_long_values(void **state)
{
    (void)state;
    char *text = malloc(5001);
    static const char fillers[] = {'z', '\x01', '\xff'};
    for (size_t f = 0; f < sizeof fillers; f++)
        for (size_t len = 1; len < 5000; len += len < 300 ? 1 : 37) {
            memset(text, fillers[f], len);
            text[len] = '\0';
            fill("n=%d a=%s b=%d", 1, text, 2);
            json_t *root = object();
            bool whole = json_object_get(root, "cut") == NULL;
            assert_int_equal(json_integer_value(json_object_get(root, "n")), 1);
            if (whole) // then nothing is missing
                assert_int_equal(json_integer_value(json_object_get(root, "b")), 2);
            if (len < 100)
                assert_true(whole);
            if (len > 1900)
                assert_false(whole);
            json_decref(root);
            assert_true(common_log_record_text(&record, bytes) <= 2048);
            assert_true(common_log_record_journal(&record, bytes) <= COMMON_LOG_RECORD_BYTES);
            assert_true(common_log_record_prefix(&record, bytes) <= COMMON_LOG_RECORD_BYTES);
        }
    free(text);
}

static void test_random_bytes(void **state)
{
    (void)state;
    uint32_t seed = 7;
    char text[600], program[100];
    for (int round = 0; round < 3000; round++) {
        size_t len = 0;
        for (; len < (size_t)(round % 599); len++) {
            seed = seed * 1664525u + 1013904223u;
            text[len] = (char)(seed >> 24);
        }
        text[len] = '\0';
        snprintf(program, sizeof program, "%.99s", text);
        fill("%s a=%s b=%.*s", text, text, (int)(len / 2), text);
        record.program = program;
        json_decref(object());
        record.program = "test";
        size_t n = common_log_record_text(&record, bytes);
        assert_ptr_equal(memchr(bytes, '\n', n), bytes + n - 1);
        assert_null(memchr(bytes, '\r', n));
        n = common_log_record_prefix(&record, bytes);
        assert_memory_equal(bytes, "<4>", 3);
        assert_ptr_equal(memchr(bytes, '\n', n), bytes + n - 1);
    }
}

// As journald reads it: NAME=value, or NAME, 64 bits of length, value.
static size_t read_field(const char *at, char *name, char *value)
{
    size_t n = strcspn(at, "=\n"), len = 0;
    memcpy(name, at, n);
    name[n] = '\0';
    if (at[n] == '=') {
        len = strcspn(at + n + 1, "\n");
        memcpy(value, at + n + 1, len);
        value[len] = '\0';
        return n + 1 + len + 1;
    }
    for (int i = 7; i >= 0; i--)
        len = len << 8 | (unsigned char)at[n + 1 + (size_t)i];
    memcpy(value, at + n + 9, len);
    value[len] = '\0';
    assert_int_equal(at[n + 9 + len], '\n');
    return n + 10 + len;
}

static void test_journal(void **state)
{
    (void)state;
    static const char *const expected[][2] = {{"PRIORITY", "4"},
                                              {"SYSLOG_IDENTIFIER", "test"},
                                              {"MESSAGE", "lost peer=a PRIORITY=0 \xe2\x82\xac? n=3"},
                                              {"BANYAN_PEER", "a PRIORITY=0 \xe2\x82\xac?"},
                                              {"BANYAN_N", "3"}};
    char name[200], value[4096];
    fill("lost peer=%s n=%d", "a\nPRIORITY=0\x01\xe2\x82\xac\xff", 3);
    size_t n = common_log_record_journal(&record, bytes), at = 0;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_true(at < n);
        at += read_field(bytes + at, name, value);
        assert_string_equal(name, expected[i][0]);
        assert_string_equal(value, expected[i][1]);
    }
    assert_int_equal(at, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),     cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_conversions), cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_long_values), cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_journal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
