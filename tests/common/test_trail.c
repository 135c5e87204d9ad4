// SPDX-License-Identifier: Apache-2.0
// The file of the audit log: the chain follows whatever was written and shows whatever was changed since,
// byte by byte; torn ends, full disks at every byte, rotation, and files that are refused.
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log/log.h"
#include "common/trail/trail.h"
#include "common/trail/trail_chain.h"
#include "tests/common/scratch.h"

static struct scratch scratch;
static char path[PATH_MAX];
static size_t room = SIZE_MAX; // bytes that writes still take; then the disk is full

ssize_t __real_write(int fd, const void *data, size_t len);
ssize_t __wrap_write(int fd, const void *data, size_t len);

ssize_t __wrap_write(int fd, const void *data, size_t len)
{
    if (fd <= 2)
        return __real_write(fd, data, len);
    if (room == 0) {
        errno = ENOSPC;
        return -1;
    }
    ssize_t n = __real_write(fd, data, len < room ? len : room);
    if (room != SIZE_MAX && n > 0)
        room -= (size_t)n;
    return n;
}

static int setup(void **state)
{
    (void)state;
    room = SIZE_MAX;
    if (scratch_init(&scratch) != 0)
        return -1;
    snprintf(path, sizeof path, "%s", scratch_path(&scratch, "audit.log"));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(&scratch);
    return 0;
}

// ---- helpers ------------------------------------------------------------------------------------

static struct common_trail *open_it(void)
{
    struct common_trail *trail;
    struct common_error err;
    if (common_trail_open(path, "tester", &trail, &err) != COMMON_OK)
        fail_msg("%s", err.message);
    return trail;
}

static bool say(struct common_trail *trail, const char *what)
{
    struct common_trail_body body = {.len = 0};
    common_trail_put_text(&body, "what", what);
    common_trail_put_text(&body, "result", "OK");
    return common_trail_write(trail, &body);
}

static char *read_all(const char *file, size_t *len)
{
    struct stat st;
    int fd = open(file, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    char *text = malloc((size_t)st.st_size + 1);
    assert_non_null(text);
    assert_int_equal(read(fd, text, (size_t)st.st_size), st.st_size);
    text[st.st_size] = 0;
    close(fd);
    *len = (size_t)st.st_size;
    return text;
}

struct found {
    uint64_t bad, first_bad, end_bad, records, torn, seq;
    char head[COMMON_TRAIL_HASH + 1], why[160];
};

static void note_bad(const struct common_trail_chain *chain, struct found *out)
{
    if (!out->bad++) {
        out->first_bad = chain->first_line;
        out->end_bad = chain->first_line + chain->lines;
        snprintf(out->why, sizeof out->why, "%s", chain->why);
    }
}

static void feed(struct common_trail_chain *chain, const char *text, size_t len, struct found *out)
{
    common_trail_chain_next_file(chain);
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t n = end ? (size_t)(end - text) - at : len - at;
        if (common_trail_chain_take(chain, text + at, n, end != NULL) == COMMON_TRAIL_BAD)
            note_bad(chain, out);
        at += n + (end != NULL);
    }
    if (common_trail_chain_end(chain) == COMMON_TRAIL_BAD)
        note_bad(chain, out);
    out->records = chain->records;
    out->torn = chain->torn;
    out->seq = chain->seq;
    memcpy(out->head, chain->head, sizeof out->head);
}

static struct found verify(const char *text, size_t len)
{
    struct common_trail_chain chain;
    struct found out = {0};
    common_trail_chain_init(&chain);
    feed(&chain, text, len, &out);
    common_trail_chain_fini(&chain);
    return out;
}

static struct found verify_file(void)
{
    size_t len;
    char *text = read_all(path, &len);
    struct found out = verify(text, len);
    free(text);
    return out;
}

