// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <regex.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log.h"

// stderr is a pipe in packet mode: one read gives what one write wrote.
static int reader = -1, saved_stderr = -1;

static int setup(void **state)
{
    (void)state;
    int ends[2];
    if (pipe2(ends, O_DIRECT | O_NONBLOCK | O_CLOEXEC) != 0)
        return -1;
    reader = ends[0];
    saved_stderr = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    unsetenv("BANYAN_LOG");
    common_log_init("test-program");
    common_log_set_level(COMMON_LOG_INFO);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    close(reader);
    return 0;
}

// The next record, or NULL when nothing was written.
static const char *next_record(void)
{
    static char record[8192];
    ssize_t n = read(reader, record, sizeof record - 1);
    if (n <= 0)
        return NULL;
    record[n] = '\0';
    return record;
}

static void test_layout(void **state)
{
    (void)state;
    common_log_warn("peer lost peer=%s session=%d", "w3", 12);
    const char *record = next_record();
    assert_non_null(record);
    regex_t re;
    assert_int_equal(
        regcomp(&re,
                "^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z WARN  test-program: "
                "peer lost peer=w3 session=12\n$",
                REG_EXTENDED | REG_NOSUB),
        0);
    assert_int_equal(regexec(&re, record, 0, NULL, 0), 0);
    regfree(&re);
    assert_null(next_record());
}

static void test_levels(void **state)
{
    (void)state;
    common_log_debug("unseen");
    assert_null(next_record());
    common_log_set_level(COMMON_LOG_ERROR);
    common_log_warn("unseen");
    assert_null(next_record());
    common_log_error("seen");
    assert_non_null(next_record());
    setenv("BANYAN_LOG", "debug", 1);
    common_log_init("test-program");
    common_log_debug("seen");
    assert_non_null(next_record());
    setenv("BANYAN_LOG", "nonsense", 1); // keeps the level
    common_log_init("test-program");
    common_log_debug("seen");
    assert_non_null(next_record());
}

static void test_a_peer_cannot_forge_a_line(void **state)
{
    (void)state;
    common_log_info("name=%s", "a\n2026-01-01 ERROR b\r\033[2J");
    const char *record = next_record();
    assert_non_null(record);
    assert_ptr_equal(strchr(record, '\n'), record + strlen(record) - 1);
    assert_null(strchr(record, '\r'));
    assert_null(strchr(record, '\033'));
}

static void test_long_record_is_cut_and_stays_one_write(void **state)
{
    (void)state;
    char text[5000];
    memset(text, 'z', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    common_log_info("%s", text);
    const char *record = next_record();
    assert_non_null(record);
    size_t len = strlen(record);
    assert_true(len <= 2048);
    assert_string_equal(record + len - 5, "z...\n");
    assert_null(next_record());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layout, setup, teardown),
        cmocka_unit_test_setup_teardown(test_levels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_peer_cannot_forge_a_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_record_is_cut_and_stays_one_write, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
