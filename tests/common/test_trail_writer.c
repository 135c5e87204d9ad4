// SPDX-License-Identifier: Apache-2.0
// The thread that writes an audit log: while its disk hangs, records wait in order and in bounds, none of the
// calls blocks, and what had no room is counted, in the file as well.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/trail/trail_chain.h"
#include "common/trail/trail_writer.h"
#include "tests/common/hung_disk.h"

static char dir[64], path[96], moved[112];
static struct common_loop *loop;
static struct common_trail_writer *writer;
static uint64_t told, written; // numbers that `done` has named so far, and those of them that are in the file

static void on_done(void *arg, uint64_t number, bool in_file)
{
    assert_ptr_equal(arg, &told);
    assert_int_equal(number, ++told);
    written += in_file;
}

static int set_up(void **state)
{
    (void)state;
    struct common_trail *file;
    snprintf(dir, sizeof dir, "/tmp/banyan-trail-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/audit.log", dir);
    snprintf(moved, sizeof moved, "%s.1", path);
    told = written = 0;
    assert_int_equal(common_loop_new(&loop), COMMON_OK);
    assert_int_equal(common_trail_open(path, "test", &file, NULL), COMMON_OK);
    hung_disk_of(path);
    assert_int_equal(common_trail_writer_new(loop, file, on_done, &told, &writer), COMMON_OK);
    return 0;
}

static bool flush(uint64_t ns)
{
    return common_trail_writer_flush(writer, common_clock_after(ns));
}

static int tear_down(void **state)
{
    (void)state;
    hung_disk_go();
    if (writer)
        assert_true(flush(60 * COMMON_NS_PER_S));
    common_trail_writer_free(writer);
    common_loop_stop(loop); // a mail may be on its way yet, and frees the writer
    common_loop_run(loop);
    common_loop_free(loop);
    unlink(path);
    unlink(moved);
    rmdir(dir);
    return 0;
}

static uint64_t put(uint64_t n)
{
    struct common_trail_body body = {.len = 0};
    common_trail_put_text(&body, "what", "test");
    common_trail_put_number(&body, "n", n);
    return common_trail_writer_put(writer, &body);
}

// The disk hangs, and the thread is in it with record 1.
static void hang(void)
{
    hung_disk_hang();
    assert_int_equal(put(1), 1);
    while (!hung_disk_waits())
        usleep(1000);
}

// Records of ours in the chain of these files, which must be whole and in order; the lost ones that it speaks
// of.
static uint64_t read_back(const char *const *files, uint64_t *lost)
{
    struct common_trail_chain chain;
    uint64_t n = 0, number, last = 0;
    common_trail_chain_init(&chain);
    *lost = 0;
    for (; *files; files++) {
        char *line = NULL;
        size_t room = 0;
        FILE *file = fopen(*files, "re");
        assert_non_null(file);
        common_trail_chain_next_file(&chain);
        for (ssize_t len; (len = getline(&line, &room, file)) > 0;) {
            assert_int_not_equal(common_trail_chain_take(&chain, line, (size_t)len - 1, true),
                                 COMMON_TRAIL_BAD);
            char *at = strstr(line, "\"what\":\"test\",\"n\":");
            if (at) {
                number = strtoull(at + strlen("\"what\":\"test\",\"n\":"), NULL, 10);
                assert_true(number > last);
                last = number;
                n++;
            }
            if (common_trail_is(line, (size_t)len - 1, "log.lost") &&
                common_trail_number(line, (size_t)len - 1, "records", &number))
                *lost += number;
        }
        free(line);
        fclose(file);
    }
    assert_int_not_equal(common_trail_chain_end(&chain), COMMON_TRAIL_BAD);
    common_trail_chain_fini(&chain);
    return n;
}

static void records_are_written_in_order(void **state)
{
    (void)state;
    uint64_t lost;
    for (uint64_t i = 1; i <= 1000; i++)
        assert_int_equal(put(i), i);
    assert_true(flush(60 * COMMON_NS_PER_S));
    assert_int_equal(told, 1000);
    assert_int_equal(written, 1000);
    assert_int_equal(read_back((const char *const[]){path, NULL}, &lost), 1000);
    assert_int_equal(lost, 0);
}