static void expect_whole(uint64_t records, uint64_t torn)
{
    struct found found = verify_file();
    if (found.bad)
        fail_msg("line %d: %s", (int)found.first_bad, found.why);
    assert_int_equal(found.records, records);
    assert_int_equal(found.torn, torn);
    assert_int_equal(found.seq, records);
}

static void write_file(const char *text, size_t len)
{
    assert_non_null(scratch_write(&scratch, "audit.log", text, len, 0600));
}

// ---- what was written ---------------------------------------------------------------------------

static void a_chain_goes_on_over_restarts(void **state)
{
    (void)state;
    struct stat st;
    struct common_trail_counts counts;
    for (unsigned life = 0; life < 3; life++) {
        struct common_trail *trail = open_it();
        assert_true(say(trail, "one") && say(trail, "two"));
        common_trail_counts(trail, &counts);
        assert_int_equal(counts.seq, 3 * (life + 1));
        assert_int_equal(counts.written, 3);
        assert_string_equal(counts.head, verify_file().head);
        common_trail_close(trail);
    }
    expect_whole(9, 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
}

static void names_of_others_forge_nothing(void **state)
{
    (void)state;
    static const char name[] = "a\"b\\c\nd\x01\x7f\xff\xc3\xa4\xe2\x80\xae{\"what\":\"log.torn\"}";
    struct common_trail_body body = {.len = 0};
    struct common_trail *trail = open_it();
    common_trail_put_open(&body, "who");
    common_trail_put_text(&body, "name", name);
    common_trail_put_shut(&body);
    common_trail_put_text(&body, "what", "x");
    common_trail_put_text(&body, "nothing", NULL);
    common_trail_put_id(&body, "session", 0x12);
    common_trail_put_id(&body, "none", 0);
    assert_true(common_trail_write(trail, &body));
    common_trail_close(trail);
    expect_whole(2, 0);
    size_t len;
    char *text = read_all(path, &len), *line = memchr(text, '\n', len);
    line++;
    for (size_t i = 0; i + 1 < len - (size_t)(line - text); i++)
        assert_true((unsigned char)line[i] >= ' ' && line[i] != 0x7f);
    json_t *record = json_loadb(line, len - (size_t)(line - text), JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(record);
    assert_string_equal(json_string_value(json_object_get(json_object_get(record, "who"), "name")),
                        "a\"b\\c\nd\x01\x7f\xef\xbf\xbd\xc3\xa4\xe2\x80\xae{\"what\":\"log.torn\"}");
    assert_string_equal(json_string_value(json_object_get(record, "session")), "0x0000000000000012");
    assert_null(json_object_get(record, "nothing"));
    assert_null(json_object_get(record, "none"));
    assert_non_null(strstr(line, "\\u202e")); // what turns the direction of writing is seen
    assert_true(common_trail_is(line, strcspn(line, "\n"), "x"));
    json_decref(record);
    free(text);
}

// Longer than a line may be: what has no room is left out, and the line says so and is right.
static void a_body_that_is_too_long_is_cut(void **state)
{
    (void)state;
    char name[2000];
    memset(name, '\n', sizeof name - 1); // two characters each, escaped
    name[sizeof name - 1] = '\0';
    struct common_trail_body body = {.len = 0};
    common_trail_put_open(&body, "args");
    for (int i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof key, "k%d", i);
        common_trail_put_text(&body, key, name);
    }
    assert_true(body.cut);
    struct common_trail *trail = open_it();
    assert_true(common_trail_write(trail, &body));
    common_trail_close(trail);
    expect_whole(2, 0);
    size_t len;
    char *text = read_all(path, &len), *line = (char *)memchr(text, '\n', len) + 1;
    json_t *record = json_loadb(line, len - (size_t)(line - text), 0, NULL);
    assert_non_null(record);
    assert_true(json_is_true(json_object_get(record, "cut")));
    assert_true(json_object_size(json_object_get(record, "args")) > 5);
    json_decref(record);
    free(text);
}

// ---- what was changed since ---------------------------------------------------------------------

static uint64_t line_of(const char *text, size_t at)
{
    uint64_t line = 1;
    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    return line;
}

// A log with all that there can be: two lives, a torn record, one that was lost.
static char *make_log(size_t *len)
{
    struct common_trail *trail = open_it();
    assert_true(say(trail, "one"));
    room = 90;
    assert_false(say(trail, "torn"));
    assert_false(say(trail, "lost"));
    room = SIZE_MAX;
    assert_true(say(trail, "two"));
    common_trail_close(trail);
    trail = open_it();
    assert_true(say(trail, "three"));
    common_trail_close(trail);
    expect_whole(7, 1); // begun, one, log.torn, log.lost, two, opened, three
    return read_all(path, len);
}

static void each_changed_byte_is_found(void **state)
{
    (void)state;
    static const unsigned char flips[] = {0x01, 0x20, 0x80};
    size_t len;
    char *text = make_log(&len);
    for (size_t at = 0; at < len; at++)
        for (size_t f = 0; f < sizeof flips; f++) {
            uint64_t line = line_of(text, at);
            text[at] = (char)(text[at] ^ flips[f]);
            struct found found = verify(text, len);
            text[at] = (char)(text[at] ^ flips[f]);
            // Of a record that speaks of a torn one, the torn one's line is named, too.
            bool torn = line == 4 && found.first_bad == 3 && found.end_bad > line;
            if (!found.bad || (found.first_bad != line && !torn))
                fail_msg("byte %zu of line %d is changed by 0x%02x: %d are bad, the first is line %d: %s", at,
                         (int)line, flips[f], (int)found.bad, (int)found.first_bad, found.why);
        }
    free(text);
}

static void lines_that_are_missing_are_found(void **state)
{
    (void)state;
    size_t len;
    char *text = make_log(&len), *other = malloc(2 * len);
    uint64_t lines = line_of(text, len) - 1;
    for (uint64_t gone = 1; gone < lines; gone++) { // but the last one
        size_t begin = 0, n = 0;
        while (line_of(text, begin) < gone)
            begin++;
        size_t end = begin;
        while (text[end] != '\n')
            end++;
        memcpy(other, text, begin);
        n = begin + len - (end + 1);
        memcpy(other + begin, text + end + 1, len - (end + 1));
        struct found found = verify(other, n);
        if (gone == 1) // it may be in an earlier file
            assert_int_equal(found.bad, 0);
        else if (!found.bad || found.first_bad != (gone == 4 ? 3 : gone)) // it spoke of line 3
            fail_msg("line %d is gone: %d are bad, the first is line %d", (int)gone, (int)found.bad,
                     (int)found.first_bad);
        // the same line twice
        memcpy(other, text, end + 1);
        memcpy(other + end + 1, text + begin, len - begin);
        found = verify(other, len + end + 1 - begin);
        if (!found.bad)
            fail_msg("line %d is there twice", (int)gone);
    }
    // What cannot be seen without a hash that was kept: a log that ends earlier.
    size_t end = len - 1;
    while (text[end - 1] != '\n')
        end--;
    struct found whole = verify(text, len), shorter = verify(text, end);
    assert_int_equal(shorter.bad, 0);
    assert_string_not_equal(shorter.head, whole.head);
    free(other);
    free(text);
}

// ---- ends that are torn -------------------------------------------------------------------------

static void a_torn_end_stays_and_is_noted(void **state)
{
    (void)state;
    struct common_trail *trail = open_it();
    assert_true(say(trail, "one") && say(trail, "two"));
    common_trail_close(trail);
    size_t len, from, n;
    char *text = read_all(path, &len);
    for (from = len - 1; text[from - 1] != '\n';)
        from--;
    for (size_t cut = from + 1; cut < len; cut++) {
        write_file(text, cut);
        trail = open_it();
        common_trail_close(trail);
        bool whole = cut == len - 1; // its '\n' alone was missing
        expect_whole(4, whole ? 0 : 1);
        char *after = read_all(path, &n);
        assert_memory_equal(after, text, cut); // nothing of it was taken away
        free(after);
    }
    for (size_t cut = 1; cut < from / 2; cut += 7) { // of the first record
        write_file(text, cut);
        trail = open_it();
        common_trail_close(trail);
        expect_whole(2, 1);
    }
    free(text);
}

// The last record has been changed, and the coordinator starts: it says so, and verifying says where.
static void a_changed_end_is_no_torn_end(void **state)
{
    (void)state;
    struct common_trail *trail = open_it();
    assert_true(say(trail, "one") && say(trail, "two"));
    common_trail_close(trail);
    size_t len;
    char *text = read_all(path, &len);
    *strstr(text, "two") = 'T';
    write_file(text, len);
    free(text);
    trail = open_it();
    assert_true(say(trail, "three"));
    common_trail_close(trail);
    struct found found = verify_file();
    assert_int_equal(found.bad, 1);
    assert_int_equal(found.first_bad, 3);
    text = read_all(path, &len);
    text[len - 1] = '\0';
    assert_non_null(strstr(text, "\"what\":\"log.broken\""));
    free(text);
}

// The disk is full after each number of bytes: what is in the file is a chain, and says what it lacks.
static void a_disk_that_is_full_at_each_byte(void **state)
{
    (void)state;
    struct common_trail_counts counts;
    for (size_t bytes = 0; bytes < 900; bytes++) {
        unlink(path);
        struct common_trail *trail = open_it();
        room = bytes;
        uint64_t lost = 0;
        for (int i = 0; i < 4; i++)
            lost += !say(trail, "some");
        if (!common_trail_works(trail))
            assert_non_null(strstr(common_trail_trouble(trail), "No space"));
        room = bytes % 300; // and again, within what it has to say of that
        common_trail_retry(trail);
        room = SIZE_MAX;
        common_trail_retry(trail);
        assert_true(common_trail_works(trail));
        assert_true(say(trail, "last"));
        common_trail_counts(trail, &counts);
        assert_int_equal(counts.lost, lost);
        assert_int_equal(counts.written, 2 + 4 - lost);
        common_trail_close(trail);
        struct found found = verify_file();
        if (found.bad)
            fail_msg("full after %zu bytes: line %d: %s", bytes, (int)found.first_bad, found.why);
        assert_int_equal(found.records, counts.seq);
    }
}

// ---- rotation -----------------------------------------------------------------------------------

static void a_new_file_names_the_end_of_the_old_one(void **state)
{
    (void)state;
    struct common_error err;
    struct common_trail_chain chain;
    struct found found = {0};
    char old[PATH_MAX];
    struct common_trail *trail = open_it();
    assert_true(say(trail, "one"));
    assert_int_equal(common_trail_reopen(trail, &err), COMMON_OK); // it is there still
    snprintf(old, sizeof old, "%s", scratch_path(&scratch, "audit.log.1"));
    assert_int_equal(rename(path, old), 0);
    assert_true(say(trail, "two")); // into the old one
    assert_int_equal(common_trail_reopen(trail, &err), COMMON_OK);
    assert_true(say(trail, "three"));
    common_trail_close(trail);
    trail = open_it();
    common_trail_close(trail);
    size_t len, new_len;
    char *text = read_all(old, &len), *new_text = read_all(path, &new_len);
    common_trail_chain_init(&chain);
    feed(&chain, text, len, &found);
    assert_int_equal(found.records, 3);
    feed(&chain, new_text, new_len, &found);
    common_trail_chain_fini(&chain);
    assert_int_equal(found.bad, 0);
    assert_int_equal(found.seq, 6);    // begun, one, two, rotated, three, opened
    found = verify(new_text, new_len); // by itself it says after what it begins
    assert_int_equal(found.bad, 0);
    assert_int_equal(found.records, 3);
    // The wrong order, and one that is left out, are found.
    memset(&found, 0, sizeof found);
    common_trail_chain_init(&chain);
    feed(&chain, new_text, new_len, &found);
    feed(&chain, text, len, &found);
    common_trail_chain_fini(&chain);
    assert_int_equal(found.bad, 1);
    free(text);
    free(new_text);
}

static void another_file_is_not_written_to(void **state)
{
    (void)state;
    struct common_error err;
    char old[PATH_MAX];
    struct common_trail *trail = open_it();
    snprintf(old, sizeof old, "%s", scratch_path(&scratch, "audit.log.1"));
    assert_int_equal(rename(path, old), 0);
    write_file("something\n", 10);
    assert_int_equal(common_trail_reopen(trail, &err), COMMON_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "move it away"));
    assert_true(say(trail, "one")); // into the old one
    common_trail_close(trail);
    size_t len;
    char *text = read_all(old, &len);
    assert_int_equal(verify(text, len).records, 2);
    free(text);
}

