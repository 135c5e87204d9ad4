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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log/log.h"
#include "common/log/log_limit.h"

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

static void test_forms(void **state)
{
    (void)state;
    common_log_set_format(COMMON_LOG_JSON);
    common_log_error("peer lost session=%d", 12);
    const char *record = next_record();
    assert_non_null(record);
    assert_memory_equal(record, "{\"ts\":\"20", 9);
    assert_non_null(strstr(record, "\"level\":\"error\",\"program\":\"test-program\",\"message\":\"peer lost "
                                   "session=12\",\"session\":12}\n"));
    setenv("JOURNAL_STREAM", "1:2", 1); // of another service
    common_log_set_format(COMMON_LOG_JOURNALD);
    common_log_error("peer lost session=%d", 12);
    assert_string_equal(next_record(), "<3>peer lost session=12\n");
    unsetenv("JOURNAL_STREAM");
    common_log_set_format(COMMON_LOG_TEXT);
}

// A socket in the place of journald's: it gets records with fields while it is there, and stderr lines when
// it is not.
static void test_journal(void **state)
{
    (void)state;
    char path[64], stream[64], got[8192];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat status;
    snprintf(path, sizeof path, "/tmp/banyan-journal-%ld", (long)getpid());
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int journald = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(journald, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(fstat(STDERR_FILENO, &status), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)status.st_dev,
             (unsigned long long)status.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    common_log_set_journal(path);
    common_log_set_format(COMMON_LOG_JOURNALD);
    common_log_warn("peer lost peer=%s", "w3");
    ssize_t n = recv(journald, got, sizeof got, MSG_DONTWAIT);
    assert_true(n > 0);
    assert_memory_equal(got, "PRIORITY=4\n", 11);
    assert_non_null(memmem(got, (size_t)n, "BANYAN_PEER\n\2\0\0\0\0\0\0\0w3\n", 23));
    assert_null(next_record());
    for (int i = 0; i < 5000; i++) // it does not read: the writer does not wait, stderr has the rest
        common_log_warn("i=%d", i);
    assert_non_null(next_record());
    close(journald);
    unlink(path);
    while (next_record())
        ;
    common_log_sweep(); // stderr had no room for all of them, either
    while (next_record())
        ;
    common_log_warn("peer lost peer=%s", "w3");
    assert_string_equal(next_record(), "<4>peer lost peer=w3\n");
    common_log_set_format(COMMON_LOG_TEXT);
    common_log_set_journal(COMMON_LOG_JOURNAL);
    unsetenv("JOURNAL_STREAM");
}

// The clock is the tests' here: a second ends when they say so.
static void test_limit(void **state)
{
    (void)state;
    struct common_log_left left;
    for (int i = 0; i < 5; i++)
        assert_true(common_log_limit_pass(1, 3, COMMON_LOG_WARN, "first", 100) == (i < 3));
    assert_true(common_log_limit_pass(2, 3, COMMON_LOG_INFO, "other", 100));
    assert_false(common_log_limit_left(100, &left)); // not while it goes on
    assert_true(common_log_limit_left(101, &left));
    assert_int_equal(left.n, 2);
    assert_int_equal(left.level, COMMON_LOG_WARN);
    assert_string_equal(left.text, "first");
    assert_false(common_log_limit_left(101, &left)); // once
    assert_true(common_log_limit_pass(1, 3, COMMON_LOG_WARN, "again", 101));
    for (uint64_t key = 0; key < 100000; key++) // more kinds than places: none is lost that comes once
        assert_true(common_log_limit_pass(key << 6, 3, COMMON_LOG_ERROR, "x", 200));
    assert_false(common_log_limit_left(300, &left));
}

static unsigned left_out; // as records have said

static unsigned records(void)
{
    unsigned n = 0;
    const char *record, *said;
    while ((record = next_record())) {
        said = strstr(record, "left_out=");
        left_out += said ? (unsigned)strtoul(said + strlen("left_out="), NULL, 10) : 0;
        n += !said;
    }
    return n;
}

static void test_rate(void **state)
{
    (void)state;
    common_log_set_rate(2);
    common_log_set_level(COMMON_LOG_DEBUG);
    unsigned wrote = 0;
    left_out = 0;
    for (int i = 0; i < 1000; i++) {
        common_log_warn("flood i=%d", i);
        wrote += records();
    }
    assert_true(wrote >= 2);
    for (int i = 0; i < 30; i++) { // each is another one
        common_log_error("something failed i=%d", i);
        assert_int_equal(records(), 1);
        common_log_warn("%s %d", "its own text", i);
        assert_int_equal(records(), 1);
        common_log_debug("seen");
        assert_int_equal(records(), 1);
    }
    common_log_set_rate(0);
    for (int i = 0; i < 30; i++) {
        common_log_warn("all");
        assert_int_equal(records(), 1);
    }
    while (wrote + left_out < 1000) { // what was left out is said, with nothing behind it
        usleep(1000);
        common_log_sweep();
        records();
    }
    assert_int_equal(wrote + left_out, 1000);
}

// ---- a reader that hangs ------------------------------------------------------------------------------------

static int setup_hanging(void **state)
{
    int ends[2];
    if (setup(state) != 0 || pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0)
        return -1;
    close(reader);
    reader = ends[0];
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    common_log_set_format(COMMON_LOG_TEXT);
    return 0;
}

// Like a parent that shares it, which has it wait. Returns the bytes that were there.
static size_t fill_up(void)
{
    static const char junk[4096];
    size_t n = 0;
    for (ssize_t did; (did = write(STDERR_FILENO, junk, sizeof junk)) > 0;)
        n += (size_t)did;
    fcntl(STDERR_FILENO, F_SETFL, 0);
    return n;
}

static void drain(size_t n)
{
    char bytes[4096];
    for (ssize_t did; n > 0; n -= (size_t)did) {
        did = read(reader, bytes, n < sizeof bytes ? n : sizeof bytes);
        assert_true(did > 0);
    }
    assert_int_equal(read(reader, bytes, 1), -1);
}

static void test_nothing_waits_for_a_reader_that_hangs(void **state)
{
    (void)state;
    size_t full = fill_up();
    alarm(60); // where a call waits, this ends the program
    for (int i = 0; i < 3; i++)
        common_log_warn("unseen i=%d", i);
    common_log_sweep();
    alarm(0);
    assert_int_equal(fcntl(STDERR_FILENO, F_GETFL) & O_NONBLOCK, 0); // it is the parent's
    drain(full);
    common_log_warn("seen");
    const char *said = next_record(); // both lines
    assert_non_null(said);
    const char *lost =
        strstr(said, "WARN  test-program: the reader of stderr was too slow: lines were lost lost=3\n");
    assert_non_null(lost);
    assert_non_null(strstr(lost, "test-program: seen\n"));
    assert_null(strstr(said, "unseen"));
    common_log_warn("seen");
    assert_null(strstr(next_record(), "lost")); // once
}

// It goes on, and nothing is logged behind what was lost.
static void test_lost_lines_are_said_with_nothing_behind_them(void **state)
{
    (void)state;
    size_t full = fill_up();
    alarm(60);
    common_log_set_format(COMMON_LOG_JSON);
    common_log_error("unseen");
    alarm(0);
    drain(full);
    common_log_sweep();
    assert_non_null(strstr(next_record(), "\"lost\":1}"));
    common_log_sweep();
    assert_null(next_record());
    common_log_set_format(COMMON_LOG_TEXT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_waits_for_a_reader_that_hangs, setup_hanging, teardown),
        cmocka_unit_test_setup_teardown(test_lost_lines_are_said_with_nothing_behind_them, setup_hanging,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_layout, setup, teardown),
        cmocka_unit_test_setup_teardown(test_levels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_peer_cannot_forge_a_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_record_is_cut_and_stays_one_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_journal, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rate, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