static void a_hung_disk_keeps_records_in_bounds(void **state)
{
    (void)state;
    enum { OVER = 77 };
    struct common_trail_state seen;
    uint64_t lost, n = COMMON_TRAIL_RECORDS;
    common_log_set_level(-1); // it logs an error
    hang();
    for (uint64_t i = 2; i <= n; i++)
        assert_int_equal(put(i), i);
    assert_int_equal(common_trail_writer_full(writer), 100);
    for (uint64_t i = 0; i < OVER; i++)
        assert_int_equal(put(n + 1 + i), 0);
    assert_false(flush(10 * COMMON_NS_PER_MS)); // bounded, and nothing is reported
    assert_int_equal(told, 0);
    assert_true(common_trail_writer_waits_ns(writer, common_clock_ns()) > 0);
    common_trail_writer_state(writer, &seen);
    assert_int_equal(seen.counts.lost, OVER);
    hung_disk_go();
    assert_true(flush(60 * COMMON_NS_PER_S));
    assert_int_equal(told, n);
    assert_int_equal(written, n);
    assert_int_equal(put(n + OVER + 1), n + 1);
    assert_true(flush(60 * COMMON_NS_PER_S));
    assert_int_equal(common_trail_writer_waits_ns(writer, common_clock_ns()), 0);
    common_trail_writer_state(writer, &seen);
    assert_true(seen.works);
    assert_int_equal(seen.counts.lost, OVER);
    assert_int_equal(read_back((const char *const[]){path, NULL}, &lost), n + 1);
    assert_int_equal(lost, OVER);
    common_log_set_level(COMMON_LOG_INFO);
}

// Records of the largest size: the bound in bytes is met first.
static void large_records_are_bounded_in_bytes(void **state)
{
    (void)state;
    struct common_trail_body body = {.len = 0};
    char text[480];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 11; i++)
        common_trail_put_text(&body, "text", text);
    hang();
    uint64_t n = 1;
    common_log_set_level(-1);
    while (common_trail_writer_put(writer, &body))
        n++;
    assert_true(n < COMMON_TRAIL_RECORDS && n * body.len > COMMON_TRAIL_BYTES - 2 * body.len);
    hung_disk_go();
    assert_true(flush(60 * COMMON_NS_PER_S));
    common_log_set_level(COMMON_LOG_INFO);
    assert_int_equal(written, n);
}

// The file was moved away while the disk hung: what was put before goes into the old one, what comes after
// into the new.
static void a_rotation_keeps_its_place(void **state)
{
    (void)state;
    uint64_t lost;
    hang();
    assert_int_equal(put(2), 2);
    assert_int_equal(rename(path, moved), 0);
    common_trail_writer_reopen(writer);
    assert_int_equal(put(3), 3);
    hung_disk_go();
    assert_true(flush(60 * COMMON_NS_PER_S));
    assert_int_equal(read_back((const char *const[]){moved, NULL}, &lost), 2);
    assert_int_equal(read_back((const char *const[]){moved, path, NULL}, &lost), 3);
}

// What a stop does when the disk hangs for good: it goes on without the thread.
static void a_hung_thread_is_left_behind(void **state)
{
    (void)state;
    hang();
    assert_false(flush(10 * COMMON_NS_PER_MS));
    common_trail_writer_free(writer);
    writer = NULL;
    assert_int_equal(told, 0); // and nothing is reported any more
    hung_disk_go();
    uint64_t lost;
    while (read_back((const char *const[]){path, NULL}, &lost) < 1) // it ends by itself
        usleep(1000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(records_are_written_in_order),       TEST(a_hung_disk_keeps_records_in_bounds),
        TEST(large_records_are_bounded_in_bytes), TEST(a_rotation_keeps_its_place),
        TEST(a_hung_thread_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