// ---- files that are refused ---------------------------------------------------------------------

static void expect_refused(const char *file, const char *says)
{
    struct common_error err;
    struct common_trail *trail;
    assert_int_equal(common_trail_open(file, "tester", &trail, &err), COMMON_FAILED_PRECONDITION);
    if (!strstr(err.message, says) || !strstr(err.message, file))
        fail_msg("'%s' does not say '%s'", err.message, says);
}

static void files_that_are_refused(void **state)
{
    (void)state;
    char other[PATH_MAX];
    struct common_trail *trail = open_it();
    expect_refused(path, "another process has it");
    common_trail_close(trail);
    common_trail_close(open_it()); // it has no owner any more
    assert_int_equal(chmod(path, 0620), 0);
    expect_refused(path, "chmod 600");
    assert_int_equal(chmod(path, 0640), 0); // others may read it
    common_trail_close(open_it());
    snprintf(other, sizeof other, "%s", scratch_path(&scratch, "link"));
    assert_int_equal(symlink(path, other), 0);
    expect_refused(other, "symbolic link");
    snprintf(other, sizeof other, "%s", scratch_path(&scratch, "pipe"));
    assert_int_equal(mkfifo(other, 0600), 0);
    expect_refused(other, "neither a regular file");
    snprintf(other, sizeof other, "%s", scratch_path(&scratch, "missing/audit.log"));
    expect_refused(other, "No such file");
    write_file("some text\nof another kind\n", 26);
    expect_refused(path, "is not an audit log");
    write_file("some text", 9);
    expect_refused(path, "is not an audit log");
}

static void what_takes_nothing_is_said(void **state)
{
    (void)state;
    struct common_error err;
    struct common_trail *trail;
    struct common_trail_counts counts;
    assert_int_equal(common_trail_open("/dev/full", "tester", &trail, &err), COMMON_OK);
    assert_false(common_trail_works(trail));
    assert_false(say(trail, "one"));
    common_trail_retry(trail);
    assert_false(common_trail_works(trail));
    common_trail_counts(trail, &counts);
    assert_int_equal(counts.lost, 1);
    assert_int_equal(counts.written, 0);
    common_trail_close(trail);
}

int main(void)
{
    common_log_set_level(COMMON_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_chain_goes_on_over_restarts, setup, teardown),
        cmocka_unit_test_setup_teardown(names_of_others_forge_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_body_that_is_too_long_is_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(each_changed_byte_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(lines_that_are_missing_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(a_torn_end_stays_and_is_noted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_changed_end_is_no_torn_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_is_full_at_each_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_file_names_the_end_of_the_old_one, setup, teardown),
        cmocka_unit_test_setup_teardown(another_file_is_not_written_to, setup, teardown),
        cmocka_unit_test_setup_teardown(files_that_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(what_takes_nothing_is_said, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
